// Instruction sets, the row ops (for tests against their NumPy reference) and read bandwidth.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bandwidth.h"
#include "bind_names.h"
#include "isa.h"
#include "ops.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onebit {

namespace {

using In = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Raw = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

int size_of(const In& x) { return static_cast<int>(x.shape(0)); }
int size_of(const Out& x) { return static_cast<int>(x.shape(0)); }

void same_size(int a, int b) {
    if (a != b) throw std::invalid_argument("arrays must have the same length");
}

void rms_norm(const std::string& isa, const In& x, const In& weight, float offset, float eps,
              const Out& out) {
    const int width = size_of(weight);
    same_size(size_of(x), size_of(out));
    if (width == 0 || size_of(x) % width != 0) {
        throw std::invalid_argument("x must hold whole groups of the weight's length");
    }
    op_kernels(named_isa(isa))
        .rms_norm(x.data(), weight.data(), offset, eps, size_of(x) / width, width, out.data());
}

void rope(const std::string& isa, const Out& x, const In& cos, const In& sin, int head_dim) {
    const int half = size_of(cos);
    same_size(half, size_of(sin));
    if (head_dim < 2 * half || size_of(x) % head_dim != 0) {
        throw std::invalid_argument("x must hold whole heads of at least two tables' length");
    }
    op_kernels(named_isa(isa))
        .rope(x.data(), cos.data(), sin.data(), size_of(x) / head_dim, head_dim, half);
}

void glu(const std::string& isa, const std::string& act, const In& gate, const In& up,
         const Out& out) {
    same_size(size_of(gate), size_of(up));
    same_size(size_of(gate), size_of(out));
    op_kernels(named_isa(isa))
        .glu(named_activation(act), gate.data(), up.data(), out.data(), size_of(gate));
}

void add(const std::string& isa, const In& a, const In& b, float scale, const Out& out) {
    same_size(size_of(a), size_of(b));
    same_size(size_of(a), size_of(out));
    op_kernels(named_isa(isa)).add(a.data(), b.data(), scale, out.data(), size_of(a));
}

double bandwidth(const std::vector<Raw>& arrays, int threads, int rounds, const std::string& isa) {
    std::vector<Bytes> ranges;
    for (const Raw& array : arrays) ranges.push_back({array.data(), array.shape(0)});
    const Isa set = named_isa(isa);
    const nb::gil_scoped_release released;
    return read_bandwidth(ranges, threads, rounds, set);
}

}  // namespace

}  // namespace onebit

void bind_ops(nb::module_& m) {
    using namespace onebit;
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const Isa isa : {Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni}) {
            if (isa_supported(isa)) names.emplace_back(isa_name(isa));
        }
        return names;
    });
    m.def("rms_norm", rms_norm, "isa"_a, "x"_a, "weight"_a, "offset"_a, "eps"_a, "out"_a);
    m.def("rope", rope, "isa"_a, "x"_a, "cos"_a, "sin"_a, "head_dim"_a);
    m.def("glu", glu, "isa"_a, "act"_a, "gate"_a, "up"_a, "out"_a);
    m.def("add", add, "isa"_a, "a"_a, "b"_a, "scale"_a, "out"_a);
    m.def(
        "softcap",
        [](const std::string& isa, const Out& x, float cap) {
            op_kernels(named_isa(isa)).softcap(x.data(), cap, size_of(x));
        },
        "isa"_a, "x"_a, "cap"_a);
    m.def(
        "exp",
        [](const std::string& isa, const Out& x) {
            op_kernels(named_isa(isa)).exp(x.data(), size_of(x));
        },
        "isa"_a, "x"_a);
    m.def(
        "tanh",
        [](const std::string& isa, const Out& x) {
            op_kernels(named_isa(isa)).tanh(x.data(), size_of(x));
        },
        "isa"_a, "x"_a);
    m.def("read_bandwidth", bandwidth, "arrays"_a, "threads"_a, "rounds"_a, "isa"_a);
}
