// Linear kernels for AVX-512 without VNNI and VBMI: 16-bit multiply-add and an addition instead.

// GCC 12 warns of the deliberately undefined registers in its own intrinsics.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "linear_impl.h"

namespace onebit {

namespace {

#include "linear_avx512.inc.h"

struct V : Avx512 {
    // The empty assembly: as in linear_avx2.cpp.
    static I dot16(I acc, I w, I x) {
        I sum = _mm512_add_epi32(acc, _mm512_madd_epi16(w, x));
        asm("" : "+v"(sum));
        return sum;
    }
};

#include "linear_codec.inc.h"

template <Kind K>
struct Codec {
    static constexpr TileLayout at = tile_layout(K);

    static void scales(const uint8_t* tile, int g, F (&d)[2], F (&m)[2]) {
        tile_scales<K>(tile, g, d, m);
    }

    // Bytes of columns 2 * pair (low) and 2 * pair + 1 (high) of every lane, 4-bit kinds.
    static __m256i joined(const uint8_t* p) {
        if constexpr (K == Kind::Q4_K) {
            const __m128i a = V::load16(p);
            const __m128i b = V::load16(p + 16);
            return _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b));
        } else {
            const __m256i halves = _mm256_set_m128i(V::load16(p + at.half_stride), V::load16(p));
            const __m128i zip = _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
            return _mm256_shuffle_epi8(halves, _mm256_broadcastsi128_si256(zip));
        }
    }

    // Codes of four columns as 16-bit pairs (columns 0, 1 and 2, 3) per position.
    static void pairs(const uint8_t* codes, int quad, I (&w)[2][2]) {
        for (int pair = 0; pair < 2; ++pair) {
            const uint8_t* p = codes + (quad * 4 + pair * 2) * at.col_stride;
            if constexpr (is_q8(K)) {
                for (int v = 0; v < 2; ++v) {
                    const __m128i a = V::load16(p + v * at.half_stride);
                    const __m128i b = V::load16(p + v * at.half_stride + at.col_stride);
                    w[pair][v] = _mm512_cvtepi8_epi16(
                        _mm256_set_m128i(_mm_unpackhi_epi8(a, b), _mm_unpacklo_epi8(a, b)));
                }
            } else {
                const I both = _mm512_cvtepu8_epi16(joined(p));
                w[pair][0] = _mm512_and_si512(both, _mm512_set1_epi16(15));
                w[pair][1] = _mm512_srli_epi16(both, 4);
                if constexpr (K == Kind::Q4_0) {
                    w[pair][0] = _mm512_srai_epi16(_mm512_slli_epi16(both, 12), 12);
                    w[pair][1] = _mm512_srai_epi16(_mm512_slli_epi16(both, 8), 12);
                }
            }
        }
    }

    // Codes of four columns as float32.
    static void values(const uint8_t* codes, int quad, F (&q)[4][2]) {
        for (int c = 0; c < 4; ++c) {
            const uint8_t* p = codes + (quad * 4 + c) * at.col_stride;
            if constexpr (is_q8(K)) {
                q[c][0] = V::to_float(V::load_int8(p));
                q[c][1] = V::to_float(V::load_int8(p + at.half_stride));
            } else {
                const __m128i halves = _mm_unpacklo_epi64(
                    _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)),
                    _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + at.half_stride)));
                const I raw = _mm512_cvtepu8_epi32(halves);
                // A table look-up by the low four bits of each lane.
                const F table =
                    K == Kind::Q4_0
                        ? _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)
                        : _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
                q[c][0] = _mm512_permutexvar_ps(raw, table);
                q[c][1] = _mm512_permutexvar_ps(_mm512_srli_epi32(raw, 4), table);
            }
        }
    }
};

using SliceByte = SliceI8Wide;

#include "linear_wide.inc.h"

inline void store_byte_codes(SliceByte& slice, int c, I q) { V::store_i16(slice.q + c, q); }
inline void set_byte_sum(SliceByte&, int, int32_t) {}

template <Kind K>
inline I start_byte_dot(const SliceByte&, int) {
    return V::izero();
}
template <Kind K>
inline I end_byte_dot(I acc, const SliceByte&, int) {
    return acc;
}

template <Kind K, int MR>
inline void byte_dots(const uint8_t* codes, int quad, const SliceByte* x, int g, I (&acc)[MR][NV]) {
    wide_dots<K>(codes, quad, x, g, acc);
}

template <Kind K>
inline void decode_bytes(const uint8_t* tile, int groups, TileScratch& scratch) {
    decode_pairs<K>(tile, groups, scratch);
}

template <Kind K, int MR>
inline void group_byte_dots(const TileScratch& scratch, int g, int v0, const SliceByte* x,
                            I (&acc)[MR][NB]) {
    group_wide_dots(scratch, g, v0, x, acc);
}

#include "linear_dense.inc.h"
#include "linear_pack.inc.h"
#include "linear_tiles.inc.h"

#include "linear_strips.inc.h"

}  // namespace

const LinearKernels kLinearAvx512 = {Isa::Avx512, pack_rows, linear_strips};

}  // namespace onebit
