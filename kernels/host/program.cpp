#include "program.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace onebit {

namespace {

constexpr size_t kAlign = 64;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

uint64_t now() {
    const auto t = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::nanoseconds(t).count());
}

void require(bool holds, const char* message) {
    if (!holds) throw std::invalid_argument(message);
}

}  // namespace

Program::Program(const ProgramShape& shape)
    : shape_(shape),
      ops_(op_kernels(shape.isa)),
      linear_(linear_kernels(shape.isa)),
      pool_(shape.threads) {
    require(shape.max_rows > 0 && shape.context > 0 && shape.pages > 0, "sizes must be positive");
    require(shape.page_size > 0 && shape.page_size % 16 == 0, "page_size must be a multiple of 16");
    segments_ = (shape.context + kSegment - 1) / kSegment;
}

WeightId Program::add_weight(const Weight& weight) {
    weights_.push_back(weight);
    return static_cast<WeightId>(weights_.size()) - 1;
}

VectorId Program::add_vector(std::vector<float> values) {
    vectors_.push_back(std::move(values));
    return static_cast<VectorId>(vectors_.size()) - 1;
}

ValueId Program::add_value(int width, int64_t offset) {
    Value value{width, offset, width, nullptr, Mapping()};
    if (offset < 0) {
        value.own = Mapping(static_cast<size_t>(width) * static_cast<size_t>(shape_.max_rows) *
                            sizeof(float));
        value.data = value.own.floats();
    } else {
        value.ld = (width + 15) / 16 * 16;
    }
    values_.push_back(std::move(value));
    return static_cast<ValueId>(values_.size()) - 1;
}

int Program::add_rope(int half) {
    const size_t bytes =
        static_cast<size_t>(shape_.context) * static_cast<size_t>(half) * sizeof(float);
    ropes_.push_back({half, Mapping(bytes), Mapping(bytes)});
    return static_cast<int>(ropes_.size()) - 1;
}

int Program::add_kv(int heads, int head_dim) {
    const size_t item = shape_.kv_bf16 ? sizeof(uint16_t) : sizeof(float);
    const auto slots = static_cast<size_t>(shape_.page_size);
    const size_t width = (static_cast<size_t>(head_dim) + 15) / 16 * 16;
    const size_t key_bytes = aligned(slots * static_cast<size_t>(head_dim) * item);
    const size_t value_bytes = aligned(slots * width * item);
    kv_layers_.push_back({heads, head_dim, page_bytes_, key_bytes, value_bytes});
    page_bytes_ += static_cast<size_t>(heads) * (key_bytes + value_bytes);
    return static_cast<int>(kv_layers_.size()) - 1;
}

void Program::add_phase(Phase phase) { list_.push_back(std::move(phase)); }

void Program::seal() {
    const auto max_rows = static_cast<size_t>(shape_.max_rows);
    size_t floats = 0;
    for (const Value& value : values_) {
        if (value.offset < 0) continue;
        const size_t end = static_cast<size_t>(value.offset) + static_cast<size_t>(value.ld);
        floats = std::max(floats, end);
    }
    // Offsets count columns of all rows: a value's block begins at offset * max_rows.
    arena_ = Mapping(floats * max_rows * sizeof(float));
    for (Value& value : values_) {
        if (value.offset >= 0) {
            value.data = arena_.floats() + static_cast<size_t>(value.offset) * max_rows;
        }
    }
    kv_pool_ = Mapping(page_bytes_ * static_cast<size_t>(shape_.pages), Mapping::Pages::Large);

    size_t packed[3] = {};
    size_t linear_scratch = 0;
    int state = 0;
    int attention_scratch = 0;
    int kv_heads = 1;
    unsigned forms = 0;
    for (auto phase = list_.rbegin(); phase != list_.rend(); ++phase) {
        if (auto* linear = std::get_if<LinearPhase>(&phase->body)) {
            forms = 0;
            for (const Piece& piece : linear->pieces) {
                const Weight& weight = weights_[static_cast<size_t>(piece.weight)];
                const Numerics form = numerics_for(weight.kind, shape_.numerics);
                size_t& size = packed[static_cast<size_t>(form)];
                size = std::max(size, packed_bytes(form, shape_.max_rows, weight.cols));
                linear_scratch = std::max(linear_scratch, scratch_bytes(form, shape_.max_rows));
                forms |= 1U << static_cast<unsigned>(form);
            }
        } else if (auto* rows = std::get_if<RowPhase>(&phase->body)) {
            for (RowOp& op : rows->ops) {
                if (op.code == RowOp::Code::Pack) op.forms = forms;
            }
        } else if (auto* attention = std::get_if<AttentionPhase>(&phase->body)) {
            const KvLayer& layer = kv_layers_[static_cast<size_t>(attention->layer)];
            state = std::max(state, attention_state_floats(layer.head_dim));
            attention_scratch =
                std::max(attention_scratch, attention_scratch_floats(layer.head_dim));
            kv_heads = std::max(kv_heads, layer.heads);
        }
    }
    for (size_t form = 0; form < 3; ++form) packed_[form] = Mapping(packed[form]);

    const auto pairs = static_cast<size_t>(kAttentionPairs);
    const size_t state_bytes = pairs * static_cast<size_t>(state) * sizeof(float);
    for (int i = 0; i < pool_.threads(); ++i) {
        scratch_.push_back(
            {Mapping(linear_scratch), Mapping(max_rows * kFusedColumns * 2 * sizeof(float)),
             Mapping(state_bytes + static_cast<size_t>(attention_scratch) * sizeof(float))});
    }
    // Segments are split over threads only while there are few tasks: see plan_attention.
    const auto split = static_cast<size_t>(split_limit());
    partials_ = Mapping(split * static_cast<size_t>(segments_) * state_bytes);
    unmerged_ = std::make_unique<std::atomic<int>[]>(split);
    runs_.reserve(max_rows);
    wanted_runs_.reserve(max_rows);
    // A task holds at least one row of one KV head, or one segment of a split one.
    tasks_.reserve(max_rows * static_cast<size_t>(kv_heads) * 16 +
                   split * static_cast<size_t>(segments_));
    timings_.resize(list_.size());
    next_linear_.assign(list_.size(), nullptr);
    for (size_t i = list_.size(); i-- > 1;) {
        const auto* linear = std::get_if<LinearPhase>(&list_[i].body);
        next_linear_[i - 1] = linear != nullptr ? linear : next_linear_[i];
    }
}

