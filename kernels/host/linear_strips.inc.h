// The entry point over all kinds and numerics. Included last.

void linear_strips(const Weight& weight, Numerics numerics, const std::byte* packed, int rows,
                   int strip_begin, int strip_end, float* y, ptrdiff_t ldy, const float* bias,
                   float scale, std::byte* scratch) {
    auto& tile = *reinterpret_cast<TileScratch*>(scratch);
    visit_dense(weight.kind, [&]<Kind K>() {
        dense_strips<K>(weight, packed, rows, strip_begin, strip_end, y, ldy, bias, scale);
    });
    visit_tiled(weight.kind, [&]<Kind K>() {
        switch (numerics) {
            case Numerics::F32:
                return tiled_strips<K, PathF32<K>>(weight, packed, rows, strip_begin, strip_end, y,
                                                   ldy, bias, scale, tile);
            case Numerics::I16:
                return tiled_strips<K, PathI16<K>>(weight, packed, rows, strip_begin, strip_end, y,
                                                   ldy, bias, scale, tile);
            case Numerics::I8:
                return tiled_strips<K, PathI8<K>>(weight, packed, rows, strip_begin, strip_end, y,
                                                  ldy, bias, scale, tile);
        }
    });
}
