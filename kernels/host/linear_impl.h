// What the linear kernels of all instruction sets share: packed activations and tile layouts.
//
// Functions here are static: sources compiled for different instruction sets include them, and a
// shared copy could hold instructions that the machine lacks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace onebit {

constexpr int kGroups = kTileCols / kGroupCols;  // groups per tile

// Packed activations: one slice per (256 columns, row), stored [column slice][row]. The records
// are a whole but odd number of 64-byte lines apart, so that the rows of a block do not fall
// onto the same cache sets; columns at or beyond `cols` hold zero.
struct alignas(64) SliceF32 {
    float x[kTileCols];
    float pad[16];
};

struct alignas(64) SliceI16 {
    int16_t q[kTileCols];
    float sum[kGroups];  // of q over the group, exact
    float scale;
    float pad[23];
};

// I8 where there are 8-bit dot products.
struct alignas(64) SliceI8 {
    int8_t q8[kTileCols];
    float scale[kGroups];
    float zero[kGroups];   // scale * float(sum of q)
    int32_t sum[kGroups];  // of q
    int32_t pad[8];
};

// I8 elsewhere: the same values, codes widened for 16-bit dot products.
struct alignas(64) SliceI8Wide {
    int16_t q[kTileCols];
    float scale[kGroups];
    float zero[kGroups];
    float pad[16];
};

// I8 with both widths of the codes: 8-bit products serve 4-bit kinds only.
struct alignas(64) SliceI8Both {
    int16_t q[kTileCols];
    int8_t q8[kTileCols];
    float scale[kGroups];
    float zero[kGroups];
    int32_t sum[kGroups];
    int32_t pad[24];
};

static_assert(sizeof(SliceF32) == 1088 && sizeof(SliceI16) == 640 && sizeof(SliceI8) == 384 &&
              sizeof(SliceI8Wide) == 640 && sizeof(SliceI8Both) == 960);

// Below this a block's largest magnitude counts as zero: its inverse would overflow.
constexpr float kTiny = 0x1p-100F;
// Bits of |x| from which on x is an infinity or NaN.
constexpr int32_t kNotFinite = 0x7f800000;

// Activation rows that share one decoded tile; their slices of one tile stay in the L2 cache.
constexpr int kRowBlock = 128;

// Per-thread scratch: outputs of one strip, then one decoded tile.
struct alignas(64) TileScratch {
    float y[kRowBlock][kStripRows];
    float d[kGroups][kStripRows];
    float m[kGroups][kStripRows];
    union {
        float f32[kTileCols][kStripRows];               // weights
        int16_t i16[kTileCols / 2][kStripRows][2];      // codes, column pairs
        uint8_t u8[kTileCols / 4][kStripRows][4];       // codes + code_offset, column quads
    };
};

static inline int slice_count(int cols) { return (cols + kTileCols - 1) / kTileCols; }

// Groups of the tile in column slice `slice` that begin before `cols`.
static inline int slice_groups(int cols, int slice) {
    int left = cols - slice * kTileCols;
    return left >= kTileCols ? kGroups : (left + kGroupCols - 1) / kGroupCols;
}

// Where the parts of a tile lie. "Tile" means 32 rows x 256 columns; kinds whose stored tiles are
// narrower have several of them side by side.
struct TileLayout {
    int bytes;        // of a tile of 256 columns
    int codes;        // codes of column c, rows 0..15: codes + c * col_stride, within a stored tile
    int col_stride;
    int half_stride;  // from rows 0..15 to rows 16..31
    int d, m;         // scales and zeros of group g: d + g * 64, m + g * 64 (Q4_K: + g * 32)
    int stored_bytes;
    int stored_groups;
};

static constexpr TileLayout tile_layout(Kind kind) {
    switch (kind) {
        case Kind::Q4_1:
        case Kind::Q4_0:
        case Kind::Q4NX: return {5120, 1024, 8, 2048, 0, 512, 5120, 8};
        case Kind::Q4_K: return {4736, 512, 16, 8, 0, 256, 4736, 8};
        case Kind::Q8_A: return {8704, 512, 32, 16, 0, 0, 8704, 8};
        case Kind::Q8_B: return {8704, 512, 16, 4096, 0, 0, 8704, 8};
        case Kind::Q4_1_X64: return {5120, 256, 8, 512, 0, 128, 1280, 2};
        case Kind::Q8_IN_Q4: return {10240, 512, 16, 2048, 0, 0, 5120, 4};
        default: return {0, 0, 0, 0, 0, 0, 0, 0};
    }
}

