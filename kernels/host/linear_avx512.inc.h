// AVX-512 vector operations of the linear kernels: what both AVX-512 levels share.

struct Avx512 {
    using F = __m512;
    using I = __m512i;
    static constexpr int L = 16;
    static constexpr int NV = 2;
    static constexpr int kVectors = 2;
    static constexpr int kRowsInt = 7;
    static constexpr int kRowsF32 = 7;
    static constexpr int kFusedInt = 4;
    static constexpr int kFusedF32 = 4;
    static constexpr int kDenseOutputs = 4;
    static constexpr int kDenseRows = 6;

    static F zero() { return _mm512_setzero_ps(); }
    static F set1(float x) { return _mm512_set1_ps(x); }
    static F load(const float* p) { return _mm512_load_ps(p); }
    static F loadu(const float* p) { return _mm512_loadu_ps(p); }
    static void store(float* p, F a) { _mm512_store_ps(p, a); }
    static void storeu(float* p, F a) { _mm512_storeu_ps(p, a); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
    static F negated(F a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0F)); }
    static F to_float(I a) { return _mm512_cvtepi32_ps(a); }

    static I izero() { return _mm512_setzero_si512(); }
    static I iset1(int32_t x) { return _mm512_set1_epi32(x); }
    static I iload(const void* p) { return _mm512_load_si512(p); }
    static void istore(void* p, I a) { _mm512_store_si512(p, a); }
    static I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
    static I imax(I a, I b) { return _mm512_max_epi32(a, b); }
    static I nearest(F a) { return _mm512_cvtps_epi32(a); }
    static I magnitude_bits(F a) {
        return _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff));
    }
    static int32_t reduce_max(I a) { return _mm512_reduce_max_epi32(a); }
    static int32_t reduce_add(I a) { return _mm512_reduce_add_epi32(a); }
    static void store_i16(int16_t* p, I a) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
    }
    // Four bytes in every lane.
    static I all4(const void* p) {
        int32_t x;
        __builtin_memcpy(&x, p, sizeof x);
        return _mm512_set1_epi32(x);
    }

    // As assembly: GCC takes a function that only prefetches for one without effect, and drops it.
    static void prefetch(const uint8_t* p) {
        asm volatile("prefetcht1 %0" : : "m"(*p));
    }

    static __m128i load16(const uint8_t* p) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }
    static __m256i load32(const uint8_t* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static F load_bf16(const uint8_t* p) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load32(p)), 16));
    }
    static F load_f16(const uint8_t* p) { return _mm512_cvtph_ps(load32(p)); }
    static I load_int8(const uint8_t* p) { return _mm512_cvtepi8_epi32(load16(p)); }

    // 32 bfloat16 values: even ones, then odd ones.
    static void bf16_even_odd(const uint8_t* p, F (&out)[2]) {
        const I both = _mm512_loadu_si512(p);
        out[0] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        out[1] = _mm512_castsi512_ps(
            _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000U))));
    }
    static void bf16_in_order(const uint8_t* p, F (&out)[2]) {
        out[0] = load_bf16(p);
        out[1] = load_bf16(p + 32);
    }
    static void u8_even_odd(const uint8_t* p, F (&out)[2]) {
        const I both = _mm512_cvtepu16_epi32(load32(p));
        out[0] = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(0xff)));
        out[1] = _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 8));
    }

    // Positions to row order.
    static void in_order(const float* sums, bool even_odd, F (&rows)[2]) {
        rows[0] = load(sums);
        rows[1] = load(sums + 16);
        if (even_odd) {
            const I low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            const F even = rows[0];
            rows[0] = _mm512_permutex2var_ps(even, low, rows[1]);
            rows[1] = _mm512_permutex2var_ps(even, _mm512_add_epi32(low, _mm512_set1_epi32(8)),
                                             rows[1]);
        }
    }

    static float sum16(const F (&s)[1]) {
        const __m256 eight =
            _mm256_add_ps(_mm512_castps512_ps256(s[0]), _mm512_extractf32x8_ps(s[0], 1));
        const __m128 four =
            _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
};
