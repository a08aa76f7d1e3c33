// Row ops of one instruction set: see ops.h for what each does.
#pragma once

#include <algorithm>
#include <cmath>

#include "ops.h"
#include "vec.h"

namespace onebit::ONEBIT_ISA_NAMESPACE {

// Applies `f` (Vec... -> Vec) to whole vectors and to the tail of n elements.
template <typename F, typename... In>
inline void map(float* out, int n, F f, const In*... in) {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(in + i)...));
    if (i < n) store_first(out + i, f(load_first(in + i, n - i)...), n - i);
}

inline float sum_of_squares(const float* x, int n) {
    Vec a = all(0.0F);
    Vec b = all(0.0F);
    int i = 0;
    for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
        const Vec u = load(x + i);
        const Vec v = load(x + i + kLanes);
        a = fma(u, u, a);
        b = fma(v, v, b);
    }
    if (i + kLanes <= n) {
        const Vec u = load(x + i);
        a = fma(u, u, a);
        i += kLanes;
    }
    if (i < n) {
        const Vec v = load_first(x + i, n - i);
        b = fma(v, v, b);
    }
    return sum(a + b);
}

inline void rms_norm(const float* x, const float* weight, float offset, float eps, int groups,
                     int width, float* out) {
    for (int g = 0; g < groups; ++g, x += width, out += width) {
        const float mean = sum_of_squares(x, width) / static_cast<float>(width);
        const Vec inverse = all(1.0F / std::sqrt(mean + eps));
        const Vec shift = all(offset);
        map(out, width, [=](Vec v, Vec w) { return v * inverse * (w + shift); }, x, weight);
    }
}

inline void rope(float* x, const float* cos, const float* sin, int heads, int head_dim, int half) {
    for (int h = 0; h < heads; ++h, x += head_dim) {
        float* y = x + half;
        int i = 0;
        for (; i + kLanes <= half; i += kLanes) {
            const Vec a = load(x + i);
            const Vec b = load(y + i);
            const Vec c = load(cos + i);
            const Vec s = load(sin + i);
            store(x + i, a * c - b * s);
            store(y + i, b * c + a * s);
        }
        if (i < half) {
            const int n = half - i;
            const Vec a = load_first(x + i, n);
            const Vec b = load_first(y + i, n);
            const Vec c = load_first(cos + i, n);
            const Vec s = load_first(sin + i, n);
            store_first(x + i, a * c - b * s, n);
            store_first(y + i, b * c + a * s, n);
        }
    }
}

// g / (1 + e^-z): silu for z = g; gelu's tanh form for z = 2 u, as 1 + tanh u = 2 / (1 + e^-2u).
inline Vec gated(Vec g, Vec z) { return g / (all(1.0F) + exp(all(0.0F) - z)); }

inline Vec gelu_tanh(Vec g) {
    constexpr float two_sqrt_two_over_pi = 1.5957691216F;
    const Vec inner = fma(all(0.044715F) * g * g, g, g);
    return gated(g, all(two_sqrt_two_over_pi) * inner);
}

inline void glu(Activation act, const float* gate, const float* up, float* out, int n) {
    switch (act) {
        case Activation::Silu:
            map(out, n, [](Vec g, Vec u) { return gated(g, g) * u; }, gate, up);
            return;
        case Activation::GeluTanh:
            map(out, n, [](Vec g, Vec u) { return gelu_tanh(g) * u; }, gate, up);
            return;
        case Activation::Gelu:
            for (int i = 0; i < n; ++i) {
                constexpr float sqrt_half = 0.70710678F;
                out[i] = 0.5F * gate[i] * std::erfc(-gate[i] * sqrt_half) * up[i];
            }
            return;
    }
}

inline void add(const float* a, const float* b, float scale, float* out, int n) {
    const Vec s = all(scale);
    map(out, n, [=](Vec x, Vec y) { return fma(s, y, x); }, a, b);
}

inline void softcap(float* x, float cap, int n) {
    const Vec c = all(cap);
    map(x, n, [=](Vec v) { return c * tanh(v / c); }, x);
}

inline void exp_all(float* x, int n) {
    map(x, n, [](Vec v) { return exp(v); }, x);
}

inline void tanh_all(float* x, int n) {
    map(x, n, [](Vec v) { return tanh(v); }, x);
}

inline uint64_t read(const uint8_t* data, size_t bytes) {
    constexpr size_t line = 64;
    constexpr size_t block = 4 * line;
    constexpr size_t ahead = 5120;  // the distance that the linear kernels prefetch at: one tile
    uint64_t seen[32] = {};
    size_t at = 0;
    for (; at + block <= bytes; at += block) {
        for (size_t i = 0; i < block; i += line) {
            __builtin_prefetch(data + std::min(at + ahead + i, bytes - 1), 0, 2);
        }
        uint64_t words[32];
        std::memcpy(words, data + at, block);
        for (size_t i = 0; i < 32; ++i) seen[i] ^= words[i];
    }
    for (; at < bytes; ++at) seen[0] ^= data[at];
    for (size_t i = 1; i < 32; ++i) seen[0] ^= seen[i];
    return seen[0];
}

}  // namespace onebit::ONEBIT_ISA_NAMESPACE
