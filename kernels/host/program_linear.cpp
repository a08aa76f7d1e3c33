// Linear phases: strips of all weights of one GEMM role, with the op that follows fused in.
#include <algorithm>

#include "program.h"

namespace onebit {

namespace {

// The part of a weight that begins at `strip`.
Weight from_strip(const Weight& weight, int strip) {
    const int skipped = strip * kStripRows;
    Weight part = weight;
    part.rows = skipped;
    const size_t bytes = weight_bytes(part);
    part.rows = weight.rows - skipped;
    part.data += bytes;
    if (part.scale != nullptr) {
        const int groups = (weight.cols + kGroupCols - 1) / kGroupCols;
        part.scale += static_cast<ptrdiff_t>(skipped) * groups;
    }
    return part;
}

}  // namespace

int Program::linear_units(const LinearPhase& phase) const {
    int units = 0;
    for (const Piece& piece : phase.pieces) {
        units += strip_count(weights_[static_cast<size_t>(piece.weight)].rows);
        if (phase.then == LinearPhase::Then::Glu) break;  // gate and up go together
    }
    return units;
}

void Program::linear(const LinearPhase& phase, int first, int last, int rows, Scratch& scratch) {
    if (phase.then != LinearPhase::Then::Nothing) {
        linear_fused(phase, first, last, rows, scratch);
        return;
    }
    int begin = 0;  // of the piece, in strips of the whole phase
    for (const Piece& piece : phase.pieces) {
        const int strips = strip_count(weights_[static_cast<size_t>(piece.weight)].rows);
        const int from = std::max(first - begin, 0);
        const int to = std::min(last - begin, strips);
        if (from < to) {
            const Value& out = values_[static_cast<size_t>(piece.out)];
            linear_piece(piece, from, to, rows, out.data, out.ld, scratch);
        }
        begin += strips;
    }
}

void Program::fetch_strip(const LinearPhase& phase, int strip) const {
    for (const Piece& piece : phase.pieces) {
        const Weight& weight = weights_[static_cast<size_t>(piece.weight)];
        const int strips = strip_count(weight.rows);
        if (strip >= strips) {
            strip -= strips;
            continue;
        }
        const Weight rest = from_strip(weight, strip);
        const size_t bytes = std::min(weight_bytes(rest), kIdleBytes);
        for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(rest.data + i, 0, 2);
        return;
    }
}

void Program::linear_piece(const Piece& piece, int first, int last, int rows, float* y,
                           ptrdiff_t ldy, Scratch& scratch) {
    const Weight& weight = weights_[static_cast<size_t>(piece.weight)];
    const Numerics form = numerics_for(weight.kind, shape_.numerics);
    const float* bias = piece.bias < 0 ? nullptr : vectors_[static_cast<size_t>(piece.bias)].data();
    linear_.linear_strips(weight, form, packed(form), rows, first, last, y, ldy, bias, piece.scale,
                          scratch.linear.data());
}

// The linear's results stay in this thread's scratch, a few strips at a time, until the fused op
// has read them.
void Program::linear_fused(const LinearPhase& phase, int first, int last, int rows,
                           Scratch& scratch) {
    const bool glu = phase.then == LinearPhase::Then::Glu;
    const int width = weights_[static_cast<size_t>(phase.pieces.front().weight)].rows;
    const int step = std::max(kFusedColumns * shape_.max_rows / rows, kFusedColumns) / kStripRows;
    for (int begin = first; begin < last; begin += step) {
        const int end = std::min(begin + step, last);
        const int column = begin * kStripRows;
        const int columns = std::min(end * kStripRows, width) - column;
        float* y[2] = {scratch.outputs.floats(),
                       scratch.outputs.floats() + static_cast<ptrdiff_t>(rows) * columns};
        int taken = 0;
        for (const Piece& piece : phase.pieces) {
            const Weight part = from_strip(weights_[static_cast<size_t>(piece.weight)], begin);
            const Numerics form = numerics_for(part.kind, shape_.numerics);
            const float* bias = piece.bias < 0
                                    ? nullptr
                                    : vectors_[static_cast<size_t>(piece.bias)].data() + column;
            linear_.linear_strips(part, form, packed(form), rows, 0, end - begin, y[taken++],
                                  columns, bias, piece.scale, scratch.linear.data());
        }
        for (int r = 0; r < rows; ++r) {
            const float* result = y[0] + static_cast<ptrdiff_t>(r) * columns;
            float* out = row(phase.out, r) + column;
            if (glu) {
                ops_.glu(phase.act, result, y[1] + static_cast<ptrdiff_t>(r) * columns, out,
                         columns);
            } else {
                ops_.add(row(phase.other, r) + column, result, phase.scale, out, columns);
            }
        }
    }
}

}  // namespace onebit
