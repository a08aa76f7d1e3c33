// I8 numerics for AVX2: 8-bit products for 4-bit kinds, whose sums over a group fit 16 bits; 16-bit
// products for the others. Included before linear_tiles and linear_pack.

using SliceByte = SliceI8Both;

#include "linear_wide.inc.h"

inline void store_byte_codes(SliceByte& slice, int c, I q) {
    V::store_i16(slice.q + c, q);
    V::store_i8(slice.q8 + c, q);
}
inline void set_byte_sum(SliceByte& slice, int g, int32_t sum) { slice.sum[g] = sum; }

template <Kind K>
inline I start_byte_dot(const SliceByte&, int) {
    return V::izero();
}

// The dot product of a group from what byte_dots summed; takes back what code_offset adds.
template <Kind K>
inline I end_byte_dot(I acc, const SliceByte& x, int g) {
    if constexpr (is_q8(K)) {
        return acc;
    } else if constexpr (code_offset(K) != 0) {
        return _mm256_sub_epi32(V::widened(acc), _mm256_set1_epi32(code_offset(K) * x.sum[g]));
    } else {
        return V::widened(acc);
    }
}

template <Kind K, int MR>
inline void byte_dots(const uint8_t* codes, int quad, const SliceByte* x, int g, I (&acc)[MR][NV]) {
    if constexpr (is_q8(K)) {
        wide_dots<K>(codes, quad, x, g, acc);
    } else {
        I w[NV];
        Codec<K>::quads(codes, quad, w);
#pragma GCC unroll 4
        for (int r = 0; r < MR; ++r) {
            const I q = V::all4(x[r].q8 + g * kGroupCols + quad * 4);
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) {
                acc[r][v] = V::dot8(acc[r][v], w[v], q);
            }
        }
    }
}

template <Kind K>
void decode_scales(const uint8_t* tile, int g, TileScratch& scratch);

template <Kind K>
void decode_bytes(const uint8_t* tile, int groups, TileScratch& scratch) {
    if constexpr (is_q8(K)) {
        decode_pairs<K>(tile, groups, scratch);
    } else {
        for (int g = 0; g < groups; ++g) {
            decode_scales<K>(tile, g, scratch);
            const uint8_t* codes = group_codes<K>(tile, g);
#pragma GCC unroll 8
            for (int quad = 0; quad < 8; ++quad) {
                I w[NV];
                Codec<K>::quads(codes, quad, w);
                for (int v = 0; v < NV; ++v) {
                    V::istore(scratch.u8[g * 8 + quad][v * V::L], w[v]);
                }
            }
        }
    }
}

template <Kind K, int MR>
inline void group_byte_dots(const TileScratch& scratch, int g, int v0, const SliceByte* x,
                            I (&acc)[MR][NB]) {
    if constexpr (is_q8(K)) {
        group_wide_dots(scratch, g, v0, x, acc);
    } else {
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) {
            for (I& a : acc[r]) {
                a = V::izero();
            }
        }
#pragma GCC unroll 8
        for (int quad = 0; quad < 8; ++quad) {
            I w[NB];
#pragma GCC unroll 4
            for (int v = 0; v < NB; ++v) {
                w[v] = V::iload(scratch.u8[g * 8 + quad][(v0 + v) * V::L]);
            }
#pragma GCC unroll 8
            for (int r = 0; r < MR; ++r) {
                const I q = V::all4(x[r].q8 + g * kGroupCols + quad * 4);
#pragma GCC unroll 4
                for (int v = 0; v < NB; ++v) {
                    acc[r][v] = V::dot8(acc[r][v], w[v], q);
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
            for (int v = 0; v < NB; ++v) {
                acc[r][v] = end_byte_dot<K>(acc[r][v], x[r], g);
            }
        }
    }
}
