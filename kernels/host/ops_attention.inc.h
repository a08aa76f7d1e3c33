// Attention of one instruction set: see ops.h for the arithmetic's order.
//
// Keys lie as [16 positions] vectors per dimension, so a score is one lane's chain of fused
// multiply-adds over the head's dimensions; values lie as rows. Neither needs a sum over lanes,
// and a pair's result is the same whichever pairs share the registers with it.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops.h"
#include "vec.h"

namespace onebit::ONEBIT_ISA_NAMESPACE {

inline uint16_t to_bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40U);
    return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

inline void put(float* to, float x) { *to = x; }
inline void put(uint16_t* to, float x) { *to = to_bf16(x); }

template <typename Kv>
inline void store_key_as(const float* k, std::byte* keys, int slot, int head_dim) {
    Kv* to = reinterpret_cast<Kv*>(keys) + (slot / kLanes) * head_dim * kLanes + slot % kLanes;
    for (int d = 0; d < head_dim; ++d) put(to + d * kLanes, k[d]);
}

template <typename Kv>
inline void store_value_as(const float* v, std::byte* values, int slot, int head_dim) {
    const int width = (head_dim + kLanes - 1) / kLanes * kLanes;
    Kv* to = reinterpret_cast<Kv*>(values) + slot * width;
    for (int d = 0; d < head_dim; ++d) put(to + d, v[d]);
    for (int d = head_dim; d < width; ++d) put(to + d, 0.0F);
}

inline void store_key(const float* k, std::byte* keys, int slot, int head_dim, bool bf16) {
    if (bf16) {
        store_key_as<uint16_t>(k, keys, slot, head_dim);
    } else {
        store_key_as<float>(k, keys, slot, head_dim);
    }
}

inline void store_value(const float* v, std::byte* values, int slot, int head_dim, bool bf16) {
    if (bf16) {
        store_value_as<uint16_t>(v, values, slot, head_dim);
    } else {
        store_value_as<float>(v, values, slot, head_dim);
    }
}

// scores[r][g * 16 + lane] = q[., r] . keys, for `Rows` queries and `Groups` vectors of positions.
template <typename Kv, int Rows, int Groups>
inline void score_tile(const float* q, const Kv* const* keys, int head_dim, float* scores) {
    Vec acc[Rows][Groups];
    for (int r = 0; r < Rows; ++r) {
        for (int g = 0; g < Groups; ++g) acc[r][g] = all(0.0F);
    }
    for (int d = 0; d < head_dim; ++d) {
        Vec k[Groups];
        for (int g = 0; g < Groups; ++g) k[g] = load(keys[g] + d * kLanes);
        for (int r = 0; r < Rows; ++r) {
            const Vec x = all(q[d * Rows + r]);
            for (int g = 0; g < Groups; ++g) acc[r][g] = fma(x, k[g], acc[r][g]);
        }
    }
    for (int r = 0; r < Rows; ++r) {
        for (int g = 0; g < Groups; ++g) store(scores + r * kSegment + g * kLanes, acc[r][g]);
    }
}

// acc[r][.] += p[r][pos] * values[pos][.] for positions [begin, end) of a segment, ascending.
template <typename Kv, int Rows, int Vectors>
inline void value_tile(const float* p, const Kv* const* groups, int begin, int end, int width,
                       float* out, ptrdiff_t ldo) {
    Vec acc[Rows][Vectors];
    for (int r = 0; r < Rows; ++r) {
        for (int i = 0; i < Vectors; ++i) acc[r][i] = all(0.0F);
    }
    for (int group = begin / kLanes; group * kLanes < end; ++group) {
        const int from = std::max(begin, group * kLanes);
        const int to = std::min(end, (group + 1) * kLanes);
        const Kv* v = groups[group] + (from % kLanes) * width;
        for (int pos = from; pos < to; ++pos, v += width) {
            Vec x[Vectors];
            for (int i = 0; i < Vectors; ++i) x[i] = load(v + i * kLanes);
            for (int r = 0; r < Rows; ++r) {
                const Vec weight = all(p[r * kSegment + pos]);
                for (int i = 0; i < Vectors; ++i) acc[r][i] = fma(weight, x[i], acc[r][i]);
            }
        }
    }
    for (int r = 0; r < Rows; ++r) {
        for (int i = 0; i < Vectors; ++i) store(out + r * ldo + i * kLanes, acc[r][i]);
    }
}

