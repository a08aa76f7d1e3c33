// I8 numerics through 16-bit dot products. Included before linear_tiles and linear_pack, after
// SliceByte (whose `q` are 16-bit codes) is chosen.

template <Kind K, int MR>
inline void wide_dots(const uint8_t* codes, int quad, const SliceByte* x, int g, I (&acc)[MR][NV]) {
    I w[2][NV];
    Codec<K>::pairs(codes, quad, w);
#pragma GCC unroll 2
    for (int pair = 0; pair < 2; ++pair) {
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) {
            const I q = V::all4(x[r].q + g * kGroupCols + quad * 4 + pair * 2);
#pragma GCC unroll 4
            for (int v = 0; v < NV; ++v) {
                acc[r][v] = V::dot16(acc[r][v], w[pair][v], q);
            }
        }
    }
}

template <Kind K>
void decode_pairs(const uint8_t* tile, int groups, TileScratch& scratch);

template <int MR>
inline void group_dots(const TileScratch& scratch, int g, int v0, const int16_t* q,
                       ptrdiff_t stride, I (&acc)[MR][NB]);

template <int MR>
inline void group_wide_dots(const TileScratch& scratch, int g, int v0, const SliceByte* x,
                            I (&acc)[MR][NB]) {
    group_dots<MR>(scratch, g, v0, x->q, sizeof(SliceByte) / sizeof(int16_t), acc);
}
