// Linear kernels for AVX-512 with VNNI (dot products of 8- and 16-bit integers) and VBMI (byte
// permutes over a whole register).

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
    static I dot16(I acc, I w, I x) { return _mm512_dpwssd_epi32(acc, w, x); }
    static I dot8(I acc, I unsigned_w, I x) { return _mm512_dpbusd_epi32(acc, unsigned_w, x); }
};

#include "linear_codec.inc.h"

// For every 32-bit lane, the four bytes that a permute takes: byte k from
// order[k] * column + lane_byte(lane).
template <int Column, class LaneByte>
constexpr auto lane_bytes(const int (&order)[4], LaneByte lane_byte) {
    struct Table {
        alignas(64) uint8_t at[64];
    } table{};
    for (int lane = 0; lane < 16; ++lane) {
        for (int k = 0; k < 4; ++k) {
            table.at[lane * 4 + k] = static_cast<uint8_t>(order[k] * Column + lane_byte(lane));
        }
    }
    return table;
}

constexpr int kNatural[4] = {0, 1, 2, 3};
// Columns 0 and 1 as the low, 2 and 3 as the high bytes of the lane's two 16-bit halves.
constexpr int kPaired[4] = {0, 2, 1, 3};

// Four columns of 4-bit codes: a lane holds two rows (low and high nibbles) of four columns.
template <Kind K, const int (&Order)[4]>
inline I nibbles(const uint8_t* codes, int quad) {
    constexpr TileLayout at = tile_layout(K);
    const uint8_t* p = codes + quad * 4 * at.col_stride;
    I raw;
    if constexpr (K == Kind::Q4_K) {
        static constexpr auto kIndex = lane_bytes<16>(Order, [](int lane) { return lane; });
        raw = _mm512_permutexvar_epi8(_mm512_load_si512(kIndex.at), _mm512_loadu_si512(p));
    } else {
        static constexpr auto kIndex =
            lane_bytes<8>(Order, [](int lane) { return lane / 8 * 32 + lane % 8; });
        const I halves = _mm512_inserti64x4(_mm512_castsi256_si512(V::load32(p)),
                                            V::load32(p + at.half_stride), 1);
        raw = _mm512_permutexvar_epi8(_mm512_load_si512(kIndex.at), halves);
    }
    return raw;
}

// Four columns of 8-bit codes of rows 16 v .. 16 v + 15, one row per lane.
template <Kind K, const int (&Order)[4]>
inline I bytes(const uint8_t* codes, int quad, int v) {
    constexpr TileLayout at = tile_layout(K);
    const uint8_t* p = codes + quad * 4 * at.col_stride;
    if constexpr (K == Kind::Q8_A) {
        static constexpr auto kLow = lane_bytes<32>(Order, [](int lane) { return lane; });
        static constexpr auto kHigh = lane_bytes<32>(Order, [](int lane) { return 16 + lane; });
        return _mm512_permutex2var_epi8(_mm512_loadu_si512(p),
                                        _mm512_load_si512(v == 0 ? kLow.at : kHigh.at),
                                        _mm512_loadu_si512(p + 64));
    } else {
        static constexpr auto kIndex = lane_bytes<16>(Order, [](int lane) { return lane; });
        return _mm512_permutexvar_epi8(_mm512_load_si512(kIndex.at),
                                       _mm512_loadu_si512(p + v * at.half_stride));
    }
}

template <Kind K>
struct Codec {
    static constexpr TileLayout at = tile_layout(K);

    static void scales(const uint8_t* tile, int g, F (&d)[2], F (&m)[2]) {
        tile_scales<K>(tile, g, d, m);
    }

