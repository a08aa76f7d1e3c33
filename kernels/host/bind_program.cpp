// Program, as onebit/devices/cpu_compile.py builds it and onebit/devices/cpu.py runs it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <tuple>

#include "bind_names.h"
#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onebit {

namespace {

using Raw = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Tables = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using View = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

WeightId add_weight(Program& program, const std::string& kind, const Raw& data,
                    const std::optional<Floats>& scale, int rows, int cols) {
    const Weight weight{named_kind(kind), data.data(), scale ? scale->data() : nullptr, rows, cols};
    if (rows <= 0 || cols <= 0 || weight_bytes(weight) > data.shape(0)) {
        throw std::invalid_argument("a weight is smaller than its shape says");
    }
    const size_t groups = static_cast<size_t>((cols + kGroupCols - 1) / kGroupCols);
    if (weight.kind == Kind::INT8 &&
        (!scale || scale->size() != static_cast<size_t>(rows) * groups)) {
        throw std::invalid_argument("an int8 table needs one scale per row and 32 columns");
    }
    return program.add_weight(weight);
}

void add_linear(Program& program, std::string label, bool wanted, std::vector<Piece> pieces,
                const std::string& then, ValueId out, ValueId other, float scale,
                const std::string& act) {
    LinearPhase phase;
    phase.pieces = std::move(pieces);
    if (then == "add") {
        phase.then = LinearPhase::Then::Add;
    } else if (then == "glu") {
        phase.then = LinearPhase::Then::Glu;
        phase.act = named_activation(act);
    } else if (then != "nothing") {
        throw std::invalid_argument("unknown fused op: " + then);
    }
    phase.out = out;
    phase.other = other;
    phase.scale = scale;
    program.add_phase({std::move(phase), std::move(label), wanted});
}

void step(Program& program, const Ints& tokens, const Ints& positions, const Ints& sequences,
          const Tables& page_tables, const Ints& logits_for) {
    if (positions.shape(0) != tokens.shape(0) || sequences.shape(0) != tokens.shape(0)) {
        throw std::invalid_argument("tokens, positions and sequences must have the same length");
    }
    const Batch batch{tokens.data(),
                      positions.data(),
                      sequences.data(),
                      static_cast<int>(tokens.shape(0)),
                      page_tables.data(),
                      static_cast<int>(page_tables.shape(0)),
                      static_cast<int>(page_tables.shape(1)),
                      logits_for.data(),
                      static_cast<int>(logits_for.shape(0))};
    const nb::gil_scoped_release released;
    program.step(batch);
}

View view(nb::handle self, float* data, int rows, int cols) {
    return View(data, {static_cast<size_t>(rows), static_cast<size_t>(cols)}, self);
}

std::vector<std::tuple<std::string, uint64_t, double>> timings(const Program& program) {
    std::vector<std::tuple<std::string, uint64_t, double>> result;
    for (size_t i = 0; i < program.phases().size(); ++i) {
        const Timing& timing = program.timings()[i];
        result.emplace_back(program.phases()[i].label, timing.calls,
                            static_cast<double>(timing.nanoseconds) * 1e-9);
    }
    return result;
}

void bind_row_ops(nb::module_& m) {
    using Code = RowOp::Code;
    nb::class_<RowOp>(m, "RowOp")
        .def_static(
            "embed",
            [](WeightId weight, ValueId out, float scale) {
                return RowOp{.code = Code::Embed, .out = out, .table = weight, .scale = scale};
            },
            "weight"_a, "out"_a, "scale"_a)
        .def_static(
            "rms_norm",
            [](ValueId in, VectorId weight, ValueId out, int groups, int width, float eps,
               float offset) {
                return RowOp{.code = Code::RmsNorm,
                             .in = in,
                             .out = out,
                             .table = weight,
                             .groups = groups,
                             .width = width,
                             .offset = offset,
                             .eps = eps};
            },
            "in"_a, "weight"_a, "out"_a, "groups"_a, "width"_a, "eps"_a, "offset"_a)
        .def_static(
            "rope",
            [](ValueId value, int table, int heads, int head_dim) {
                return RowOp{.code = Code::Rope,
                             .in = value,
                             .table = table,
                             .groups = heads,
                             .width = head_dim};
            },
            "value"_a, "table"_a, "heads"_a, "head_dim"_a)
        .def_static(
            "add",
            [](ValueId a, ValueId b, ValueId out, int width, float scale) {
                return RowOp{.code = Code::Add,
                             .in = a,
                             .in2 = b,
                             .out = out,
                             .width = width,
                             .scale = scale};
            },
            "a"_a, "b"_a, "out"_a, "width"_a, "scale"_a)
        .def_static(
            "glu",
            [](ValueId gate, ValueId up, ValueId out, int width, const std::string& act) {
                return RowOp{.code = Code::Glu,
                             .in = gate,
                             .in2 = up,
                             .out = out,
                             .width = width,
                             .act = named_activation(act)};
            },
            "gate"_a, "up"_a, "out"_a, "width"_a, "act"_a)
        .def_static(
            "softcap",
            [](ValueId value, int width, float cap) {
                return RowOp{.code = Code::Softcap, .in = value, .width = width, .scale = cap};
            },
            "value"_a, "width"_a, "cap"_a)
        .def_static(
            "append",
            [](ValueId k, ValueId v, int layer) {
                return RowOp{.code = Code::Append, .in = k, .in2 = v, .table = layer};
            },
            "k"_a, "v"_a, "layer"_a)
        .def_static(
            "pack",
            [](ValueId in, int width) {
                return RowOp{.code = Code::Pack, .in = in, .width = width};
            },
            "in"_a, "width"_a);
}

}  // namespace

}  // namespace onebit

