// Sixteen float32 lanes, the same for every instruction set.
//
// Included by the per-instruction-set sources only, which define ONEBIT_ISA_NAMESPACE so that no
// two of them share a symbol. Every op is the same operation per lane on each set; only fma() is
// a rounded product and a rounded sum where the set has no fused form.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace onebit::ONEBIT_ISA_NAMESPACE {

inline constexpr int kLanes = 16;

#if defined(__AVX512F__)

struct Vec {
    __m512 v;
};

inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load_first(const float* p, int n) {
    return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << n) - 1U), p)};
}
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline void store_first(float* p, Vec a, int n) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1U << n) - 1U), a.v);
}
inline Vec all(float x) { return {_mm512_set1_ps(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// a > b ? a : b, so that a NaN in b passes through.
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec round(Vec a) {
    return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// lane: low <= x <= high ? then : otherwise
inline Vec where_between(Vec x, Vec low, Vec high, Vec then, Vec otherwise) {
    const __mmask16 in =
        _mm512_cmp_ps_mask(x.v, low.v, _CMP_GE_OQ) & _mm512_cmp_ps_mask(x.v, high.v, _CMP_LE_OQ);
    return {_mm512_mask_blend_ps(in, otherwise.v, then.v)};
}
// x * 2^n for whole n, rounded once.
inline Vec times_power_of_two(Vec x, Vec n) { return {_mm512_scalef_ps(x.v, n.v)}; }
inline Vec load(const uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}

#elif defined(__AVX2__) && defined(__FMA__)

struct Vec {
    __m256 a, b;
};

inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline Vec all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec operator+(Vec x, Vec y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Vec operator-(Vec x, Vec y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Vec operator*(Vec x, Vec y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Vec operator/(Vec x, Vec y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline Vec fma(Vec x, Vec y, Vec z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline Vec max(Vec x, Vec y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Vec min(Vec x, Vec y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Vec round(Vec x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline __m256 where_between(__m256 x, __m256 low, __m256 high, __m256 then, __m256 otherwise) {
    const __m256 in =
        _mm256_and_ps(_mm256_cmp_ps(x, low, _CMP_GE_OQ), _mm256_cmp_ps(x, high, _CMP_LE_OQ));
    return _mm256_blendv_ps(otherwise, then, in);
}
inline Vec where_between(Vec x, Vec low, Vec high, Vec then, Vec otherwise) {
    return {where_between(x.a, low.a, high.a, then.a, otherwise.a),
            where_between(x.b, low.b, high.b, then.b, otherwise.b)};
}
// 2^n for whole n in -126..127; other n give some finite value.
inline __m256 power_of_two(__m256 n) {
    const __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}
inline Vec power_of_two(Vec n) { return {power_of_two(n.a), power_of_two(n.b)}; }
inline __m256 widen(const uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline Vec load(const uint16_t* p) { return {widen(p), widen(p + 8)}; }

#else

struct Vec {
    float v[kLanes];
};

#define ONEBIT_LANES for (int i = 0; i < kLanes; ++i)
inline Vec load(const float* p) {
    Vec r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline void store(float* p, const Vec& a) { std::memcpy(p, a.v, sizeof a.v); }
inline Vec all(float x) {
    Vec r;
    ONEBIT_LANES r.v[i] = x;
    return r;
}
inline Vec operator+(const Vec& a, const Vec& b) {
    Vec r;
    ONEBIT_LANES r.v[i] = a.v[i] + b.v[i];
    return r;
}
inline Vec operator-(const Vec& a, const Vec& b) {
    Vec r;
    ONEBIT_LANES r.v[i] = a.v[i] - b.v[i];
    return r;
}
inline Vec operator*(const Vec& a, const Vec& b) {
    Vec r;
    ONEBIT_LANES r.v[i] = a.v[i] * b.v[i];
    return r;
}
inline Vec operator/(const Vec& a, const Vec& b) {
    Vec r;
    ONEBIT_LANES r.v[i] = a.v[i] / b.v[i];
    return r;
}
inline Vec fma(const Vec& a, const Vec& b, const Vec& c) {
    Vec r;
    ONEBIT_LANES r.v[i] = a.v[i] * b.v[i] + c.v[i];
    return r;
}
inline Vec max(const Vec& a, const Vec& b) {
    Vec r;
    ONEBIT_LANES r.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return r;
}
inline Vec min(const Vec& a, const Vec& b) {
    Vec r;
    ONEBIT_LANES r.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
    return r;
}
inline Vec round(const Vec& a) {
    Vec r;
    constexpr float big = 12582912.0F;  // 1.5 * 2^23: adding it rounds |x| < 2^22 to nearest even
    ONEBIT_LANES r.v[i] = (a.v[i] + big) - big;
    return r;
}
inline Vec where_between(const Vec& x, const Vec& low, const Vec& high, const Vec& then,
                         const Vec& otherwise) {
    Vec r;
    ONEBIT_LANES r.v[i] = x.v[i] >= low.v[i] && x.v[i] <= high.v[i] ? then.v[i] : otherwise.v[i];
    return r;
}
inline Vec power_of_two(const Vec& n) {
    Vec r;
    ONEBIT_LANES {
        const float whole = n.v[i] >= -126.0F && n.v[i] <= 127.0F ? n.v[i] : 0.0F;
        const auto bits = static_cast<uint32_t>(static_cast<int32_t>(whole) + 127) << 23;
        std::memcpy(&r.v[i], &bits, sizeof bits);
    }
    return r;
}
inline Vec load(const uint16_t* p) {
    Vec r;
    ONEBIT_LANES {
        const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
        std::memcpy(&r.v[i], &bits, sizeof bits);
    }
    return r;
}
#undef ONEBIT_LANES

#endif

#if !defined(__AVX512F__)
// x * 2^n for whole n in -150..128 and 0.5 < x < 2, rounded once: the first of the two steps is
// exact.
inline Vec times_power_of_two(Vec x, Vec n) {
    const Vec half = round(n * all(0.5F));
    return x * power_of_two(half) * power_of_two(n - half);
}
// The first n lanes, 0 < n < 16; the rest are zero on load and untouched on store.
inline Vec load_first(const float* p, int n) {
    float lanes[kLanes] = {};
    std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
    return load(lanes);
}
inline void store_first(float* p, Vec a, int n) {
    float lanes[kLanes];
    store(lanes, a);
    std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}
#endif

// Halves joined until one lane is left: the same order on every set.
inline float sum(Vec a) {
    float lanes[kLanes];
    store(lanes, a);
    for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    return lanes[0];
}

inline float largest(Vec a) {
    float lanes[kLanes];
    store(lanes, a);
    for (int width = kLanes / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) {
            lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
        }
    }
    return lanes[0];
}

// e^x within 1.1 ulp for finite results; below -104 it is 0, above 88.73 infinity; NaN stays NaN.
// x = n ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r), p fitted at Chebyshev nodes.
inline Vec exp(Vec x) {
    x = max(all(-104.0F), min(all(89.0F), x));
    const Vec n = round(x * all(1.44269504F));
    Vec r = fma(n, all(-0.693359375F), x);
    r = fma(n, all(2.12194440e-4F), r);
    Vec p = fma(all(0.0013933734F), r, all(0.008363236F));
    p = fma(p, r, all(0.041666463F));
    p = fma(p, r, all(0.16666576F));
    p = fma(p, r, all(0.5F));
    return times_power_of_two(fma(p, r * r, r) + all(1.0F), n);
}

inline float exp(float x) {
    float lanes[kLanes];
    store(lanes, exp(all(x)));
    return lanes[0];
}

// tanh x within 4 ulp. Small |x|: x + x^3 p(x^2), p fitted at Chebyshev nodes on [0, 0.4].
inline Vec tanh(Vec x) {
    const Vec z = x * x;
    Vec p = fma(all(-0.0060536973F), z, all(0.020968188F));
    p = fma(p, z, all(-0.05384499F));
    p = fma(p, z, all(0.13332734F));
    p = fma(p, z, all(-0.33333328F));
    const Vec small = fma(x * z, p, x);
    const Vec large = all(1.0F) - all(2.0F) / (exp(x + x) + all(1.0F));
    return where_between(x, all(-0.625F), all(0.625F), small, large);
}

}  // namespace onebit::ONEBIT_ISA_NAMESPACE
