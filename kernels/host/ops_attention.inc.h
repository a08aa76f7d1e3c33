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

// Without it GCC keeps the tiles' sums in memory.
#define ONEBIT_UNROLL _Pragma("GCC unroll 16")

// scores[r][g * 16 + lane] = q[., r] . keys, for `Rows` of the `All` queries in q and `Groups`
// vectors of positions. Meanwhile it fetches `Groups` vectors of later keys and of values, evenly: with
// few rows a step waits for memory, and no hardware prefetcher knows the way from page to page. The
// tiles stay functions of their own: inlined, their sums are moved between registers.
template <typename Kv, int All, int Rows, int Groups, bool Fetch>
[[gnu::noinline]] void score_tile(const float* q, const Kv* const* keys, const Kv* const* later,
                                  const Kv* const* values, int head_dim, float* scores) {
    Vec acc[Rows][Groups];
    ONEBIT_UNROLL for (int r = 0; r < Rows; ++r) {
        ONEBIT_UNROLL for (int g = 0; g < Groups; ++g) acc[r][g] = all(0.0F);
    }
    for (int d = 0; d < head_dim; ++d) {
        Vec k[Groups];
        ONEBIT_UNROLL for (int g = 0; g < Groups; ++g) {
            k[g] = load(keys[g] + d * kLanes);
            if constexpr (Fetch) {
                __builtin_prefetch(later[g] + d * kLanes, 0, 2);
                __builtin_prefetch(values[g * kLanes] + d * kLanes, 0, 2);
            }
        }
        ONEBIT_UNROLL for (int r = 0; r < Rows; ++r) {
            const Vec x = all(q[d * All + r]);
            ONEBIT_UNROLL for (int g = 0; g < Groups; ++g) acc[r][g] = fma(x, k[g], acc[r][g]);
        }
    }
    ONEBIT_UNROLL for (int r = 0; r < Rows; ++r) {
        ONEBIT_UNROLL for (int g = 0; g < Groups; ++g) store(scores + r * kSegment + g * kLanes, acc[r][g]);
    }
}

// out[r][.] = sum over positions [begin, end) of p[r][pos] * values[pos][offset ..], ascending.
template <typename Kv, int Rows, int Vectors>
[[gnu::noinline]] void value_tile(const float* p, const Kv* const* values, int begin, int end,
                                  int offset, float* out, ptrdiff_t ldo) {
    Vec acc[Rows][Vectors];
    ONEBIT_UNROLL for (int r = 0; r < Rows; ++r) {
        ONEBIT_UNROLL for (int i = 0; i < Vectors; ++i) acc[r][i] = all(0.0F);
    }
    for (int pos = begin; pos < end; ++pos) {
        const Kv* v = values[pos] + offset;
        Vec x[Vectors];
        ONEBIT_UNROLL for (int i = 0; i < Vectors; ++i) x[i] = load(v + i * kLanes);
        ONEBIT_UNROLL for (int r = 0; r < Rows; ++r) {
            const Vec weight = all(p[r * kSegment + pos]);
            ONEBIT_UNROLL for (int i = 0; i < Vectors; ++i) acc[r][i] = fma(weight, x[i], acc[r][i]);
        }
    }
    ONEBIT_UNROLL for (int r = 0; r < Rows; ++r) {
        ONEBIT_UNROLL for (int i = 0; i < Vectors; ++i) store(out + r * ldo + offset + i * kLanes, acc[r][i]);
    }
}

// Tile sizes that fill the registers of the set without spilling.
#if defined(__AVX512F__)
inline constexpr int kTileRows = 12;
inline constexpr int kScoreGroups = 2;
inline constexpr int kValueRows = 6;
constexpr int value_vectors(int) { return 4; }
#else
inline constexpr int kTileRows = 6;
inline constexpr int kScoreGroups = 1;
inline constexpr int kValueRows = 6;
constexpr int value_vectors(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#endif

// Positions of one segment as the kernels read them.
template <typename Kv>
struct Segment {
    int first;                          // absolute position of slot 0
    int begin;                          // first slot any pair sees
    int end;                            // one past the last
    const Kv* keys[kSegment / kLanes];  // of 16 positions
    const Kv* values[kSegment];         // of one position
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
        const Kv* values = reinterpret_cast<const Kv*>(page + kv.value_offset) +
                           static_cast<ptrdiff_t>(slot) * width;
        for (int i = 0; i < kLanes; ++i) segment.values[group * kLanes + i] = values + i * width;
    }
}

