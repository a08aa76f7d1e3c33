// The linear kernels, for tests against their NumPy reference.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>

#include "bind_names.h"
#include "isa.h"
#include "linear.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onebit {

namespace {

using Raw = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using In = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using InMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Out2 = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
};

std::unique_ptr<std::byte, Free> aligned_bytes(size_t count) {
    const size_t rounded = (count + 63) / 64 * 64 + 64;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
    if (memory == nullptr) throw std::bad_alloc();
    return std::unique_ptr<std::byte, Free>(memory);
}

Weight weight_of(const std::string& kind, const Raw& data, const std::optional<InMatrix>& scale,
                 int rows, int cols) {
    if (rows <= 0 || cols <= 0) throw std::invalid_argument("rows and cols must be positive");
    const Weight weight{named_kind(kind), data.data(), scale ? scale->data() : nullptr, rows, cols};
    if (data.shape(0) != weight_bytes(weight)) {
        throw std::invalid_argument("data has another size than its kind and shape");
    }
    if ((weight.kind == Kind::INT8) != scale.has_value()) {
        throw std::invalid_argument("int8 tables, and only they, have a scale");
    }
    return weight;
}

void linear(const std::string& isa, const std::string& numerics, const std::string& kind,
            const Raw& data, const std::optional<InMatrix>& scale, int rows, int cols, const InMatrix& x,
            const std::optional<In>& bias, float factor, const Out2& out) {
    const Weight weight = weight_of(kind, data, scale, rows, cols);
    const int count = static_cast<int>(x.shape(0));
    if (static_cast<int>(x.shape(1)) != cols || static_cast<int>(out.shape(0)) != count ||
        static_cast<int>(out.shape(1)) != rows ||
        (bias && static_cast<int>(bias->shape(0)) != rows)) {
        throw std::invalid_argument("x must be [n, cols], out [n, rows] and bias [rows]");
    }
    const Numerics used = numerics_for(weight.kind, named_numerics(numerics));
    const LinearKernels& kernels = linear_kernels(named_isa(isa));
    const auto packed = aligned_bytes(packed_bytes(used, count, cols));
    const auto scratch = aligned_bytes(scratch_bytes(used, count));
    const nb::gil_scoped_release released;
    kernels.pack_rows(used, x.data(), cols, count, 0, count, cols, packed.get());
    kernels.linear_strips(weight, used, packed.get(), count, 0, strip_count(rows), out.data(), rows,
                          bias ? bias->data() : nullptr, factor, scratch.get());
}

void embed(const std::string& kind, const Raw& data, const std::optional<InMatrix>& scale, int rows,
           int cols, const Ids& tokens, float factor, const Out2& out) {
    const Weight weight = weight_of(kind, data, scale, rows, cols);
    const int count = static_cast<int>(tokens.shape(0));
    if (static_cast<int>(out.shape(0)) != count || static_cast<int>(out.shape(1)) != cols) {
        throw std::invalid_argument("out must be [tokens, cols]");
    }
    for (int i = 0; i < count; ++i) {
        if (tokens.data()[i] < 0 || tokens.data()[i] >= rows) {
            throw std::invalid_argument("a token is out of range");
        }
    }
    embed_rows(weight, tokens.data(), count, factor, out.data(), cols);
}

}  // namespace

}  // namespace onebit

void bind_linear(nb::module_& m) {
    m.def("linear", &onebit::linear, "isa"_a, "numerics"_a, "kind"_a, "data"_a,
          "scale"_a.none(), "rows"_a, "cols"_a, "x"_a, "bias"_a.none(), "factor"_a, "out"_a,
          "out = factor * (x . W^T + bias)");
    m.def("embed", &onebit::embed, "kind"_a, "data"_a, "scale"_a.none(), "rows"_a, "cols"_a,
          "tokens"_a, "factor"_a, "out"_a, "out[i] = factor * W[tokens[i]]");
}