void Program::time_phases(bool on) {
    timing_ = on;
    std::fill(timings_.begin(), timings_.end(), Timing{});
}

void Program::step(const Batch& batch) {
    check(batch);
    batch_ = batch;
    find_runs();
    timed_phase_ = -1;
    pool_.run(*this);
    if (timing_ && timed_phase_ >= 0) {
        timings_[static_cast<size_t>(timed_phase_)].nanoseconds += now() - phase_start_;
    }
}

void Program::check(const Batch& batch) const {
    require(batch.rows > 0 && batch.rows <= shape_.max_rows, "rows must be 1 .. max_rows");
    for (int i = 0; i < batch.rows; ++i) {
        const int sequence = batch.sequences[i];
        require(sequence >= 0 && sequence < batch.sequence_count, "a row names no page table");
        require(batch.positions[i] >= 0 && batch.positions[i] < shape_.context,
                "a position is outside the context");
        const bool joined = i > 0 && batch.sequences[i - 1] == sequence;
        require(!joined || batch.positions[i] == batch.positions[i - 1] + 1,
                "rows of a sequence must have ascending positions without gaps");
        const bool last = i + 1 == batch.rows || batch.sequences[i + 1] != sequence;
        if (last) check_pages(batch, i);
    }
    for (int i = 0; i < batch.wanted; ++i) {
        require(batch.logits_for[i] >= 0 && batch.logits_for[i] < batch.rows,
                "logits_for names a row that is not there");
        require(i == 0 || batch.logits_for[i] > batch.logits_for[i - 1],
                "logits_for must be ascending");
    }
    for (const Phase& phase : list_) {
        const auto* rows = std::get_if<RowPhase>(&phase.body);
        if (rows == nullptr || rows->ops.front().code != RowOp::Code::Embed) continue;
        const int vocab = weights_[static_cast<size_t>(rows->ops.front().table)].rows;
        for (int i = 0; i < batch.rows; ++i) {
            require(batch.tokens[i] >= 0 && batch.tokens[i] < vocab,
                    "a token is outside the vocabulary");
        }
    }
}

void Program::check_pages(const Batch& batch, int row) const {
    const int pages = batch.positions[row] / shape_.page_size + 1;
    require(pages <= batch.max_pages, "a page table is too short");
    const int32_t* table =
        batch.page_tables + static_cast<ptrdiff_t>(batch.sequences[row]) * batch.max_pages;
    for (int i = 0; i < pages; ++i) {
        require(table[i] >= 0 && table[i] < shape_.pages, "a page table names no page");
    }
}

int Program::begin(int index) {
    if (timing_) {
        const uint64_t time = now();
        if (timed_phase_ >= 0) {
            timings_[static_cast<size_t>(timed_phase_)].nanoseconds += time - phase_start_;
        }
        phase_start_ = time;
        timed_phase_ = index;
        ++timings_[static_cast<size_t>(index)].calls;
    }
    const Phase& phase = list_[static_cast<size_t>(index)];
    const int rows = rows_of(phase);
    if (rows == 0) return 0;
    if (const auto* ops = std::get_if<RowPhase>(&phase.body)) {
        // Handing a row or two to another thread costs more than computing them.
        const int unit = rows_per_unit(rows);
        if (rows > kSerialRows && pool_.threads() > 1) return (rows + unit - 1) / unit;
        row_ops(*ops, 0, rows, rows);
        return 0;
    }
    if (const auto* linear = std::get_if<LinearPhase>(&phase.body)) return linear_units(*linear);
    return begin_attention(std::get<AttentionPhase>(phase.body));
}

void Program::work(int index, int first, int last, int thread) {
    const Phase& phase = list_[static_cast<size_t>(index)];
    const int rows = rows_of(phase);
    Scratch& scratch = scratch_[static_cast<size_t>(thread)];
    if (const auto* ops = std::get_if<RowPhase>(&phase.body)) {
        const int unit = rows_per_unit(rows);
        row_ops(*ops, first * unit, std::min(last * unit, rows), rows);
    } else if (const auto* op = std::get_if<LinearPhase>(&phase.body)) {
        linear(*op, first, last, rows, scratch);
    } else {
        const auto& body = std::get<AttentionPhase>(phase.body);
        for (int i = first; i < last; ++i) attention(body, tasks_[static_cast<size_t>(i)], scratch);
    }
}

// The weights of the next linear phase do not depend on what others still compute.
void Program::idle(int index, int thread) {
    const LinearPhase* next = next_linear_[static_cast<size_t>(index)];
    if (next == nullptr) return;
    fetch_strip(*next, share_begin(linear_units(*next), thread, pool_.threads()));
}

}  // namespace onebit
