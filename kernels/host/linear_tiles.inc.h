// Linear kernels on tiles, for any vector width. Included once by each instruction set's source,
// inside its own anonymous namespace, after `V` (vector ops), `Codec<K>` (tile decoding) and the
// constants below are defined there:
//
//   V::F, V::I     float and int32 vectors of V::L lanes; V::NV = 32 / V::L of them are a strip
//   V::kVectors    vectors of outputs that the blocked kernels handle at once
//   V::kRowsInt, V::kRowsF32     rows of activations that the blocked kernels handle at once
//   V::kFusedInt, V::kFusedF32   up to so many rows, tiles are decoded in registers instead
//   Codec<K>::kBytes             whether 8-bit dot products are used for I8
//
// Lanes hold outputs in the order that decoding gives cheapest ("positions"): even rows then odd
// rows for 4-bit kinds, rows in order for 8-bit kinds. Only finish() puts them back in order.

// So many groups ahead of the one that is computed are prefetched: evenly, since a burst of lines
// waits for the first of them.
constexpr int kAhead = kGroups;

// A strip's tiles, one after the other. Its groups are counted through all tiles.
template <Kind K>
struct Tiles {
    Tiles(const Weight& weight, int strip)
        : bytes(strip_bytes<K>(weight.cols)),
          first(weight.data + static_cast<size_t>(strip) * bytes),
          cols(weight.cols),
          count(slice_count(weight.cols)),
          all_groups(static_cast<unsigned>((weight.cols + kGroupCols - 1) / kGroupCols)) {}

    const uint8_t* tile(int u) const {
        return first + static_cast<size_t>(u) * tile_layout(K).bytes;
    }
    int groups(int u) const { return slice_groups(cols, u); }

    size_t bytes;
    const uint8_t* first;
    int cols, count;
    unsigned all_groups;
};

// A group that will be needed, for prefetch.
struct Ahead {
    const uint8_t* tile;
    unsigned g;
};

// Group `group` of the strip; beyond its last, those of the strips that follow.
template <Kind K>
inline Ahead ahead_of(const Tiles<K>& tiles, unsigned group) {
    const uint8_t* strip = tiles.first;
    while (group >= tiles.all_groups) {
        group -= tiles.all_groups;
        strip += tiles.bytes;
    }
    return {strip + size_t{group / kGroups} * tile_layout(K).bytes, group % kGroups};
}

// The group that is prefetched while group g of tile u is computed.
inline unsigned later(int u, int g) { return static_cast<unsigned>(u * kGroups + g + kAhead); }

// Prefetches the lines congruent to `part` modulo `parts`.
template <Kind K>
inline void prefetch(const Ahead& ahead, int part, int parts) {
    static constexpr GroupLines lines = group_lines(K);  // static: else built anew at each call
    for (int i = part; i < lines.count; i += parts) {
        V::prefetch(ahead.tile + lines.line[i].base + ahead.g * lines.line[i].step);
    }
}

// ---- few rows: decode in registers ----

template <Kind K, int MR>
struct FusedF32 {
    using Slice = SliceF32;
    static void group(const uint8_t* tile, int g, const Slice* x, const Ahead& ahead,
                      F (&acc)[2][MR][NV]) {
        F d[NV];
        F m[NV];
        Codec<K>::scales(tile, g, d, m);
        const uint8_t* codes = group_codes<K>(tile, g);
#pragma GCC unroll 8
        for (int quad = 0; quad < 8; ++quad) {
            prefetch<K>(ahead, quad, 8);
            F q[4][NV];
            Codec<K>::values(codes, quad, q);
#pragma GCC unroll 4
            for (int c = 0; c < 4; ++c) {
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) {
                    const F w = weight_vector<K>(q[c][v], d[v], m[v]);
#pragma GCC unroll 8
                    for (int r = 0; r < MR; ++r) {
                        acc[c % 2][r][v] =
                            V::fma(w, V::set1(x[r].x[g * kGroupCols + quad * 4 + c]),
                                   acc[c % 2][r][v]);
                    }
                }
            }
        }
    }

    static void tile(const Tiles<K>& tiles, int u, const Slice* x, float (*y)[kStripRows]) {
        const uint8_t* at = tiles.tile(u);
        const int groups = tiles.groups(u);
        F acc[2][MR][NV];
        for (auto& half : acc) {
            for (auto& row : half) {
                for (F& a : row) {
                    a = V::zero();
                }
            }
        }
        for (int g = 0; g < groups; ++g) {
            group(at, g, x, ahead_of(tiles, later(u, g)), acc);
        }
        for (int r = 0; r < MR; ++r) {
            for (int v = 0; v < NV; ++v) {
                float* to = y[r] + v * V::L;
                V::store(to, V::add(V::load(to), V::add(acc[0][r][v], acc[1][r][v])));
            }
        }
    }
};

