"""The NPU device: int8 GEMMs of a plan on full-ELF designs through pyxrt, the rest on the host.

`designs` says which GEMM designs a plan needs, `kernels` finds and inspects them, `probe` looks
at the machine, `lock` serialises processes, `packing` is the arithmetic, `launches` drives the
device and `ops` is the `OpDevice`. Only `launches` and `ask` use pyxrt, and only inside a process
of their own: see `onebit.forward.worker`.
"""
