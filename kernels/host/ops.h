// The float32 ops around the linear ones, as one table of functions per instruction set.
//
// Every function is a pure function of one row (or of one row and head): a row's result never
// depends on the rows beside it. Sums run in a fixed order: 16 lanes, then halves joined.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace onebit {

enum class Activation : uint8_t { Silu, GeluTanh, Gelu };

// Attention of `pairs` consecutive (row, head) pairs that share one KV head of one sequence.
// Pair i is head i % group of row i / group, both counted from the first pair of the sequence's
// rows in this step. Scores run over segments of kSegment absolute positions; each segment has its
// own maximum, sum and weighted values, merged in ascending order, so that the result of a pair
// is the same however pairs and segments are split over calls.
inline constexpr int kSegment = 256;
// Pairs of one call at most; bounds the scratch.
inline constexpr int kAttentionPairs = 48;

struct KvHead {
    const std::byte* pool;  // of page 0
    size_t page_bytes;      // from one page to the next
    size_t key_offset;  // of this layer's and head's keys in a page: [page_size / 16][head_dim][16]
    size_t value_offset;   // of its values: [page_size][value_width]
    const int32_t* pages;  // page numbers of this sequence
    int page_size;         // positions per page, a multiple of 16
    int head_dim;
    bool bf16;  // else float32

    // head_dim padded to whole vectors; the padding stays zero.
    int value_width() const { return (head_dim + 15) / 16 * 16; }
};

struct AttentionCall {
    KvHead kv;
    const float* q;      // first row of the sequence in this step
    ptrdiff_t ldq;       // floats from row to row
    int group;           // query heads per KV head
    int first_position;  // of the sequence's first row in this step
    int first_pair;
    int pairs;
    float scale;
    int window;     // 0: none
    float softcap;  // 0: none
};

// What a pair has gathered over some segments: out = acc / total once all are merged.
// Layout per pair: [maximum, total, 14 floats unused, acc[value_width]].
inline constexpr int kStateHeader = 16;
inline int attention_state_floats(int head_dim) { return kStateHeader + (head_dim + 15) / 16 * 16; }
// Scratch floats of one attend() call.
inline constexpr int kAttentionRows = 12;
inline int attention_scratch_floats(int head_dim) {
    return kAttentionRows * (kSegment + head_dim + attention_state_floats(head_dim)) + 3 * kSegment;
}

struct OpKernels {
    // out = x / sqrt(mean(x^2) + eps) * (weight + offset) over each of `groups` parts of `width`.
    void (*rms_norm)(const float* x, const float* weight, float offset, float eps, int groups,
                     int width, float* out);
    // Rotates pairs (i, i + half) of every head in place; cos and sin are [half].
    void (*rope)(float* x, const float* cos, const float* sin, int heads, int head_dim, int half);
    void (*glu)(Activation act, const float* gate, const float* up, float* out, int n);
    void (*add)(const float* a, const float* b, float scale, float* out, int n);
    void (*softcap)(float* x, float cap, int n);
    // Writes one position's keys or values of one KV head.
    void (*store_key)(const float* k, std::byte* page_keys, int slot, int head_dim, bool bf16);
    void (*store_value)(const float* v, std::byte* page_values, int slot, int head_dim, bool bf16);
    // Gathers segments [first, last) into state[pair * attention_state_floats]. Each pair's state
    // must start empty (maximum -inf, total 0, acc 0) or hold all earlier segments.
    void (*attend)(const AttentionCall& call, int first_segment, int last_segment, float* state,
                   float* scratch);
    // Merges `part` (exactly one segment) into `state`; both of attention_state_floats.
    void (*merge)(float* state, const float* part, int head_dim);
    // out[head_dim] = acc / total.
    void (*finish)(const float* state, float* out, int head_dim);
    // Reads all bytes once and returns their xor, with prefetching: see bandwidth.h.
    uint64_t (*read)(const uint8_t* data, size_t bytes);
    // e^x and tanh x, elementwise in place: for the tests of the accuracy that ops rely on.
    void (*exp)(float* x, int n);
    void (*tanh)(float* x, int n);
};

const OpKernels& op_kernels(Isa isa);

}  // namespace onebit