template <Kind K, int MR>
struct FusedI16 {
    using Slice = SliceI16;
    static void tile(const Tiles<K>& tiles, int u, const Slice* x, float (*y)[kStripRows]) {
        const uint8_t* at = tiles.tile(u);
        const int groups = tiles.groups(u);
        F part[MR][NV];
        for (auto& row : part) {
            for (F& p : row) {
                p = V::zero();
            }
        }
        for (int g = 0; g < groups; ++g) {
            const Ahead ahead = ahead_of(tiles, later(u, g));
            const uint8_t* codes = group_codes<K>(at, g);
            I acc[MR][NV];
            for (auto& row : acc) {
                for (I& a : row) {
                    a = V::izero();
                }
            }
#pragma GCC unroll 8
            for (int quad = 0; quad < 8; ++quad) {
                prefetch<K>(ahead, quad, 8);
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
            F d[NV];
            F m[NV];
            Codec<K>::scales(at, g, d, m);
            integer_zeros<K>(d, m);
#pragma GCC unroll 8
            for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) {
                    part[r][v] = V::fma(d[v], V::to_float(acc[r][v]), part[r][v]);
                    if constexpr (has_zero(K)) {
                        part[r][v] = V::fma(m[v], V::set1(x[r].sum[g]), part[r][v]);
                    }
                }
            }
        }
        for (int r = 0; r < MR; ++r) {
            for (int v = 0; v < NV; ++v) {
                float* to = y[r] + v * V::L;
                V::store(to, V::fma(V::set1(x[r].scale), part[r][v], V::load(to)));
            }
        }
    }
};

template <Kind K, int MR>
struct FusedI8 {
    using Slice = SliceByte;
    static void tile(const Tiles<K>& tiles, int u, const Slice* x, float (*y)[kStripRows]) {
        const uint8_t* at = tiles.tile(u);
        const int groups = tiles.groups(u);
        F sum[MR][NV];
        for (int r = 0; r < MR; ++r) {
            for (int v = 0; v < NV; ++v) {
                sum[r][v] = V::load(y[r] + v * V::L);
            }
        }
        for (int g = 0; g < groups; ++g) {
            const Ahead ahead = ahead_of(tiles, later(u, g));
            const uint8_t* codes = group_codes<K>(at, g);
            I acc[MR][NV];
            for (int r = 0; r < MR; ++r) {
                for (int v = 0; v < NV; ++v) {
                    acc[r][v] = start_byte_dot<K>(x[r], g);
                }
            }
#pragma GCC unroll 8
            for (int quad = 0; quad < 8; ++quad) {
                prefetch<K>(ahead, quad, 8);
                byte_dots<K, MR>(codes, quad, x, g, acc);
            }
            F d[NV];
            F m[NV];
            Codec<K>::scales(at, g, d, m);
            integer_zeros<K>(d, m);
#pragma GCC unroll 8
            for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
                for (int v = 0; v < NV; ++v) {
                    const F dot = V::to_float(end_byte_dot<K>(acc[r][v], x[r], g));
                    sum[r][v] = V::fma(d[v], V::mul(dot, V::set1(x[r].scale[g])), sum[r][v]);
                    if constexpr (has_zero(K)) {
                        sum[r][v] = V::fma(m[v], V::set1(x[r].zero[g]), sum[r][v]);
                    }
                }
            }
        }
        for (int r = 0; r < MR; ++r) {
            for (int v = 0; v < NV; ++v) {
                V::store(y[r] + v * V::L, sum[r][v]);
            }
        }
    }
};

// ---- more rows: decode a tile once, then blocks of rows ----

