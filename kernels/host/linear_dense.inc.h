// Linear kernels on dense weights, rows x cols, for any vector width. Included as linear_tiles is.
//
// Lanes are columns: sixteen sums by column % 16 in NS = 16 / L vectors.

constexpr int NS = 16 / V::L;

// Sixteen columns of a weight row as float32.
template <Kind K>
struct DenseWeights {
    static constexpr int kBytes = K == Kind::F32 ? 4 : K == Kind::INT8 ? 1 : 2;

    DenseWeights(const Weight& weight, int row)
        : data(weight.data + static_cast<size_t>(row) * static_cast<size_t>(weight.cols) * kBytes),
          scale(K == Kind::INT8
                    ? weight.scale + static_cast<size_t>(row) *
                                         static_cast<size_t>((weight.cols + 31) / kGroupCols)
                    : nullptr) {}

    void load(int c, F (&w)[NS]) const { convert(data + static_cast<size_t>(c) * kBytes, c, w); }

    // Only the first n columns exist.
    void load_first(int c, int n, F (&w)[NS]) const {
        uint8_t copy[16 * kBytes] = {};
        __builtin_memcpy(copy, data + static_cast<size_t>(c) * kBytes,
                         static_cast<size_t>(n) * kBytes);
        convert(copy, c, w);
    }

    void convert(const uint8_t* from, int c, F (&w)[NS]) const {
        for (int i = 0; i < NS; ++i) {
            const uint8_t* p = from + i * V::L * kBytes;
            if constexpr (K == Kind::BF16) {
                w[i] = V::load_bf16(p);
            } else if constexpr (K == Kind::F16) {
                w[i] = V::load_f16(p);
            } else if constexpr (K == Kind::F32) {
                w[i] = V::loadu(reinterpret_cast<const float*>(p));
            } else {
                w[i] = V::mul(V::to_float(V::load_int8(p)), V::set1(scale[c / kGroupCols]));
            }
        }
    }

    const uint8_t* data;
    const float* scale;
};

template <Kind K, int WR, int MR>
void dense_block(const Weight& weight, int n0, const SliceF32* slices, int rows, float* y,
                 ptrdiff_t ldy, const float* bias, float scale) {
    const DenseWeights<K> first(weight, n0);
    const size_t stride = static_cast<size_t>(weight.cols) * DenseWeights<K>::kBytes;
    const size_t scale_stride = static_cast<size_t>((weight.cols + 31) / kGroupCols);
    F acc[WR][MR][NS];
    for (auto& out : acc) {
        for (auto& row : out) {
            for (F& a : row) {
                a = V::zero();
            }
        }
    }
    auto step = [&](int c, const float* x, auto load) {
        F w[WR][NS];
#pragma GCC unroll 8
        for (int n = 0; n < WR; ++n) {
            DenseWeights<K> row = first;
            row.data += static_cast<size_t>(n) * stride;
            if constexpr (K == Kind::INT8) {
                row.scale += static_cast<size_t>(n) * scale_stride;
            }
            V::prefetch(row.data + static_cast<size_t>(c) * DenseWeights<K>::kBytes + WR * stride);
            load(row, c, w[n]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 2
            for (int i = 0; i < NS; ++i) {
                const F a = V::load(x + r * static_cast<ptrdiff_t>(sizeof(SliceF32) / 4) +
                                    i * V::L);
#pragma GCC unroll 8
                for (int n = 0; n < WR; ++n) {
                    acc[n][r][i] = V::fma(w[n][i], a, acc[n][r][i]);
                }
            }
        }
    };
    const int whole = weight.cols / 16 * 16;
    for (int c = 0; c < whole; c += 16) {
        step(c, slices[static_cast<ptrdiff_t>(c / kTileCols) * rows].x + c % kTileCols,
             [](const DenseWeights<K>& row, int at, F (&w)[NS]) { row.load(at, w); });
    }
    if (whole < weight.cols) {
        const int left = weight.cols - whole;
        step(whole, slices[static_cast<ptrdiff_t>(whole / kTileCols) * rows].x + whole % kTileCols,
             [left](const DenseWeights<K>& row, int at, F (&w)[NS]) {
                 row.load_first(at, left, w);
             });
    }
    for (int n = 0; n < WR; ++n) {
        for (int r = 0; r < MR; ++r) {
            float value = V::sum16(acc[n][r]);
            value = bias != nullptr ? value + bias[n0 + n] : value;
            y[r * ldy + n0 + n] = scale != 1.0F ? value * scale : value;
        }
    }
}

template <Kind K>
void dense_strips(const Weight& weight, const std::byte* packed, int rows, int begin, int end,
                  float* y, ptrdiff_t ldy, const float* bias, float scale) {
    const auto* slices = reinterpret_cast<const SliceF32*>(packed);
    const int last = end * kStripRows < weight.rows ? end * kStripRows : weight.rows;
    for (int n = begin * kStripRows; n < last; n += V::kDenseOutputs) {
        const int outputs = last - n < V::kDenseOutputs ? last - n : V::kDenseOutputs;
        const int blocks = (rows + V::kDenseRows - 1) / V::kDenseRows;
        for (int b = 0, r = 0; b < blocks; ++b) {
            const int count = (rows - r + blocks - b - 1) / (blocks - b);
            with_rows<V::kDenseRows>(count, [&]<int MR>() {
                if (outputs == V::kDenseOutputs) {
                    dense_block<K, V::kDenseOutputs, MR>(weight, n, slices + r, rows, y + r * ldy,
                                                         ldy, bias, scale);
                    return;
                }
                for (int i = 0; i < outputs; ++i) {
                    dense_block<K, 1, MR>(weight, n + i, slices + r, rows, y + r * ldy, ldy, bias,
                                          scale);
                }
            });
            r += count;
        }
    }
}
