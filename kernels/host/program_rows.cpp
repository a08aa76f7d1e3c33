// Row phases: ops that need one row only.
#include <algorithm>

#include "program.h"

namespace onebit {

namespace {

// Rows that go through all ops before the next ones do, so that they stay in the near cache.
constexpr int kBlockRows = 8;

}  // namespace

void Program::row_ops(const RowPhase& phase, int first, int last, int rows) {
    for (int begin = first; begin < last; begin += kBlockRows) {
        const int end = std::min(begin + kBlockRows, last);
        for (const RowOp& op : phase.ops) fetch_slots(op, begin, end);
        for (const RowOp& op : phase.ops) row_op(op, begin, end, rows);
    }
}

// The keys of one position lie a cache line apart: all those lines are asked for before the
// first is written, or each would be waited for in turn.
void Program::fetch_slots(const RowOp& op, int first, int last) {
    if (op.code != RowOp::Code::Append) return;
    const KvLayer& layer = kv_layers_[static_cast<size_t>(op.table)];
    const size_t item = shape_.kv_bf16 ? sizeof(uint16_t) : sizeof(float);
    const auto dim = static_cast<size_t>(layer.head_dim);
    for (int r = first; r < last; ++r) {
        const auto slot = static_cast<size_t>(batch_.positions[r] % shape_.page_size);
        const std::byte* head = slots(layer, r);
        for (int h = 0; h < layer.heads; ++h, head += layer.key_bytes + layer.value_bytes) {
            const std::byte* keys = head + (slot / 16 * 16 * dim + slot % 16) * item;
            for (size_t d = 0; d < dim; ++d) __builtin_prefetch(keys + d * 16 * item, 1);
        }
    }
}

std::byte* Program::slots(const KvLayer& layer, int index) const {
    const int32_t* table =
        batch_.page_tables + static_cast<ptrdiff_t>(batch_.sequences[index]) * batch_.max_pages;
    const auto page = static_cast<size_t>(table[batch_.positions[index] / shape_.page_size]);
    return kv_pool_.data() + page * page_bytes_ + layer.offset;
}

void Program::row_op(const RowOp& op, int first, int last, int rows) {
    if (op.code == RowOp::Code::Embed) {
        const ptrdiff_t ld = values_[static_cast<size_t>(op.out)].ld;
        embed_rows(weights_[static_cast<size_t>(op.table)], batch_.tokens + first, last - first,
                   op.scale, row(op.out, first), ld);
        return;
    }
    if (op.code == RowOp::Code::Pack) {
        const Value& in = values_[static_cast<size_t>(op.in)];
        for (const Numerics form : {Numerics::F32, Numerics::I16, Numerics::I8}) {
            if ((op.forms >> static_cast<unsigned>(form) & 1U) == 0) continue;
            linear_.pack_rows(form, in.data, in.ld, rows, first, last, op.width, packed(form));
        }
        return;
    }
    for (int r = first; r < last; ++r) {
        switch (op.code) {
            case RowOp::Code::RmsNorm:
                ops_.rms_norm(row(op.in, r), vectors_[static_cast<size_t>(op.table)].data(),
                              op.offset, op.eps, op.groups, op.width, row(op.out, r));
                break;
            case RowOp::Code::Rope: {
                const RopeTable& table = ropes_[static_cast<size_t>(op.table)];
                const ptrdiff_t at = static_cast<ptrdiff_t>(batch_.positions[r]) * table.half;
                ops_.rope(row(op.in, r), table.cos.floats() + at, table.sin.floats() + at,
                          op.groups, op.width, table.half);
                break;
            }
            case RowOp::Code::Add:
                ops_.add(row(op.in, r), row(op.in2, r), op.scale, row(op.out, r), op.width);
                break;
            case RowOp::Code::Glu:
                ops_.glu(op.act, row(op.in, r), row(op.in2, r), row(op.out, r), op.width);
                break;
            case RowOp::Code::Softcap: ops_.softcap(row(op.in, r), op.scale, op.width); break;
            case RowOp::Code::Append: append(op, r); break;
            case RowOp::Code::Embed:
            case RowOp::Code::Pack: break;  // done above, for all rows at once
        }
    }
}

void Program::append(const RowOp& op, int index) {
    const KvLayer& layer = kv_layers_[static_cast<size_t>(op.table)];
    const int slot = batch_.positions[index] % shape_.page_size;
    std::byte* to = slots(layer, index);
    const float* k = row(op.in, index);
    const float* v = row(op.in2, index);
    for (int h = 0; h < layer.heads; ++h, k += layer.head_dim, v += layer.head_dim) {
        ops_.store_key(k, to, slot, layer.head_dim, shape_.kv_bf16);
        ops_.store_value(v, to + layer.key_bytes, slot, layer.head_dim, shape_.kv_bf16);
        to += layer.key_bytes + layer.value_bytes;
    }
}

}  // namespace onebit