template <Kind K>
void decode_values(const uint8_t* tile, int groups, TileScratch& scratch) {
    for (int g = 0; g < groups; ++g) {
        F d[NV];
        F m[NV];
        Codec<K>::scales(tile, g, d, m);
        const uint8_t* codes = group_codes<K>(tile, g);
#pragma GCC unroll 2
        for (int quad = 0; quad < 8; ++quad) {
            F q[4][NV];
            Codec<K>::values(codes, quad, q);
            for (int c = 0; c < 4; ++c) {
                for (int v = 0; v < NV; ++v) {
                    V::store(scratch.f32[g * kGroupCols + quad * 4 + c] + v * V::L,
                             weight_vector<K>(q[c][v], d[v], m[v]));
                }
            }
        }
    }
}

template <Kind K>
void decode_scales(const uint8_t* tile, int g, TileScratch& scratch) {
    F d[NV];
    F m[NV];
    Codec<K>::scales(tile, g, d, m);
    integer_zeros<K>(d, m);
    for (int v = 0; v < NV; ++v) {
        V::store(scratch.d[g] + v * V::L, d[v]);
        if constexpr (has_zero(K)) {
            V::store(scratch.m[g] + v * V::L, m[v]);
        }
    }
}

template <Kind K>
void decode_pairs(const uint8_t* tile, int groups, TileScratch& scratch) {
    for (int g = 0; g < groups; ++g) {
        decode_scales<K>(tile, g, scratch);
        const uint8_t* codes = group_codes<K>(tile, g);
#pragma GCC unroll 4
        for (int quad = 0; quad < 8; ++quad) {
            I w[2][NV];
            Codec<K>::pairs(codes, quad, w);
            for (int pair = 0; pair < 2; ++pair) {
                for (int v = 0; v < NV; ++v) {
                    V::istore(scratch.i16[g * 16 + quad * 2 + pair][v * V::L], w[pair][v]);
                }
            }
        }
    }
}

template <Kind K, int MR>
void block_f32(const TileScratch& scratch, const Tiles<K>& tiles, int u, const SliceF32* x, int part,
               int parts, float (*y)[kStripRows]) {
    const int groups = tiles.groups(u);
    for (int v0 = 0; v0 < NV; v0 += NB) {
        F acc[2][MR][NB];
        for (auto& half : acc) {
            for (auto& row : half) {
                for (F& a : row) {
                    a = V::zero();
                }
            }
        }
        for (int g = 0; g < groups; ++g) {
            if (v0 == 0) {
                prefetch<K>(ahead_of(tiles, later(u, g)), part, parts);
            }
#pragma GCC unroll 2
            for (int c = g * kGroupCols; c < (g + 1) * kGroupCols; c += 2) {
#pragma GCC unroll 2
                for (int odd = 0; odd < 2; ++odd) {
                    F w[NB];
#pragma GCC unroll 4
                    for (int v = 0; v < NB; ++v) {
                        w[v] = V::load(scratch.f32[c + odd] + (v0 + v) * V::L);
                    }
#pragma GCC unroll 8
                    for (int r = 0; r < MR; ++r) {
                        const F a = V::set1(x[r].x[c + odd]);
#pragma GCC unroll 4
                        for (int v = 0; v < NB; ++v) {
                            acc[odd][r][v] = V::fma(w[v], a, acc[odd][r][v]);
                        }
                    }
                }
            }
        }
        for (int r = 0; r < MR; ++r) {
            for (int v = 0; v < NB; ++v) {
                float* to = y[r] + (v0 + v) * V::L;
                V::store(to, V::add(V::load(to), V::add(acc[0][r][v], acc[1][r][v])));
            }
        }
    }
}

// The exact dot products of one group, 16-bit codes.
template <int MR>
inline void group_dots(const TileScratch& scratch, int g, int v0, const int16_t* q,
                       ptrdiff_t stride, I (&acc)[MR][NB]) {
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < NB; ++v) {
            acc[r][v] = V::izero();
        }
    }
#pragma GCC unroll 16
    for (int pair = 0; pair < kGroupCols / 2; ++pair) {
        I w[NB];
#pragma GCC unroll 4
        for (int v = 0; v < NB; ++v) {
            w[v] = V::iload(scratch.i16[g * 16 + pair][(v0 + v) * V::L]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) {
            const I a = V::all4(q + r * stride + g * kGroupCols + pair * 2);
#pragma GCC unroll 4
            for (int v = 0; v < NB; ++v) {
                acc[r][v] = V::dot16(acc[r][v], w[v], a);
            }
        }
    }
}