// Tile sizes that fill the registers of the set without spilling.
#if defined(__AVX512F__)
inline constexpr int kScoreGroups = 2;
inline constexpr int kValueRows = 6;
#else
inline constexpr int kScoreGroups = 1;
inline constexpr int kValueRows = 2;
#endif

// Positions of one segment as the kernels read them.
template <typename Kv>
struct Segment {
    int first;  // absolute position of slot 0
    int begin;  // first slot any pair sees
    int end;    // one past the last
    const Kv* keys[kSegment / kLanes];
    const Kv* values[kSegment / kLanes];
};

template <typename Kv>
inline void locate(const KvHead& kv, Segment<Kv>& segment) {
    const int width = kv.value_width();
    for (int group = segment.begin / kLanes; group * kLanes < segment.end; ++group) {
        const int position = segment.first + group * kLanes;
        const int slot = position % kv.page_size;
        const std::byte* page =
            kv.pool + static_cast<size_t>(kv.pages[position / kv.page_size]) * kv.page_bytes;
        segment.keys[group] = reinterpret_cast<const Kv*>(page + kv.key_offset) +
                              static_cast<ptrdiff_t>(slot) * kv.head_dim;
        segment.values[group] = reinterpret_cast<const Kv*>(page + kv.value_offset) +
                                static_cast<ptrdiff_t>(slot) * width;
    }
}

template <typename Kv, int Rows>
inline void scores(const Segment<Kv>& segment, const float* q, int head_dim, float* out) {
    constexpr int wide = Rows <= 2 ? 2 * kScoreGroups : kScoreGroups;
    int group = segment.begin / kLanes;
    const int last = (segment.end + kLanes - 1) / kLanes;
    for (; group + wide <= last; group += wide) {
        score_tile<Kv, Rows, wide>(q, segment.keys + group, head_dim, out + group * kLanes);
    }
    for (; group < last; ++group) {
        score_tile<Kv, Rows, 1>(q, segment.keys + group, head_dim, out + group * kLanes);
    }
}

template <typename Kv, int Rows>
inline void weighted_values(const Segment<Kv>& segment, const float* p, int width, float* out,
                            ptrdiff_t ldo) {
    constexpr int vectors = 4;
    int i = 0;
    const auto tile = [&]<int N>() {
        const Kv* groups[kSegment / kLanes];
        for (int g = segment.begin / kLanes; g * kLanes < segment.end; ++g) {
            groups[g] = segment.values[g] + i;
        }
        value_tile<Kv, Rows, N>(p, groups, segment.begin, segment.end, width, out + i, ldo);
        i += N * kLanes;
    };
    while (i + vectors * kLanes <= width) tile.template operator()<vectors>();
    while (i < width) tile.template operator()<1>();
}

inline void merge(float* state, const float* part, int head_dim) {
    if (part[0] == -INFINITY) return;  // nothing of this segment is seen
    const float high = std::max(state[0], part[0]);
    const float keep = exp(state[0] - high);
    const float take = exp(part[0] - high);
    state[0] = high;
    state[1] = state[1] * keep + part[1] * take;
    const int width = (head_dim + kLanes - 1) / kLanes * kLanes;
    const Vec k = all(keep);
    const Vec t = all(take);
    for (int i = kStateHeader; i < kStateHeader + width; i += kLanes) {
        store(state + i, fma(load(state + i), k, load(part + i) * t));
    }
}

inline void finish(const float* state, float* out, int head_dim) {
    const Vec total = all(state[1]);
    int i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) {
        store(out + i, load(state + kStateHeader + i) / total);
    }
    if (i < head_dim) {
        store_first(out + i, load(state + kStateHeader + i) / total, head_dim - i);
    }
}

// First and last position that a pair sees.
struct Span {
    int low;
    int high;
};

inline Span span_of(const AttentionCall& call, int pair) {
    const int position = call.first_position + pair / call.group;
    return {call.window > 0 ? std::max(0, position - call.window + 1) : 0, position};
}

// Scores -> weights e^(s - max) in place; positions outside the span become 0. Writes the
// maximum and total into `part`.
inline void weigh(float* s, const AttentionCall& call, Span span, int first, int begin, int end,
                  const float* slots, float* part) {
    const Vec low = all(static_cast<float>(std::max(span.low - first, -1)));
    const Vec high = all(static_cast<float>(std::min(span.high - first, kSegment)));
    const Vec hidden = all(-INFINITY);
    const int from = begin / kLanes * kLanes;
    Vec top = hidden;
    for (int i = from; i < end; i += kLanes) {
        Vec x = load(s + i);
        if (call.softcap > 0.0F) x = all(call.softcap) * tanh(x / all(call.softcap));
        x = where_between(load(slots + i), low, high, x, hidden);
        store(s + i, x);
        top = max(top, x);
    }
    const float maximum = largest(top);
    part[0] = maximum;
    if (maximum == -INFINITY) return;
    const Vec base = all(maximum);
    Vec total = all(0.0F);
    for (int i = from; i < end; i += kLanes) {
        const Vec weight = exp(load(s + i) - base);
        store(s + i, weight);
        total = total + weight;
    }
    part[1] = sum(total);
}

