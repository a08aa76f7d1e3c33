// Decoding steps that are the same for any vector width. Included after V.

using F = V::F;
using I = V::I;
constexpr int NV = V::NV;
constexpr int NB = V::kVectors;

// The weight as the container decodes it; `m` is what Codec::scales gave.
template <Kind K>
inline F weight_vector(F q, F d, F m) {
    if constexpr (K == Kind::Q4NX) {
        return V::mul(d, V::sub(q, m));
    } else if constexpr (has_zero(K)) {
        return V::fma(d, q, m);  // the product is exact
    } else {
        return V::mul(d, q);
    }
}

// Turns what Codec::scales gave into the zeros of the integer paths.
template <Kind K>
inline void integer_zeros(const F (&d)[NV], F (&m)[NV]) {
    if constexpr (K == Kind::Q4NX) {
        for (int v = 0; v < NV; ++v) {
            m[v] = V::negated(V::mul(d[v], m[v]));
        }
    }
}

// Scales and zeros of group g by position.
template <Kind K>
inline void tile_scales(const uint8_t* tile, int g, F (&d)[NV], F (&m)[NV]) {
    constexpr TileLayout at = tile_layout(K);
    const uint8_t* stored = stored_tile<K>(tile, g);
    if constexpr (K == Kind::Q4_K) {
        F scale[NV];
        V::bf16_even_odd(stored + kQ4kS, d);
        V::bf16_even_odd(stored + kQ4kM, m);
        V::u8_even_odd(stored + at.d + g * kStripRows, scale);
        for (int v = 0; v < NV; ++v) {
            d[v] = V::mul(d[v], scale[v]);
        }
        V::u8_even_odd(stored + at.m + g * kStripRows, scale);
        for (int v = 0; v < NV; ++v) {
            m[v] = V::mul(m[v], scale[v]);
        }
    } else if constexpr (is_q8(K)) {
        V::bf16_in_order(stored + at.d + g * 64, d);
    } else {
        V::bf16_even_odd(stored + at.d + g * 64, d);
        if constexpr (has_zero(K)) {
            V::bf16_even_odd(stored + at.m + g * 64, m);
        }
    }
}

// Calls `call.operator()<n>()` for n in 1..Most.
template <int Most, class Call>
inline void with_rows(int n, Call&& call) {
    if constexpr (Most > 1) {
        if (n < Most) {
            return with_rows<Most - 1>(n, call);
        }
    }
    call.template operator()<Most>();
}