template <typename Kv, int Rows>
inline void scores(const Segment<Kv>& segment, const float* q, int head_dim, float* out) {
    constexpr int wide = Rows <= 2 ? 2 * kScoreGroups : kScoreGroups;
    constexpr int tile = Rows < kTileRows ? Rows : kTileRows;
    int group = segment.begin / kLanes;
    const int last = (segment.end + kLanes - 1) / kLanes;
    const auto run = [&]<int Groups>() {
        const Kv* const* keys = segment.keys + group;
        const Kv* const* values = segment.values + group * kLanes;
        // Two tiles ahead; at the end there is nothing left to fetch but what is here already.
        const Kv* const* later = group + 3 * Groups <= last ? keys + 2 * Groups : keys;
        float* to = out + group * kLanes;
        score_tile<Kv, Rows, tile, Groups, (Rows < kAttentionRows)>(q, keys, later, values,
                                                                    head_dim, to);
        int r = tile;
        for (; r + tile <= Rows; r += tile) {
            score_tile<Kv, Rows, tile, Groups, false>(q + r, keys, later, values, head_dim,
                                                      to + r * kSegment);
        }
        if constexpr (Rows % tile != 0) {
            score_tile<Kv, Rows, Rows % tile, Groups, false>(q + r, keys, later, values, head_dim,
                                                             to + r * kSegment);
        }
        group += Groups;
    };
    while (group + wide <= last) run.template operator()<wide>();
    while (group < last) run.template operator()<1>();
}

template <typename Kv, int Rows>
inline void weighted_values(const Segment<Kv>& segment, const float* p, int width, float* out,
                            ptrdiff_t ldo) {
    constexpr int vectors = value_vectors(Rows);
    int offset = 0;
    for (; offset + vectors * kLanes <= width; offset += vectors * kLanes) {
        value_tile<Kv, Rows, vectors>(p, segment.values, segment.begin, segment.end, offset, out,
                                      ldo);
    }
    for (; offset < width; offset += kLanes) {
        value_tile<Kv, Rows, 1>(p, segment.values, segment.begin, segment.end, offset, out, ldo);
    }
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

// Another thread may have written the queries: all their lines are asked for at once.
inline void fetch_queries(const AttentionCall& call, int first, int last) {
    const int dim = call.kv.head_dim;
    for (int pair = first; pair < last; ++pair) {
        const float* q = call.q + (pair / call.group) * call.ldq + (pair % call.group) * dim;
        for (int d = 0; d < dim; d += kLanes) __builtin_prefetch(q + d, 0, 2);
    }
}

// Scores -> weights e^(s - max) in place; positions outside the span become 0. Writes the
// maximum and total into `part`.
inline void weigh(float* s, const AttentionCall& call, Span span, int first, int begin, int end,
                  const float* slots, float* part) {
    const int low = std::max(span.low - first, begin);
    const int high = std::min(span.high - first, end - 1);
    const Vec lowest = all(static_cast<float>(low));
    const Vec highest = all(static_cast<float>(high));
    const Vec hidden = all(-INFINITY);
    const int from = begin / kLanes * kLanes;
    Vec top = hidden;
    for (int i = from; i < end; i += kLanes) {
        Vec x = load(s + i);
        const bool whole = low <= i && i + kLanes - 1 <= high;
        if (call.softcap > 0.0F) x = all(call.softcap) * tanh(x / all(call.softcap));
        if (!whole) x = where_between(load(slots + i), lowest, highest, x, hidden);
        if (!whole || call.softcap > 0.0F) store(s + i, x);
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
    fetch_queries(call, call.first_pair, end);
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
