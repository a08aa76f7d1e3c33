#include "linear.h"

#include <cstring>

#include "linear_impl.h"
#include "linear_scalar.h"

namespace onebit {

namespace {

size_t dense_bytes(Kind kind) {
    switch (kind) {
        case Kind::F32: return 4;
        case Kind::INT8: return 1;
        default: return 2;
    }
}

size_t tiled_strip_bytes(Kind kind, int cols) {
    size_t bytes = 0;
    visit_tiled(kind, [&]<Kind K>() { bytes = strip_bytes<K>(cols); });
    return bytes;
}

template <Kind K>
void embed_tiled_row(const Weight& weight, int32_t row, float scale, float* out) {
    const int in_strip = row % kStripRows;
    const uint8_t* strip =
        weight.data + static_cast<size_t>(row / kStripRows) * strip_bytes<K>(weight.cols);
    for (int first = 0; first < weight.cols; first += kGroupCols) {
        const uint8_t* tile =
            strip + static_cast<size_t>(first / kTileCols) * tile_layout(K).bytes;
        const int g = first % kTileCols / kGroupCols;
        const Zoom zoom = group_zoom<K>(tile, g, in_strip);
        const int n = weight.cols - first < kGroupCols ? weight.cols - first : kGroupCols;
        const uint8_t* codes = group_codes<K>(tile, g);
        for (int c = 0; c < n; ++c) {
            out[first + c] = scale * weight_value<K>(zoom, code_at<K>(codes, in_strip, c));
        }
    }
}

}  // namespace

bool is_tiled(Kind kind) { return tile_layout(kind).bytes != 0; }

size_t weight_bytes(const Weight& weight) {
    if (is_tiled(weight.kind)) {
        return static_cast<size_t>(strip_count(weight.rows)) *
               tiled_strip_bytes(weight.kind, weight.cols);
    }
    return static_cast<size_t>(weight.rows) * static_cast<size_t>(weight.cols) *
           dense_bytes(weight.kind);
}

Numerics numerics_for(Kind kind, Numerics wanted) {
    return is_tiled(kind) ? wanted : Numerics::F32;
}

size_t packed_bytes(Numerics numerics, int rows, int cols) {
    // I8: the widest record that an instruction set needs.
    const size_t slice = numerics == Numerics::F32   ? sizeof(SliceF32)
                         : numerics == Numerics::I16 ? sizeof(SliceI16)
                                                     : sizeof(SliceI8Both);
    return slice * static_cast<size_t>(slice_count(cols)) * static_cast<size_t>(rows);
}

size_t scratch_bytes(Numerics, int) { return sizeof(TileScratch); }

const LinearKernels& linear_kernels(Isa isa) {
    switch (isa) {
#if defined(__x86_64__)
        case Isa::Avx2: return kLinearAvx2;
        case Isa::Avx512: return kLinearAvx512;
        case Isa::Avx512Vnni: return kLinearAvx512Vnni;
#endif
        default: return kLinearPortable;
    }
}

void embed_rows(const Weight& weight, const int32_t* tokens, int n, float scale, float* out,
                ptrdiff_t ldo) {
    for (int i = 0; i < n; ++i) {
        const int32_t row = tokens[i];
        float* to = out + i * ldo;
        if (is_tiled(weight.kind)) {
            visit_tiled(weight.kind,
                        [&]<Kind K>() { embed_tiled_row<K>(weight, row, scale, to); });
            continue;
        }
        visit_dense(weight.kind, [&]<Kind K>() {
            const DenseRow<K> values(weight, row);
            for (int c = 0; c < weight.cols; ++c) {
                to[c] = scale * values.at(c);
            }
        });
    }
}

}  // namespace onebit