    // Codes of four columns as 16-bit pairs (columns 0, 1 and 2, 3) per position.
    static void pairs(const uint8_t* codes, int quad, I (&w)[2][2]) {
        if constexpr (is_q8(K)) {
            for (int v = 0; v < 2; ++v) {
                const I raw = bytes<K, kPaired>(codes, quad, v);
                w[0][v] = _mm512_srai_epi16(_mm512_slli_epi16(raw, 8), 8);
                w[1][v] = _mm512_srai_epi16(raw, 8);
            }
        } else {
            const I raw = nibbles<K, kPaired>(codes, quad);
            if constexpr (K == Kind::Q4_0) {
                w[0][0] = _mm512_srai_epi16(_mm512_slli_epi16(raw, 12), 12);
                w[0][1] = _mm512_srai_epi16(_mm512_slli_epi16(raw, 8), 12);
                w[1][0] = _mm512_srai_epi16(_mm512_slli_epi16(raw, 4), 12);
                w[1][1] = _mm512_srai_epi16(raw, 12);
            } else {
                const I low = _mm512_set1_epi16(15);
                w[0][0] = _mm512_and_si512(raw, low);
                w[0][1] = _mm512_and_si512(_mm512_srli_epi16(raw, 4), low);
                w[1][0] = _mm512_and_si512(_mm512_srli_epi16(raw, 8), low);
                w[1][1] = _mm512_srli_epi16(raw, 12);
            }
        }
    }

    // Codes of four columns, plus code_offset, as bytes per position.
    static void quads(const uint8_t* codes, int quad, I (&w)[2]) {
        if constexpr (is_q8(K)) {
            for (int v = 0; v < 2; ++v) {
                w[v] = _mm512_xor_si512(bytes<K, kNatural>(codes, quad, v),
                                        _mm512_set1_epi8(static_cast<char>(0x80)));
            }
        } else {
            I raw = nibbles<K, kNatural>(codes, quad);
            if constexpr (K == Kind::Q4_0) {
                raw = _mm512_xor_si512(raw, _mm512_set1_epi8(static_cast<char>(0x88)));
            }
            const I low = _mm512_set1_epi8(15);
            w[0] = _mm512_and_si512(raw, low);
            w[1] = _mm512_and_si512(_mm512_srli_epi16(raw, 4), low);
        }
    }

    // Codes of four columns as float32.
    static void values(const uint8_t* codes, int quad, F (&q)[4][2]) {
        if constexpr (is_q8(K)) {
            const uint8_t* p = codes + quad * 4 * at.col_stride;
            for (int c = 0; c < 4; ++c) {
                for (int v = 0; v < 2; ++v) {
                    q[c][v] = V::to_float(V::load_int8(p + c * at.col_stride + v * at.half_stride));
                }
            }
        } else {
            // A table look-up by the low four bits of each lane.
            const F table = K == Kind::Q4_0
                                ? _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)
                                : _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            const I raw = nibbles<K, kNatural>(codes, quad);
#pragma GCC unroll 4
            for (unsigned c = 0; c < 4; ++c) {
#pragma GCC unroll 2
                for (unsigned v = 0; v < 2; ++v) {
                    q[c][v] =
                        _mm512_permutexvar_ps(_mm512_srli_epi32(raw, 8 * c + 4 * v), table);
                }
            }
        }
    }
};

using SliceByte = SliceI8;

inline void store_byte_codes(SliceByte& slice, int c, I q) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(slice.q8 + c), _mm512_cvtepi32_epi8(q));
}
inline void set_byte_sum(SliceByte& slice, int g, int32_t sum) { slice.sum[g] = sum; }

// Takes back what code_offset adds.
template <Kind K>
inline I start_byte_dot(const SliceByte& x, int g) {
    if constexpr (code_offset(K) != 0) {
        return V::iset1(-code_offset(K) * x.sum[g]);
    } else {
        return V::izero();
    }
}

template <Kind K>
inline I end_byte_dot(I acc, const SliceByte&, int) {
    return acc;
}

#include "linear_quads.inc.h"

template <Kind K, int MR>
inline void byte_dots(const uint8_t* codes, int quad, const SliceByte* x, int g, I (&acc)[MR][NV]) {
    quad_dots<K>(codes, quad, x, g, acc);
}

template <Kind K>
void decode_bytes(const uint8_t* tile, int groups, TileScratch& scratch) {
    decode_quads<K>(tile, groups, scratch);
}

template <Kind K, int MR>
inline void group_byte_dots(const TileScratch& scratch, int g, int v0, const SliceByte* x,
                            I (&acc)[MR][NB]) {
    group_quad_dots<K>(scratch, g, v0, x, acc);
}

#include "linear_dense.inc.h"
#include "linear_pack.inc.h"
#include "linear_tiles.inc.h"

#include "linear_strips.inc.h"

}  // namespace

const LinearKernels kLinearAvx512Vnni = {Isa::Avx512Vnni, pack_rows, linear_strips};

}  // namespace onebit
