// I8 numerics through 8-bit products of unsigned codes (Codec<K>::quads) and signed activations.
// Included before linear_tiles and linear_pack, after SliceByte (whose `q8` are the activations),
// V::dot8, start_byte_dot and end_byte_dot are defined.

template <Kind K, int MR>
inline void quad_dots(const uint8_t* codes, int quad, const SliceByte* x, int g, I (&acc)[MR][NV]) {
    I w[NV];
    Codec<K>::quads(codes, quad, w);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
        const I q = V::all4(x[r].q8 + g * kGroupCols + quad * 4);
#pragma GCC unroll 4
        for (int v = 0; v < NV; ++v) {
            acc[r][v] = V::dot8(acc[r][v], w[v], q);
        }
    }
}

template <Kind K>
void decode_scales(const uint8_t* tile, int g, TileScratch& scratch);

template <Kind K>
void decode_quads(const uint8_t* tile, int groups, TileScratch& scratch) {
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

template <Kind K, int MR>
inline void group_quad_dots(const TileScratch& scratch, int g, int v0, const SliceByte* x,
                            I (&acc)[MR][NB]) {
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
        for (I& a : acc[r]) {
            a = start_byte_dot<K>(x[r], g);
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
