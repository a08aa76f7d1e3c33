// Attention phases: which pairs of (row, head) go together, and the merge of split sequences.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "program.h"

namespace onebit {

namespace {

void clear_states(float* state, int pairs, int floats) {
    for (int i = 0; i < pairs; ++i, state += floats) {
        std::fill_n(state, floats, 0.0F);
        state[0] = -INFINITY;
    }
}

}  // namespace

void Program::find_runs() {
    runs_.clear();
    for (int i = 0; i < batch_.rows; ++i) {
        if (i > 0 && batch_.sequences[i] == batch_.sequences[i - 1]) {
            ++runs_.back().rows;
        } else {
            runs_.push_back({i, i, 1, batch_.positions[i], batch_.sequences[i]});
        }
    }
    wanted_runs_.clear();
    for (int i = 0; i < batch_.wanted; ++i) {
        const int at = batch_.logits_for[i];
        const bool joined = i > 0 && batch_.logits_for[i - 1] == at - 1 &&
                            batch_.sequences[at] == batch_.sequences[at - 1];
        if (joined) {
            ++wanted_runs_.back().rows;
        } else {
            wanted_runs_.push_back({at, i, 1, batch_.positions[at], batch_.sequences[at]});
        }
    }
}

int Program::begin_attention(const AttentionPhase& phase) {
    if (phase.last) keep_rows(phase);
    plan_attention(phase, phase.last ? wanted_runs_ : runs_);
    return static_cast<int>(tasks_.size());
}

// Moves the wanted rows of every value that lives on to the front; ascending, so none is
// overwritten before it is read.
void Program::keep_rows(const AttentionPhase& phase) {
    for (const ValueId id : phase.kept) {
        const auto bytes =
            static_cast<size_t>(values_[static_cast<size_t>(id)].width) * sizeof(float);
        for (int i = 0; i < batch_.wanted; ++i) {
            if (batch_.logits_for[i] != i)
                std::memmove(row(id, i), row(id, batch_.logits_for[i]), bytes);
        }
    }
}

void Program::plan_attention(const AttentionPhase& phase, const std::vector<Run>& runs) {
    attention_runs_ = &runs;
    tasks_.clear();
    const KvLayer& layer = kv_layers_[static_cast<size_t>(phase.layer)];
    const int group = phase.heads / layer.heads;
    for (int i = 0; i < static_cast<int>(runs.size()); ++i) {
        const Run& run = runs[static_cast<size_t>(i)];
        const int pairs = run.rows * group;
        // Late rows see the most: they go first, so that the phase ends evenly.
        for (int end = pairs; end > 0; end -= std::min(end, kAttentionPairs)) {
            const int count = std::min(end, kAttentionPairs);
            const int last_row = run.position + (end - 1) / group;
            for (int head = 0; head < layer.heads; ++head) {
                tasks_.push_back({i, head, end - count, count, -1, last_row / kSegment + 1, 0});
            }
        }
    }
    const int whole = static_cast<int>(tasks_.size());
    if (whole > split_limit() || pool_.threads() == 1) return;
    for (int i = 0; i < whole; ++i) {
        AttentionTask task = tasks_[static_cast<size_t>(i)];
        task.group = i;
        if (task.last_segment == 1) {
            tasks_.push_back(task);
            continue;
        }
        unmerged_[static_cast<size_t>(i)].store(task.last_segment, std::memory_order_relaxed);
        for (task.segment = 0; task.segment < task.last_segment; ++task.segment) {
            tasks_.push_back(task);
        }
    }
    tasks_.erase(tasks_.begin(), tasks_.begin() + whole);
}

void Program::attention(const AttentionPhase& phase, const AttentionTask& task, Scratch& scratch) {
    const KvLayer& layer = kv_layers_[static_cast<size_t>(phase.layer)];
    const Run& run = (*attention_runs_)[static_cast<size_t>(task.run)];
    const int group = phase.heads / layer.heads;
    const size_t keys =
        layer.offset + static_cast<size_t>(task.kv_head) * (layer.key_bytes + layer.value_bytes);
    const Value& q = values_[static_cast<size_t>(phase.q)];
    const AttentionCall call{
        .kv = {.pool = kv_pool_.data(),
               .page_bytes = page_bytes_,
               .key_offset = keys,
               .value_offset = keys + layer.key_bytes,
               .pages =
                   batch_.page_tables + static_cast<ptrdiff_t>(run.sequence) * batch_.max_pages,
               .page_size = shape_.page_size,
               .head_dim = layer.head_dim,
               .bf16 = shape_.kv_bf16},
        .q =
            q.data + run.row * q.ld + static_cast<ptrdiff_t>(task.kv_head) * group * layer.head_dim,
        .ldq = q.ld,
        .group = group,
        .first_position = run.position,
        .first_pair = task.first_pair,
        .pairs = task.pairs,
        .scale = phase.scale,
        .window = phase.window,
        .softcap = phase.softcap,
    };
    const int floats = attention_state_floats(layer.head_dim);
    float* state = scratch.attention.floats();
    float* work = state + static_cast<ptrdiff_t>(kAttentionPairs) * floats;
    if (task.segment < 0) {
        clear_states(state, task.pairs, floats);
        ops_.attend(call, 0, task.last_segment, state, work);
        finish_attention(phase, task, run, state);
        return;
    }
    float* part = partial(task.group, task.segment, layer.head_dim);
    clear_states(part, task.pairs, floats);
    ops_.attend(call, task.segment, task.segment + 1, part, work);
    if (unmerged_[static_cast<size_t>(task.group)].fetch_sub(1, std::memory_order_acq_rel) == 1) {
        merge_segments(phase, task, run, scratch);
    }
}

void Program::merge_segments(const AttentionPhase& phase, const AttentionTask& task, const Run& run,
                             Scratch& scratch) {
    const int dim = kv_layers_[static_cast<size_t>(phase.layer)].head_dim;
    const int floats = attention_state_floats(dim);
    float* state = scratch.attention.floats();
    clear_states(state, task.pairs, floats);
    for (int segment = 0; segment < task.last_segment; ++segment) {
        const float* part = partial(task.group, segment, dim);
        for (int i = 0; i < task.pairs; ++i) {
            ops_.merge(state + static_cast<ptrdiff_t>(i) * floats,
                       part + static_cast<ptrdiff_t>(i) * floats, dim);
        }
    }
    finish_attention(phase, task, run, state);
}

void Program::finish_attention(const AttentionPhase& phase, const AttentionTask& task,
                               const Run& run, const float* state) {
    const KvLayer& layer = kv_layers_[static_cast<size_t>(phase.layer)];
    const int group = phase.heads / layer.heads;
    const int floats = attention_state_floats(layer.head_dim);
    for (int i = 0; i < task.pairs; ++i) {
        const int pair = task.first_pair + i;
        const int head = task.kv_head * group + pair % group;
        float* out = row(phase.out, run.out_row + pair / group) +
                     static_cast<ptrdiff_t>(head) * layer.head_dim;
        ops_.finish(state + static_cast<ptrdiff_t>(i) * floats, out, layer.head_dim);
    }
}

float* Program::partial(int group, int segment, int head_dim) {
    const ptrdiff_t index = static_cast<ptrdiff_t>(group) * segments_ + segment;
    return partials_.floats() + index * kAttentionPairs * attention_state_floats(head_dim);
}

}  // namespace onebit
