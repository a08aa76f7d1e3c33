// Linear kernels for AVX2 with FMA and F16C.

#include <immintrin.h>

#include "linear_impl.h"

namespace onebit {

namespace {

struct V {
    using F = __m256;
    using I = __m256i;
    static constexpr int L = 8;
    static constexpr int NV = 4;
    static constexpr int kVectors = 2;  // sixteen registers hold no more
    static constexpr int kRowsInt = 4;
    static constexpr int kRowsF32 = 3;
    static constexpr int kFusedInt = 3;
    static constexpr int kFusedF32 = 1;
    static constexpr int kDenseOutputs = 2;
    static constexpr int kDenseRows = 3;

    static F zero() { return _mm256_setzero_ps(); }
    static F set1(float x) { return _mm256_set1_ps(x); }
    static F load(const float* p) { return _mm256_load_ps(p); }
    static F loadu(const float* p) { return _mm256_loadu_ps(p); }
    static void store(float* p, F a) { _mm256_store_ps(p, a); }
    static void storeu(float* p, F a) { _mm256_storeu_ps(p, a); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
    static F negated(F a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0F)); }
    static F to_float(I a) { return _mm256_cvtepi32_ps(a); }

    static I izero() { return _mm256_setzero_si256(); }
    static I iload(const void* p) { return _mm256_load_si256(static_cast<const I*>(p)); }
    static void istore(void* p, I a) { _mm256_store_si256(static_cast<I*>(p), a); }
    static I iadd(I a, I b) { return _mm256_add_epi32(a, b); }
    static I imax(I a, I b) { return _mm256_max_epi32(a, b); }
    static I nearest(F a) { return _mm256_cvtps_epi32(a); }
    static I magnitude_bits(F a) {
        return _mm256_and_si256(_mm256_castps_si256(a), _mm256_set1_epi32(0x7fffffff));
    }
    static int32_t reduce_max(I a) {
        __m128i x = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
        x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1));
        return _mm_cvtsi128_si32(x);
    }
    static int32_t reduce_add(I a) {
        __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
        x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1));
        return _mm_cvtsi128_si32(x);
    }
    static void store_i16(int16_t* p, I a) {
        const __m128i packed =
            _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
    }
    static void store_i8(int8_t* p, I a) {
        const __m128i words =
            _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
    }
    // Four bytes in every lane.
    static I all4(const void* p) {
        int32_t x;
        __builtin_memcpy(&x, p, sizeof x);
        return _mm256_set1_epi32(x);
    }
    // The empty assembly holds the sum in its register: GCC would rather take all products of a
    // group first and add them as a tree, and spill most of them.
    static I dot16(I acc, I w, I x) {
        I sum = _mm256_add_epi32(acc, _mm256_madd_epi16(w, x));
        asm("" : "+x"(sum));
        return sum;
    }

    // Sums of two products each, 16 bits wide. Eight of them hold 15 * 127 * 2 each without overflow.
    static I dot8(I acc, I unsigned_w, I x) {
        I sum = _mm256_add_epi16(acc, _mm256_maddubs_epi16(unsigned_w, x));
        asm("" : "+x"(sum));
        return sum;
    }
    static I widened(I sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }

    // As assembly: GCC takes a function that only prefetches for one without effect, and drops it.
    static void prefetch(const uint8_t* p) {
        asm volatile("prefetcht1 %0" : : "m"(*p));
    }

    static __m128i load8(const uint8_t* p) {
        return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    }
    static __m128i load16(const uint8_t* p) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }
    static I load32(const uint8_t* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static F load_bf16(const uint8_t* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16));
    }
    static F load_f16(const uint8_t* p) { return _mm256_cvtph_ps(load16(p)); }
    static I load_int8(const uint8_t* p) { return _mm256_cvtepi8_epi32(load8(p)); }

    // 32 bfloat16 values: even ones, then odd ones.
    static void bf16_even_odd(const uint8_t* p, F (&out)[4]) {
        for (int h = 0; h < 2; ++h) {
            const I both = load32(p + 32 * h);
            out[h] = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
            out[h + 2] = _mm256_castsi256_ps(
                _mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000U))));
        }
    }
    static void bf16_in_order(const uint8_t* p, F (&out)[4]) {
        for (int v = 0; v < 4; ++v) {
            out[v] = load_bf16(p + 16 * v);
        }
    }
    static void u8_even_odd(const uint8_t* p, F (&out)[4]) {
        for (int h = 0; h < 2; ++h) {
            const I both = _mm256_cvtepu16_epi32(load16(p + 16 * h));
            out[h] = _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(0xff)));
            out[h + 2] = _mm256_cvtepi32_ps(_mm256_srli_epi32(both, 8));
        }
    }

    // Positions to row order.
    static void in_order(const float* sums, bool even_odd, F (&rows)[4]) {
        for (int v = 0; v < 4; ++v) {
            rows[v] = load(sums + 8 * v);
        }
        if (even_odd) {
            const F even[2] = {rows[0], rows[1]};
            const F odd[2] = {rows[2], rows[3]};
            for (int h = 0; h < 2; ++h) {
                const F low = _mm256_unpacklo_ps(even[h], odd[h]);
                const F high = _mm256_unpackhi_ps(even[h], odd[h]);
                rows[2 * h] = _mm256_permute2f128_ps(low, high, 0x20);
                rows[2 * h + 1] = _mm256_permute2f128_ps(low, high, 0x31);
            }
        }
    }

    static float sum16(const F (&s)[2]) {
        const F eight = _mm256_add_ps(s[0], s[1]);
        const __m128 four =
            _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
};

