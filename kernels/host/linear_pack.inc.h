// Packing activations, for any vector width. Included as linear_tiles is.

// The n values of one slice, zeros after them.
inline const float* whole_slice(const float* x, int n, float* padded) {
    if (n == kTileCols) {
        return x;
    }
    for (int c = 0; c < kTileCols; c += V::L) {
        V::store(padded + c, V::zero());
    }
    for (int c = 0; c < n; ++c) {
        padded[c] = x[c];
    }
    return padded;
}

// Factor and scale of a block whose largest |x| has these bits. A block without a finite or
// noticeable value has factor 0; its scale is then NaN or 0.
struct Quantiser {
    Quantiser(int32_t bits, float limit) {
        const float greatest = __builtin_bit_cast(float, bits);
        if (bits >= kNotFinite) {
            scale = __builtin_bit_cast(float, 0x7fc00000);
        } else if (greatest >= kTiny) {
            factor = limit / greatest;
            scale = greatest / limit;
        }
    }
    float factor = 0.0F;
    float scale = 0.0F;
};

// x * factor to the nearest integers; zeros when the factor is 0, whatever x is.
inline I quantised(const float* x, const Quantiser& by) {
    return by.factor == 0.0F ? V::izero() : V::nearest(V::mul(V::loadu(x), V::set1(by.factor)));
}

inline void pack_slice(const float* x, int n, SliceF32& slice) {
    float padded[kTileCols] alignas(64);
    x = whole_slice(x, n, padded);
    for (int c = 0; c < kTileCols; c += V::L) {
        V::store(slice.x + c, V::loadu(x + c));
    }
}

inline void pack_slice(const float* x, int n, SliceI16& slice) {
    float padded[kTileCols] alignas(64);
    x = whole_slice(x, n, padded);
    I greatest = V::izero();
    for (int c = 0; c < kTileCols; c += V::L) {
        greatest = V::imax(greatest, V::magnitude_bits(V::loadu(x + c)));
    }
    const Quantiser by(V::reduce_max(greatest), 32767.0F);
    slice.scale = by.scale;
    for (int g = 0; g < kGroups; ++g) {
        I sum = V::izero();
        for (int c = g * kGroupCols; c < (g + 1) * kGroupCols; c += V::L) {
            const I q = quantised(x + c, by);
            V::store_i16(slice.q + c, q);
            sum = V::iadd(sum, q);
        }
        slice.sum[g] = static_cast<float>(V::reduce_add(sum));
    }
}

inline void pack_slice(const float* x, int n, SliceByte& slice) {
    float padded[kTileCols] alignas(64);
    x = whole_slice(x, n, padded);
    for (int g = 0; g < kGroups; ++g) {
        I greatest = V::izero();
        for (int c = g * kGroupCols; c < (g + 1) * kGroupCols; c += V::L) {
            greatest = V::imax(greatest, V::magnitude_bits(V::loadu(x + c)));
        }
        const Quantiser by(V::reduce_max(greatest), 127.0F);
        I sum = V::izero();
        for (int c = g * kGroupCols; c < (g + 1) * kGroupCols; c += V::L) {
            const I q = quantised(x + c, by);
            store_byte_codes(slice, c, q);
            sum = V::iadd(sum, q);
        }
        const int32_t total = V::reduce_add(sum);
        slice.scale[g] = by.scale;
        slice.zero[g] = static_cast<float>(total) * by.scale;
        set_byte_sum(slice, g, total);
    }
}

template <class Slice>
void pack(const float* x, ptrdiff_t ldx, int rows, int begin, int end, int cols,
          std::byte* packed) {
    auto* slices = reinterpret_cast<Slice*>(packed);
    for (int r = begin; r < end; ++r) {
        for (int u = 0; u < slice_count(cols); ++u) {
            const int first = u * kTileCols;
            const int n = cols - first < kTileCols ? cols - first : kTileCols;
            pack_slice(x + r * ldx + first, n, slices[static_cast<ptrdiff_t>(u) * rows + r]);
        }
    }
}

void pack_rows(Numerics numerics, const float* x, ptrdiff_t ldx, int rows, int row_begin,
               int row_end, int cols, std::byte* packed) {
    switch (numerics) {
        case Numerics::F32: return pack<SliceF32>(x, ldx, rows, row_begin, row_end, cols, packed);
        case Numerics::I16: return pack<SliceI16>(x, ldx, rows, row_begin, row_end, cols, packed);
        case Numerics::I8: return pack<SliceByte>(x, ldx, rows, row_begin, row_end, cols, packed);
    }
}
