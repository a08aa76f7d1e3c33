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

#include "linear_quads.inc.h"

template <Kind K, int MR>
inline void byte_dots(const uint8_t* codes, int quad, const SliceByte* x, int g, I (&acc)[MR][NV]) {
    if constexpr (is_q8(K)) {
        wide_dots<K>(codes, quad, x, g, acc);
    } else {
        quad_dots<K>(codes, quad, x, g, acc);
    }
}

template <Kind K>
void decode_bytes(const uint8_t* tile, int groups, TileScratch& scratch) {
    if constexpr (is_q8(K)) {
        decode_pairs<K>(tile, groups, scratch);
    } else {
        decode_quads<K>(tile, groups, scratch);
    }
}

template <Kind K, int MR>
inline void group_byte_dots(const TileScratch& scratch, int g, int v0, const SliceByte* x,
                            I (&acc)[MR][NB]) {
    if constexpr (is_q8(K)) {
        group_wide_dots(scratch, g, v0, x, acc);
    } else {
        group_quad_dots<K>(scratch, g, v0, x, acc);
    }
}