#include "linear_codec.inc.h"

template <Kind K>
struct Codec {
    static constexpr TileLayout at = tile_layout(K);

    static void scales(const uint8_t* tile, int g, F (&d)[4], F (&m)[4]) {
        tile_scales<K>(tile, g, d, m);
    }

    // Bytes of two columns side by side, eight lanes of half `h`; 4-bit kinds.
    static __m128i joined(const uint8_t* p, int h) {
        p += h * at.half_stride;
        return _mm_unpacklo_epi8(V::load8(p), V::load8(p + at.col_stride));
    }

    // Codes of four columns as 16-bit pairs (columns 0, 1 and 2, 3) per position.
    static void pairs(const uint8_t* codes, int quad, I (&w)[2][4]) {
        for (int pair = 0; pair < 2; ++pair) {
            const uint8_t* p = codes + (quad * 4 + pair * 2) * at.col_stride;
            for (int h = 0; h < 2; ++h) {
                if constexpr (is_q8(K)) {
                    const __m128i a = V::load16(p + h * at.half_stride);
                    const __m128i b = V::load16(p + h * at.half_stride + at.col_stride);
                    w[pair][2 * h] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b));
                    w[pair][2 * h + 1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b));
                } else {
                    const I both = _mm256_cvtepu8_epi16(joined(p, h));
                    if constexpr (K == Kind::Q4_0) {
                        w[pair][h] = _mm256_srai_epi16(_mm256_slli_epi16(both, 12), 12);
                        w[pair][h + 2] = _mm256_srai_epi16(_mm256_slli_epi16(both, 8), 12);
                    } else {
                        w[pair][h] = _mm256_and_si256(both, _mm256_set1_epi16(15));
                        w[pair][h + 2] = _mm256_srli_epi16(both, 4);
                    }
                }
            }
        }
    }

    // Codes of four columns, plus code_offset, as bytes per position; 4-bit kinds.
    static void quads(const uint8_t* codes, int quad, I (&w)[4]) {
        const uint8_t* p = codes + quad * 4 * at.col_stride;
        // Bytes of four rows of columns 0, 1, 2, 3 in each half of the register, to a row a lane.
        const I by_row = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
                                          0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        I raw[2];
        if constexpr (K == Kind::Q4_K) {
            const I order = _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7);
            const I front = V::load32(p);
            const I back = V::load32(p + 32);
            raw[0] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(front, back), order);
            raw[1] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(front, back), order);
        } else {
            const I order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
            raw[0] = _mm256_permutevar8x32_epi32(V::load32(p), order);
            raw[1] = _mm256_permutevar8x32_epi32(V::load32(p + at.half_stride), order);
        }
        const I low = _mm256_set1_epi8(15);
        for (int h = 0; h < 2; ++h) {
            I both = _mm256_shuffle_epi8(raw[h], by_row);
            if constexpr (K == Kind::Q4_0) {
                both = _mm256_xor_si256(both, _mm256_set1_epi8(static_cast<char>(0x88)));
            }
            w[h] = _mm256_and_si256(both, low);
            w[h + 2] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
        }
    }

    // Codes of four columns as float32.
    static void values(const uint8_t* codes, int quad, F (&q)[4][4]) {
        for (int c = 0; c < 4; ++c) {
            const uint8_t* p = codes + (quad * 4 + c) * at.col_stride;
            for (int h = 0; h < 2; ++h) {
                const uint8_t* half = p + h * at.half_stride;
                if constexpr (is_q8(K)) {
                    q[c][2 * h] = V::to_float(V::load_int8(half));
                    q[c][2 * h + 1] = V::to_float(V::load_int8(half + 8));
                } else {
                    const I both = _mm256_cvtepu8_epi32(V::load8(half));
                    I low = _mm256_and_si256(both, _mm256_set1_epi32(15));
                    I high = _mm256_srli_epi32(both, 4);
                    if constexpr (K == Kind::Q4_0) {
                        low = _mm256_srai_epi32(_mm256_slli_epi32(both, 28), 28);
                        high = _mm256_srai_epi32(_mm256_slli_epi32(both, 24), 28);
                    }
                    q[c][h] = V::to_float(low);
                    q[c][h + 2] = V::to_float(high);
                }
            }
        }
    }
};

#include "linear_avx2_bytes.inc.h"

#include "linear_dense.inc.h"
#include "linear_pack.inc.h"
#include "linear_tiles.inc.h"

#include "linear_strips.inc.h"

}  // namespace

const LinearKernels kLinearAvx2 = {Isa::Avx2, pack_rows, linear_strips};

}  // namespace onebit
