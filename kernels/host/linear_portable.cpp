// Linear kernels without intrinsics: plain loops over 32 outputs that compilers vectorise.

#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "linear_impl.h"
#include "linear_scalar.h"

namespace onebit {

namespace {

// a * b + c rounded once, so that results equal those of the other instruction sets.
inline float fma_once(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    // The product is exact in double. The sum is rounded to odd (its error decides the last
    // bit), which makes the second rounding, to float, the only one that counts.
    const double product = static_cast<double>(a) * static_cast<double>(b);
    const double addend = static_cast<double>(c);
    const double sum = product + addend;
    const double part = sum - product;
    const double error = (product - (sum - part)) + (addend - part);
    const auto bits = std::bit_cast<int64_t>(sum);
    const auto error_bits = std::bit_cast<int64_t>(error);
    // Infinities and NaN have a NaN error and pass through; an odd sum is left alone.
    const bool fix = error != 0.0 && error == error && (bits & 1) == 0;
    const int64_t towards = (bits ^ error_bits) < 0 ? -1 : 1;
    return static_cast<float>(std::bit_cast<double>(bits + (fix ? towards : 0)));
#endif
}

int32_t greatest_magnitude(const float* x, int n) {
    int32_t greatest = 0;
    for (int c = 0; c < n; ++c) {
        const int32_t bits = std::bit_cast<int32_t>(x[c]) & 0x7fffffff;
        greatest = bits > greatest ? bits : greatest;
    }
    return greatest;
}

// Quantises n values to q; returns the scale (NaN when one is not finite: q is then zero).
float quantise(const float* x, int n, float limit, int16_t* q) {
    const int32_t bits = greatest_magnitude(x, n);
    if (bits >= kNotFinite || std::bit_cast<float>(bits) < kTiny) {
        std::memset(q, 0, static_cast<size_t>(n) * sizeof(int16_t));
        return bits >= kNotFinite ? std::bit_cast<float>(0x7fc00000) : 0.0F;
    }
    const float greatest = std::bit_cast<float>(bits);
    const float inverse = limit / greatest;
    for (int c = 0; c < n; ++c) {
        q[c] = static_cast<int16_t>(std::nearbyint(x[c] * inverse));
    }
    return greatest / limit;
}

int32_t sum_of(const int16_t* q) {
    int32_t sum = 0;
    for (int c = 0; c < kGroupCols; ++c) {
        sum += q[c];
    }
    return sum;
}

void pack_slice(const float* x, int n, SliceF32& slice) {
    std::memcpy(slice.x, x, static_cast<size_t>(n) * sizeof(float));
    std::memset(slice.x + n, 0, static_cast<size_t>(kTileCols - n) * sizeof(float));
}

void pack_slice(const float* x, int n, SliceI16& slice) {
    std::memset(slice.q, 0, sizeof slice.q);
    slice.scale = quantise(x, n, 32767.0F, slice.q);
    for (int g = 0; g < kGroups; ++g) {
        slice.sum[g] = static_cast<float>(sum_of(slice.q + g * kGroupCols));
    }
}

void pack_slice(const float* x, int n, SliceI8Wide& slice) {
    std::memset(&slice, 0, sizeof slice);
    for (int g = 0; g * kGroupCols < n; ++g) {
        const int first = g * kGroupCols;
        const int count = n - first < kGroupCols ? n - first : kGroupCols;
        slice.scale[g] = quantise(x + first, count, 127.0F, slice.q + first);
        slice.zero[g] = static_cast<float>(sum_of(slice.q + first)) * slice.scale[g];
    }
}

template <class Slice>
void pack(const float* x, ptrdiff_t ldx, int rows, int begin, int end, int cols,
          std::byte* packed) {
    auto* slices = reinterpret_cast<Slice*>(packed);
    for (int u = 0; u < slice_count(cols); ++u) {
        const int first = u * kTileCols;
        const int n = cols - first < kTileCols ? cols - first : kTileCols;
        for (int r = begin; r < end; ++r) {
            pack_slice(x + r * ldx + first, n, slices[static_cast<ptrdiff_t>(u) * rows + r]);
        }
    }
}

void pack_rows(Numerics numerics, const float* x, ptrdiff_t ldx, int rows, int row_begin,
               int row_end, int cols, std::byte* packed) {
    switch (numerics) {
        case Numerics::F32: return pack<SliceF32>(x, ldx, rows, row_begin, row_end, cols, packed);
        case Numerics::I16: return pack<SliceI16>(x, ldx, rows, row_begin, row_end, cols, packed);
        case Numerics::I8:
            return pack<SliceI8Wide>(x, ldx, rows, row_begin, row_end, cols, packed);
    }
}

template <Kind K>
void decode_values(const uint8_t* tile, int groups, TileScratch& scratch) {
    for (int g = 0; g < groups; ++g) {
        const uint8_t* codes = group_codes<K>(tile, g);
        for (int row = 0; row < kStripRows; ++row) {
            const Zoom zoom = group_zoom<K>(tile, g, row);
            for (int c = 0; c < kGroupCols; ++c) {
                scratch.f32[g * kGroupCols + c][row] =
                    weight_value<K>(zoom, code_at<K>(codes, row, c));
            }
        }
    }
}

template <Kind K>
void decode_codes(const uint8_t* tile, int groups, TileScratch& scratch) {
    for (int g = 0; g < groups; ++g) {
        const uint8_t* codes = group_codes<K>(tile, g);
        for (int row = 0; row < kStripRows; ++row) {
            const Zoom zoom = group_zoom<K>(tile, g, row);
            scratch.d[g][row] = zoom.d;
            scratch.m[g][row] = integer_zero<K>(zoom);
            for (int c = 0; c < kGroupCols; ++c) {
                scratch.i16[(g * kGroupCols + c) / 2][row][c % 2] =
                    static_cast<int16_t>(code_at<K>(codes, row, c));
            }
        }
    }
}

void multiply(const TileScratch& scratch, int groups, const SliceF32& x, float* y) {
    float sums[2][kStripRows] = {};
    for (int c = 0; c < groups * kGroupCols; ++c) {
        for (int n = 0; n < kStripRows; ++n) {
            sums[c % 2][n] = fma_once(scratch.f32[c][n], x.x[c], sums[c % 2][n]);
        }
    }
    for (int n = 0; n < kStripRows; ++n) {
        y[n] += sums[0][n] + sums[1][n];
    }
}

void dot(const TileScratch& scratch, int g, const int16_t* q, float* out) {
    int32_t sums[kStripRows] = {};
    for (int c = g * kGroupCols; c < (g + 1) * kGroupCols; c += 2) {
        const int16_t(*w)[2] = scratch.i16[c / 2];
        for (int n = 0; n < kStripRows; ++n) {
            sums[n] += w[n][0] * q[c] + w[n][1] * q[c + 1];
        }
    }
    for (int n = 0; n < kStripRows; ++n) {
        out[n] = static_cast<float>(sums[n]);
    }
}

template <Kind K>
void multiply(const TileScratch& scratch, int groups, const SliceI16& x, float* y) {
    float part[kStripRows] = {};
    float dots[kStripRows];
    for (int g = 0; g < groups; ++g) {
        dot(scratch, g, x.q, dots);
        for (int n = 0; n < kStripRows; ++n) {
            part[n] = fma_once(scratch.d[g][n], dots[n], part[n]);
            if constexpr (has_zero(K)) {
                part[n] = fma_once(scratch.m[g][n], x.sum[g], part[n]);
            }
        }
    }
    for (int n = 0; n < kStripRows; ++n) {
        y[n] = fma_once(x.scale, part[n], y[n]);
    }
}

template <Kind K>
void multiply(const TileScratch& scratch, int groups, const SliceI8Wide& x, float* y) {
    float dots[kStripRows];
    for (int g = 0; g < groups; ++g) {
        dot(scratch, g, x.q, dots);
        for (int n = 0; n < kStripRows; ++n) {
            y[n] = fma_once(scratch.d[g][n], dots[n] * x.scale[g], y[n]);
            if constexpr (has_zero(K)) {
                y[n] = fma_once(scratch.m[g][n], x.zero[g], y[n]);
            }
        }
    }
}

void finish(const float* sums, int n, float* y, const float* bias, float scale) {
    for (int i = 0; i < n; ++i) {
        const float value = bias != nullptr ? sums[i] + bias[i] : sums[i];
        y[i] = scale != 1.0F ? value * scale : value;
    }
}

template <Kind K, class Slice>
void tiled_strips(const Weight& weight, const std::byte* packed, int rows, int begin, int end,
                  float* y, ptrdiff_t ldy, const float* bias, float scale, TileScratch& scratch) {
    const auto* slices = reinterpret_cast<const Slice*>(packed);
    for (int strip = begin; strip < end; ++strip) {
        const int first = strip * kStripRows;
        const int n = weight.rows - first < kStripRows ? weight.rows - first : kStripRows;
        const uint8_t* tiles =
            weight.data + static_cast<size_t>(strip) * strip_bytes<K>(weight.cols);
        for (int block = 0; block < rows; block += kRowBlock) {
            const int count = rows - block < kRowBlock ? rows - block : kRowBlock;
            std::memset(scratch.y, 0, sizeof scratch.y);
            for (int u = 0; u < slice_count(weight.cols); ++u) {
                const uint8_t* tile = tiles + static_cast<size_t>(u) * tile_layout(K).bytes;
                const int groups = slice_groups(weight.cols, u);
                const Slice* x = slices + static_cast<ptrdiff_t>(u) * rows + block;
                if constexpr (std::is_same_v<Slice, SliceF32>) {
                    decode_values<K>(tile, groups, scratch);
                } else {
                    decode_codes<K>(tile, groups, scratch);
                }
                for (int r = 0; r < count; ++r) {
                    if constexpr (std::is_same_v<Slice, SliceF32>) {
                        multiply(scratch, groups, x[r], scratch.y[r]);
                    } else {
                        multiply<K>(scratch, groups, x[r], scratch.y[r]);
                    }
                }
            }
            for (int r = 0; r < count; ++r) {
                finish(scratch.y[r], n, y + (block + r) * ldy + first,
                       bias != nullptr ? bias + first : nullptr, scale);
            }
        }
    }
}

template <Kind K>
void dense_strips(const Weight& weight, const std::byte* packed, int rows, int begin, int end,
                  float* y, ptrdiff_t ldy, const float* bias, float scale) {
    const auto* slices = reinterpret_cast<const SliceF32*>(packed);
    const int last = end * kStripRows < weight.rows ? end * kStripRows : weight.rows;
    for (int n = begin * kStripRows; n < last; ++n) {
        const DenseRow<K> values(weight, n);
        for (int r = 0; r < rows; ++r) {
            float sums[16] = {};
            for (int c = 0; c < weight.cols; ++c) {
                const SliceF32& x = slices[static_cast<ptrdiff_t>(c / kTileCols) * rows + r];
                sums[c % 16] = fma_once(values.at(c), x.x[c % kTileCols], sums[c % 16]);
            }
            for (int half = 8; half > 0; half /= 2) {
                for (int i = 0; i < half; ++i) {
                    sums[i] += sums[i + half];
                }
            }
            finish(sums, 1, y + r * ldy + n, bias != nullptr ? bias + n : nullptr, scale);
        }
    }
}

void linear_strips(const Weight& weight, Numerics numerics, const std::byte* packed, int rows,
                   int strip_begin, int strip_end, float* y, ptrdiff_t ldy, const float* bias,
                   float scale, std::byte* scratch) {
    auto& tile = *reinterpret_cast<TileScratch*>(scratch);
    visit_dense(weight.kind, [&]<Kind K>() {
        dense_strips<K>(weight, packed, rows, strip_begin, strip_end, y, ldy, bias, scale);
    });
    visit_tiled(weight.kind, [&]<Kind K>() {
        switch (numerics) {
            case Numerics::F32:
                return tiled_strips<K, SliceF32>(weight, packed, rows, strip_begin, strip_end, y,
                                                 ldy, bias, scale, tile);
            case Numerics::I16:
                return tiled_strips<K, SliceI16>(weight, packed, rows, strip_begin, strip_end, y,
                                                 ldy, bias, scale, tile);
            case Numerics::I8:
                return tiled_strips<K, SliceI8Wide>(weight, packed, rows, strip_begin, strip_end,
                                                    y, ldy, bias, scale, tile);
        }
    });
}

}  // namespace

const LinearKernels kLinearPortable = {Isa::Portable, pack_rows, linear_strips};

}  // namespace onebit