template <Kind K, int MR>
void block_i16(const TileScratch& scratch, const Tiles<K>& tiles, int u, const SliceI16* x, int part,
               int parts, float (*y)[kStripRows]) {
    const int groups = tiles.groups(u);
    constexpr ptrdiff_t kStride = sizeof(SliceI16) / sizeof(int16_t);
    for (int v0 = 0; v0 < NV; v0 += NB) {
        F sum[MR][NB];
        for (auto& row : sum) {
            for (F& s : row) {
                s = V::zero();
            }
        }
        for (int g = 0; g < groups; ++g) {
            if (v0 == 0) {
                prefetch<K>(ahead_of(tiles, later(u, g)), part, parts);
            }
            I acc[MR][NB];
            group_dots<MR>(scratch, g, v0, x->q, kStride, acc);
#pragma GCC unroll 4
            for (int v = 0; v < NB; ++v) {
                const F d = V::load(scratch.d[g] + (v0 + v) * V::L);
#pragma GCC unroll 8
                for (int r = 0; r < MR; ++r) {
                    sum[r][v] = V::fma(d, V::to_float(acc[r][v]), sum[r][v]);
                }
                if constexpr (has_zero(K)) {
                    const F m = V::load(scratch.m[g] + (v0 + v) * V::L);
#pragma GCC unroll 8
                    for (int r = 0; r < MR; ++r) {
                        sum[r][v] = V::fma(m, V::set1(x[r].sum[g]), sum[r][v]);
                    }
                }
            }
        }
        for (int r = 0; r < MR; ++r) {
            for (int v = 0; v < NB; ++v) {
                float* to = y[r] + (v0 + v) * V::L;
                V::store(to, V::fma(V::set1(x[r].scale), sum[r][v], V::load(to)));
            }
        }
    }
}

template <Kind K, int MR>
void block_i8(const TileScratch& scratch, const Tiles<K>& tiles, int u, const SliceByte* x, int part,
               int parts, float (*y)[kStripRows]) {
    const int groups = tiles.groups(u);
    for (int v0 = 0; v0 < NV; v0 += NB) {
        F sum[MR][NB];
        for (int r = 0; r < MR; ++r) {
            for (int v = 0; v < NB; ++v) {
                sum[r][v] = V::load(y[r] + (v0 + v) * V::L);
            }
        }
        for (int g = 0; g < groups; ++g) {
            if (v0 == 0) {
                prefetch<K>(ahead_of(tiles, later(u, g)), part, parts);
            }
            I acc[MR][NB];
            group_byte_dots<K, MR>(scratch, g, v0, x, acc);
#pragma GCC unroll 4
            for (int v = 0; v < NB; ++v) {
                const F d = V::load(scratch.d[g] + (v0 + v) * V::L);
#pragma GCC unroll 8
                for (int r = 0; r < MR; ++r) {
                    const F dot = V::mul(V::to_float(acc[r][v]), V::set1(x[r].scale[g]));
                    sum[r][v] = V::fma(d, dot, sum[r][v]);
                }
                if constexpr (has_zero(K)) {
                    const F m = V::load(scratch.m[g] + (v0 + v) * V::L);
#pragma GCC unroll 8
                    for (int r = 0; r < MR; ++r) {
                        sum[r][v] = V::fma(m, V::set1(x[r].zero[g]), sum[r][v]);
                    }
                }
            }
        }
        for (int r = 0; r < MR; ++r) {
            for (int v = 0; v < NB; ++v) {
                V::store(y[r] + (v0 + v) * V::L, sum[r][v]);
            }
        }
    }
}

// ---- one numerics: which slice, which kernels ----

template <Kind K>
struct PathF32 {
    using Slice = SliceF32;
    static constexpr int kFused = V::kFusedF32;
    static constexpr int kRows = V::kRowsF32;
    static void decode(const uint8_t* tile, int groups, TileScratch& scratch) {
        decode_values<K>(tile, groups, scratch);
    }
    template <int MR>
    using Fused = FusedF32<K, MR>;
    template <int MR>
    static constexpr auto kBlock = block_f32<K, MR>;
};