// Q4_K: bfloat16 per row, the scales of the scales and of the zeros.
constexpr int kQ4kS = 4608;
constexpr int kQ4kM = 4672;

// The stored tile that holds group g, and the group's index in it.
template <Kind K>
static inline const uint8_t* stored_tile(const uint8_t* tile, int& g) {
    constexpr TileLayout at = tile_layout(K);
    if constexpr (at.stored_groups != kGroups) {
        tile += g / at.stored_groups * at.stored_bytes;
        g %= at.stored_groups;
    }
    return tile;
}

// Codes of group g's first column, rows 0..15.
template <Kind K>
static inline const uint8_t* group_codes(const uint8_t* tile, int g) {
    constexpr TileLayout at = tile_layout(K);
    tile = stored_tile<K>(tile, g);
    return tile + at.codes + g * kGroupCols * at.col_stride;
}

static constexpr bool is_q8(Kind kind) {
    return kind == Kind::Q8_A || kind == Kind::Q8_B || kind == Kind::Q8_IN_Q4;
}

// Whether values have a zero (m or z) next to the scale.
static constexpr bool has_zero(Kind kind) { return !is_q8(kind) && kind != Kind::Q4_0; }

// What makes the signed codes of `kind` unsigned when it is added.
static constexpr int code_offset(Kind kind) { return is_q8(kind) ? 128 : kind == Kind::Q4_0 ? 8 : 0; }

// Bytes of a row of tiles.
template <Kind K>
static inline size_t strip_bytes(int cols) {
    constexpr TileLayout at = tile_layout(K);
    constexpr int width = at.stored_groups * kGroupCols;
    return static_cast<size_t>((cols + width - 1) / width) * at.stored_bytes;
}

// Cache lines of a tile's group g, as byte offsets base + g * step: what to prefetch for it.
struct GroupLines {
    struct Line {
        int base, step;
    };
    int count;
    Line line[20];
};

static constexpr GroupLines group_lines(Kind kind) {
    GroupLines lines{};
    auto run = [&lines](int base, int step, int bytes) {
        for (int i = 0; i < bytes; i += 64) {
            lines.line[lines.count++] = {base + i, step};
        }
    };
    switch (kind) {
        case Kind::Q4_1:
        case Kind::Q4NX:
            run(512, 64, 64);
            [[fallthrough]];
        case Kind::Q4_0:
            run(0, 64, 64);
            run(1024, 256, 256);
            run(3072, 256, 256);
            break;
        case Kind::Q4_K:
            run(0, 32, 32);
            run(256, 32, 32);
            run(512, 512, 512);
            run(kQ4kS, 0, 128);
            break;
        case Kind::Q8_A:
            run(0, 64, 64);
            run(512, 1024, 1024);
            break;
        case Kind::Q8_B:
            run(0, 64, 64);
            run(512, 512, 512);
            run(4608, 512, 512);
            break;
        default:
            run(0, tile_layout(kind).bytes / kGroups, tile_layout(kind).bytes / kGroups);
            break;
    }
    return lines;
}

// Calls `call.operator()<K>()` with the kind as a constant.
template <class Call>
static inline void visit_tiled(Kind kind, Call&& call) {
    switch (kind) {
        case Kind::Q4_1: return call.template operator()<Kind::Q4_1>();
        case Kind::Q4_0: return call.template operator()<Kind::Q4_0>();
        case Kind::Q4NX: return call.template operator()<Kind::Q4NX>();
        case Kind::Q4_K: return call.template operator()<Kind::Q4_K>();
        case Kind::Q8_A: return call.template operator()<Kind::Q8_A>();
        case Kind::Q8_B: return call.template operator()<Kind::Q8_B>();
        case Kind::Q4_1_X64: return call.template operator()<Kind::Q4_1_X64>();
        case Kind::Q8_IN_Q4: return call.template operator()<Kind::Q8_IN_Q4>();
        default: return;
    }
}

template <class Call>
static inline void visit_dense(Kind kind, Call&& call) {
    switch (kind) {
        case Kind::BF16: return call.template operator()<Kind::BF16>();
        case Kind::F16: return call.template operator()<Kind::F16>();
        case Kind::F32: return call.template operator()<Kind::F32>();
        case Kind::INT8: return call.template operator()<Kind::INT8>();
        default: return;
    }
}

// The table of each compiled instruction set.
extern const LinearKernels kLinearPortable;
extern const LinearKernels kLinearAvx2;
extern const LinearKernels kLinearAvx512;
extern const LinearKernels kLinearAvx512Vnni;

}  // namespace onebit
