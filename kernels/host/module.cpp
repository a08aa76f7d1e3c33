// The extension module onebit.devices._native.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_linear(nb::module_& m);
void bind_ops(nb::module_& m);
void bind_program(nb::module_& m);

NB_MODULE(_native, m) {
    m.doc() = "Host kernels of onebit: see onebit/devices/cpu.py.";
    bind_ops(m);
    bind_linear(m);
    bind_program(m);
}
