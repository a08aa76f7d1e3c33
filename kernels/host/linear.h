// Linear layers on a container's weights, in place: y = scale * (x . W^T + bias).
//
// Weights are read where they lie (any address, any alignment); nothing of the model is copied.
// A "strip" is 32 output features: one row of tiles. Strips are independent, so threads share a
// layer by taking strips.
//
// Arithmetic. It is the same, bit for bit, for every number of rows, every place of a row in the
// batch, every split into strips and every instruction set; onebit/ops/linear.py computes it in
// NumPy. fma(a, b, c) is a * b + c rounded once; all values are float32 unless said otherwise.
//
//   Columns beyond `cols` count as zero activations. Groups of 32 columns that begin at or beyond
//   `cols` are neither read nor computed. For one row x and one output n:
//
//   F32, tiled kinds: w[c] is the weight as the container decodes it (float32). A tile here is 256
//   columns of 32 rows, also for the two kinds whose stored tiles are narrower.
//     per tile: p0, p1 = 0; for c ascending: p[c % 2] = fma(w[c], x[c], p[c % 2])
//     y = 0; for tiles ascending: y = y + (p0 + p1)
//   F32, dense kinds (BF16, F32, F16, INT8; no tiles): sixteen sums by c % 16,
//     s[c % 16] = fma(w[c], x[c], s[c % 16]), c ascending; then
//     s[i] += s[i + 8] (i < 8), s[i] += s[i + 4] (i < 4), s[i] += s[i + 2] (i < 2), y = s[0] + s[1]
//   I16: per (row, tile): a = max |x|; inv = 32767 / a; xs = a / 32767; q[c] = rint(x[c] * inv).
//     per tile: p = 0; for groups ascending:
//       p = fma(d, float(sum q[c] * code[c]), p)   the sum is an exact int32
//       p = fma(m, float(sum q[c]), p)             kinds with a zero term
//     y = 0; for tiles ascending: y = fma(xs, p, y)
//   I8: per (row, group): a = max |x|; inv = 127 / a; xs = a / 127; q[c] = rint(x[c] * inv).
//     y = 0; for groups ascending:
//       y = fma(d, float(sum q[c] * code[c]) * xs, y)
//       y = fma(m, float(sum q[c]) * xs, y)        kinds with a zero term
//   I16, I8: `code` is signed for Q4_0 and the Q8 kinds, else unsigned; `d`, `m` are float32 values
//     (all products exact): Q4NX d, -(d * z); Q4_K S * s, M * z. A block with a < 2^-100 counts
//     as zero. A block with an infinity or NaN makes all outputs of its row NaN.
//   At the end: y = y + bias (if there is one); y = y * scale (if it is not 1).
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace onebit {

constexpr int kStripRows = 32;
constexpr int kTileCols = 256;
constexpr int kGroupCols = 32;

// As onebit.container.kinds.TensorKind.
enum class Kind : uint8_t {
    BF16, F32, F16, INT8, Q4_1, Q4_0, Q4NX, Q4_K, Q8_A, Q8_B, Q4_1_X64, Q8_IN_Q4
};

struct Weight {
    Kind kind;
    const uint8_t* data;  // tiled: row-major tiles [row blocks][column blocks]; else [rows][cols]
    const float* scale;   // INT8: [rows][ceil(cols/32)]; else null
    int32_t rows;         // out_features
    int32_t cols;         // in_features
};

enum class Numerics : uint8_t { F32, I16, I8 };

// Whether the kind is stored as tiles.
bool is_tiled(Kind kind);

// Bytes `data` spans.
size_t weight_bytes(const Weight& weight);

// The numerics a weight of `kind` is computed with when `wanted` is configured: dense kinds know
// F32 only. Activations must be packed for this one.
Numerics numerics_for(Kind kind, Numerics wanted);

inline int strip_count(int rows) { return (rows + kStripRows - 1) / kStripRows; }

// Bytes of the packed form of `rows` x `cols` activations; the same for every instruction set.
size_t packed_bytes(Numerics numerics, int rows, int cols);

// Bytes of scratch each thread needs for linear_strips over `rows` activation rows.
size_t scratch_bytes(Numerics numerics, int rows);

// The kernels of one instruction set. Packed activations are for the same set only.
struct LinearKernels {
    Isa isa;

    // Packs rows [row_begin, row_end) of x (`rows` rows of `cols`, row stride `ldx` elements) into
    // `packed` (packed_bytes(numerics, rows, cols), 64-byte aligned). Threads may pack disjoint
    // ranges of rows at once.
    void (*pack_rows)(Numerics numerics, const float* x, ptrdiff_t ldx, int rows, int row_begin,
                      int row_end, int cols, std::byte* packed);

    // y[r * ldy + n] = scale * (x[r] . w[n] + bias[n]) for all `rows` rows and the outputs
    // n in [32 * strip_begin, min(32 * strip_end, weight.rows)). `numerics` must be what
    // numerics_for(weight.kind, ..) says and what `packed` was packed with. `bias` (weight.rows)
    // may be null. `scratch`: scratch_bytes(numerics, rows), 64-byte aligned, this thread's own.
    void (*linear_strips)(const Weight& weight, Numerics numerics, const std::byte* packed,
                          int rows, int strip_begin, int strip_end, float* y, ptrdiff_t ldy,
                          const float* bias, float scale, std::byte* scratch);
};

// The kernels of `isa`, which must be supported.
const LinearKernels& linear_kernels(Isa isa);

// out[i * ldo + c] = scale * w[tokens[i]][c], c < cols. Tokens must be in [0, rows).
void embed_rows(const Weight& weight, const int32_t* tokens, int n, float scale, float* out,
                ptrdiff_t ldo);

}  // namespace onebit
