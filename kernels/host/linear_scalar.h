// One weight at a time: how each kind decodes. Used by the portable kernels and the embedding.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "linear_impl.h"

namespace onebit {

inline uint16_t load_u16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline float bf16_value(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline float f16_value(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
    const uint32_t magnitude = bits & 0x7fffU;
    if (magnitude >= 0x7c00U) {  // infinity or NaN, made quiet as the hardware does
        const uint32_t quiet = magnitude > 0x7c00U ? 0x400000U : 0;
        return std::bit_cast<float>(sign | 0x7f800000U | quiet | (magnitude & 0x3ffU) << 13);
    }
    // Halves scaled up by 2^-112's inverse: exact, subnormals included.
    const float value = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

// Scale and zero of one (row, group), as F32 numerics use them: z for Q4NX.
struct Zoom {
    float d, m;
};

template <Kind K>
Zoom group_zoom(const uint8_t* tile, int g, int row) {
    constexpr TileLayout at = tile_layout(K);
    tile = stored_tile<K>(tile, g);
    if constexpr (K == Kind::Q4_K) {
        const float s = bf16_value(load_u16(tile + kQ4kS + 2 * row));
        const float m = bf16_value(load_u16(tile + kQ4kM + 2 * row));
        const int i = g * kStripRows + row;
        return {s * static_cast<float>(tile[at.d + i]), m * static_cast<float>(tile[at.m + i])};
    } else {
        const int i = 2 * (g * kStripRows + row);
        return {bf16_value(load_u16(tile + at.d + i)),
                has_zero(K) ? bf16_value(load_u16(tile + at.m + i)) : 0.0F};
    }
}

// Code of row `row` and column `c` of a group, signed where the kind is.
template <Kind K>
int code_at(const uint8_t* codes, int row, int c) {
    constexpr TileLayout at = tile_layout(K);
    const uint8_t* half = codes + row / 16 * at.half_stride + c * at.col_stride;
    if constexpr (is_q8(K)) {
        return static_cast<int8_t>(half[row % 16]);
    } else {
        const int code = half[row % 16 / 2] >> (row % 2 * 4) & 15;
        return K == Kind::Q4_0 ? (code ^ 8) - 8 : code;
    }
}

// The decoded weight, rounded as the container decodes it.
template <Kind K>
float weight_value(Zoom zoom, int code) {
    const float q = static_cast<float>(code);
    if constexpr (K == Kind::Q4NX) {
        return zoom.d * (q - zoom.m);
    } else if constexpr (has_zero(K)) {
        return zoom.d * q + zoom.m;
    } else {
        return zoom.d * q;
    }
}

// The zero of the integer paths: p = fma(m, sum of the activations, p).
template <Kind K>
float integer_zero(Zoom zoom) {
    return K == Kind::Q4NX ? -(zoom.d * zoom.m) : zoom.m;
}

// A row of a dense weight.
template <Kind K>
struct DenseRow {
    static constexpr int kBytes = K == Kind::F32 ? 4 : K == Kind::INT8 ? 1 : 2;

    DenseRow(const Weight& weight, int32_t row)
        : data(weight.data + static_cast<size_t>(row) * static_cast<size_t>(weight.cols) * kBytes),
          scale(K == Kind::INT8
                    ? weight.scale + static_cast<size_t>(row) *
                                         static_cast<size_t>((weight.cols + 31) / kGroupCols)
                    : nullptr) {}

    float at(int c) const {
        if constexpr (K == Kind::F32) {
            float v;
            std::memcpy(&v, data + 4 * static_cast<size_t>(c), sizeof v);
            return v;
        } else if constexpr (K == Kind::INT8) {
            return static_cast<float>(static_cast<int8_t>(data[c])) * scale[c / kGroupCols];
        } else {
            const uint16_t bits = load_u16(data + 2 * static_cast<size_t>(c));
            return K == Kind::BF16 ? bf16_value(bits) : f16_value(bits);
        }
    }

    const uint8_t* data;
    const float* scale;
};

}  // namespace onebit