template <Kind K>
struct PathI16 {
    using Slice = SliceI16;
    static constexpr int kFused = V::kFusedInt;
    static constexpr int kRows = V::kRowsInt;
    static void decode(const uint8_t* tile, int groups, TileScratch& scratch) {
        decode_pairs<K>(tile, groups, scratch);
    }
    template <int MR>
    using Fused = FusedI16<K, MR>;
    template <int MR>
    static constexpr auto kBlock = block_i16<K, MR>;
};

template <Kind K>
struct PathI8 {
    using Slice = SliceByte;
    static constexpr int kFused = V::kFusedInt;
    static constexpr int kRows = V::kRowsInt;
    static void decode(const uint8_t* tile, int groups, TileScratch& scratch) {
        decode_bytes<K>(tile, groups, scratch);
    }
    template <int MR>
    using Fused = FusedI8<K, MR>;
    template <int MR>
    static constexpr auto kBlock = block_i8<K, MR>;
};

template <Kind K>
void finish_row(const float* sums, int n, float* y, const float* bias, float scale) {
    F rows[NV];
    V::in_order(sums, !is_q8(K), rows);
    float partial[kStripRows];
    if (n == kStripRows) {
        for (int v = 0; v < NV; ++v) {
            F value = rows[v];
            if (bias != nullptr) {
                value = V::add(value, V::loadu(bias + v * V::L));
            }
            V::storeu(y + v * V::L, scale != 1.0F ? V::mul(value, V::set1(scale)) : value);
        }
        return;
    }
    for (int v = 0; v < NV; ++v) {
        V::storeu(partial + v * V::L, rows[v]);
    }
    for (int i = 0; i < n; ++i) {
        const float value = bias != nullptr ? partial[i] + bias[i] : partial[i];
        y[i] = scale != 1.0F ? value * scale : value;
    }
}

template <Kind K, class Path>
void strip_block(const Tiles<K>& tiles, const typename Path::Slice* slices, int rows, int first,
                 int count, TileScratch& scratch) {
    for (int r = 0; r < count; ++r) {
        for (int v = 0; v < NV; ++v) {
            V::store(scratch.y[r] + v * V::L, V::zero());
        }
    }
    for (int u = 0; u < tiles.count; ++u) {
        const auto* x = slices + static_cast<ptrdiff_t>(u) * rows + first;
        if (count <= Path::kFused) {
            with_rows<Path::kFused>(count, [&]<int MR>() {
                Path::template Fused<MR>::tile(tiles, u, x, scratch.y);
            });
            continue;
        }
        Path::decode(tiles.tile(u), tiles.groups(u), scratch);
        // Blocks as even as can be: 8 rows are 4 + 4.
        const int blocks = (count + Path::kRows - 1) / Path::kRows;
        for (int b = 0, r = 0; b < blocks; ++b) {
            const int n = (count - r + blocks - b - 1) / (blocks - b);
            with_rows<Path::kRows>(n, [&]<int MR>() {
                Path::template kBlock<MR>(scratch, tiles, u, x + r, b, blocks, scratch.y + r);
            });
            r += n;
        }
    }
}

template <Kind K, class Path>
void tiled_strips(const Weight& weight, const std::byte* packed, int rows, int begin, int end,
                  float* y, ptrdiff_t ldy, const float* bias, float scale, TileScratch& scratch) {
    const auto* slices = reinterpret_cast<const typename Path::Slice*>(packed);
    // A block of rows meets all strips before the next: together the rows outgrow the caches.
    for (int first = 0; first < rows; first += kRowBlock) {
        const int count = rows - first < kRowBlock ? rows - first : kRowBlock;
        for (int strip = begin; strip < end; ++strip) {
            const Tiles<K> tiles(weight, strip);
            for (unsigned g = 0; strip == begin && g < kAhead; ++g) {
                prefetch<K>(ahead_of(tiles, g), 0, 1);
            }
            const int out = strip * kStripRows;
            const int n = weight.rows - out < kStripRows ? weight.rows - out : kStripRows;
            strip_block<K, Path>(tiles, slices, rows, first, count, scratch);
            for (int r = 0; r < count; ++r) {
                finish_row<K>(scratch.y[r], n, y + (first + r) * ldy + out,
                              bias != nullptr ? bias + out : nullptr, scale);
            }
        }
    }
}