// Up to Rows pairs, all segments of the call.
template <typename Kv, int Rows>
inline void attend_rows(const AttentionCall& call, int pair, int rows, int first_segment,
                        int last_segment, float* state, float* scratch) {
    const int dim = call.kv.head_dim;
    const int state_floats = attention_state_floats(dim);
    float* q = scratch;                                   // [dim][Rows]
    float* s = q + kAttentionRows * dim;                  // [Rows][kSegment]
    float* part = s + kAttentionRows * kSegment;          // [Rows][state_floats]
    float* slots = part + kAttentionRows * state_floats;  // 0, 1, .. kSegment - 1
    for (int i = 0; i < kSegment; ++i) slots[i] = static_cast<float>(i);

    for (int r = 0; r < Rows; ++r) {
        const int p = pair + std::min(r, rows - 1);
        const float* from = call.q + (p / call.group) * call.ldq + (p % call.group) * dim;
        for (int d = 0; d < dim; ++d) q[d * Rows + r] = from[d] * call.scale;
    }
    const int low = span_of(call, pair).low;
    const int high = span_of(call, pair + rows - 1).high;
    for (int index = first_segment; index < last_segment; ++index) {
        Segment<Kv> segment;
        segment.first = index * kSegment;
        segment.begin = std::max(low - segment.first, 0);
        segment.end = std::min(high + 1 - segment.first, kSegment);
        if (segment.begin >= segment.end) continue;
        locate(call.kv, segment);
        scores<Kv, Rows>(segment, q, dim, s);
        for (int r = 0; r < Rows; ++r) {
            weigh(s + r * kSegment, call, span_of(call, pair + std::min(r, rows - 1)),
                  segment.first, segment.begin, segment.end, slots, part + r * state_floats);
            // A pair that sees nothing here may not bring infinities into its neighbours' tile.
            if (part[r * state_floats] == -INFINITY) std::fill_n(s + r * kSegment, kSegment, 0.0F);
        }
        float* values = part + kStateHeader;
        const int width = call.kv.value_width();
        int r = 0;
        for (; r + kValueRows <= Rows; r += kValueRows) {
            weighted_values<Kv, kValueRows>(segment, s + r * kSegment, width,
                                            values + r * state_floats, state_floats);
        }
        if constexpr (Rows % kValueRows != 0) {
            weighted_values<Kv, Rows % kValueRows>(segment, s + r * kSegment, width,
                                                   values + r * state_floats, state_floats);
        }
        for (r = 0; r < rows; ++r) {
            merge(state + (pair - call.first_pair + r) * state_floats, part + r * state_floats,
                  dim);
        }
    }
}

template <typename Kv>
inline void attend_as(const AttentionCall& call, int first_segment, int last_segment, float* state,
                      float* scratch) {
    const auto run = [&]<int Rows>(int pair, int rows) {
        attend_rows<Kv, Rows>(call, pair, rows, first_segment, last_segment, state, scratch);
    };
    const int end = call.first_pair + call.pairs;
    for (int pair = call.first_pair; pair < end;) {
        const int rows = std::min(end - pair, kAttentionRows);
        switch (rows) {
            case 1: run.template operator()<1>(pair, rows); break;
            case 2: run.template operator()<2>(pair, rows); break;
            case 3: run.template operator()<3>(pair, rows); break;
            case 4: run.template operator()<4>(pair, rows); break;
            case 5:
            case 6: run.template operator()<6>(pair, rows); break;
            case 7:
            case 8: run.template operator()<8>(pair, rows); break;
            default: run.template operator()<12>(pair, rows); break;
        }
        pair += rows;
    }
}

inline void attend(const AttentionCall& call, int first_segment, int last_segment, float* state,
                   float* scratch) {
    if (call.kv.bf16) {
        attend_as<uint16_t>(call, first_segment, last_segment, state, scratch);
    } else {
        attend_as<float>(call, first_segment, last_segment, state, scratch);
    }
}

}  // namespace onebit::ONEBIT_ISA_NAMESPACE