void bind_program(nb::module_& m) {
    using namespace onebit;
    bind_row_ops(m);
    nb::class_<Piece>(m, "Piece")
        .def(
            "__init__",
            [](Piece* self, WeightId weight, VectorId bias, ValueId out, float scale) {
                new (self) Piece{weight, bias, out, scale};
            },
            "weight"_a, "bias"_a, "out"_a, "scale"_a);
    nb::class_<Program>(m, "Program")
        .def(
            "__init__",
            [](Program* self, int max_rows, int context, int pages, int page_size, int threads,
               const std::string& numerics, const std::string& isa, bool kv_bf16) {
                new (self) Program({max_rows, context, pages, page_size, threads,
                                    named_numerics(numerics), named_isa(isa), kv_bf16});
            },
            "max_rows"_a, "context"_a, "pages"_a, "page_size"_a, "threads"_a, "numerics"_a, "isa"_a,
            "kv_bf16"_a)
        .def("add_weight", add_weight, "kind"_a, "data"_a, "scale"_a.none(), "rows"_a, "cols"_a,
             nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
        .def(
            "add_vector",
            [](Program& program, const Floats& values) {
                return program.add_vector({values.data(), values.data() + values.size()});
            },
            "values"_a)
        .def("add_value", &Program::add_value, "width"_a, "offset"_a)
        .def("add_rope", &Program::add_rope, "half"_a)
        .def("add_kv", &Program::add_kv, "heads"_a, "head_dim"_a)
        .def(
            "add_rows",
            [](Program& program, std::string label, bool wanted, std::vector<RowOp> ops) {
                if (ops.empty()) throw std::invalid_argument("a row phase needs an op");
                program.add_phase({RowPhase{std::move(ops)}, std::move(label), wanted});
            },
            "label"_a, "wanted"_a, "ops"_a)
        .def("add_linear", add_linear, "label"_a, "wanted"_a, "pieces"_a, "then"_a, "out"_a,
             "other"_a, "scale"_a, "act"_a)
        .def(
            "add_attention",
            [](Program& program, std::string label, ValueId q, ValueId out, int layer, int heads,
               float scale, int window, float softcap, std::vector<ValueId> kept, bool last) {
                program.add_phase({AttentionPhase{q, out, layer, heads, scale, window, softcap,
                                                  std::move(kept), last},
                                   std::move(label), last});
            },
            "label"_a, "q"_a, "out"_a, "layer"_a, "heads"_a, "scale"_a, "window"_a, "softcap"_a,
            "kept"_a, "last"_a)
        .def("seal", &Program::seal)
        .def("step", step, "tokens"_a, "positions"_a, "sequences"_a, "page_tables"_a,
             "logits_for"_a)
        .def(
            "view",
            [](nb::handle_t<Program> self, ValueId id) {
                auto& program = nb::cast<Program&>(self);
                return view(self, program.value(id), program.shape().max_rows,
                            static_cast<int>(program.stride(id)));
            },
            "value"_a)
        .def(
            "rope_table",
            [](nb::handle_t<Program> self, int table) {
                auto& program = nb::cast<Program&>(self);
                const int context = program.shape().context;
                const int half = program.rope_half(table);
                return nb::make_tuple(view(self, program.rope_cos(table), context, half),
                                      view(self, program.rope_sin(table), context, half));
            },
            "table"_a)
        .def_prop_ro("kv_bytes", &Program::kv_bytes)
        .def("time_phases", &Program::time_phases, "on"_a)
        .def("timings", timings);
}
