"""Opens a program: a plan bound to its weights on a device of this process."""

from __future__ import annotations

import os
from dataclasses import replace

from onebit.devices.base import Program, ProgramInfo, ProgramOptions
from onebit.devices.cpu import native_status, open_cpu
from onebit.devices.reference import ReferenceOps
from onebit.findings import UsageError, error
from onebit.forward.interpreter import Interpreter
from onebit.plan import Plan, Weights

REFERENCE_NUMERICS = ("auto", "exact", "f32")


def open_host(
    plan: Plan, weights: Weights, device: str, options: ProgramOptions, *, isa: str = ""
) -> Program:
    """Return a program on the CPU.

    Args:
        plan: The model's plan.
        weights: Its tensors.
        device: `cpu` runs the native kernels, or NumPy with the reason in `info.detail["slow"]`
            where they could not be built; `reference` always runs NumPy.
        options: Sizes and arithmetic.
        isa: Instruction set of the native kernels; empty for the best one.

    Raises:
        UsageError: an option that the device does not have.
    """
    if device == "cpu" and not native_status():
        return open_cpu(plan, weights, options, isa=isa)
    return open_reference(plan, weights, device, options)


def open_reference(
    plan: Plan, weights: Weights, device: str, options: ProgramOptions
) -> Interpreter:
    """Return the NumPy program.

    Raises:
        UsageError: numerics other than float32.
    """
    if options.numerics not in REFERENCE_NUMERICS:
        raise UsageError(
            error(
                "reference.numerics",
                f"the NumPy path computes in float32 only, not {options.numerics!r}",
                "remove `numerics`, or install onebit with a C++ compiler present",
            )
        )
    detail = {"slow": f"NumPy path: {native_status()}"} if device == "cpu" else {}
    resolved = replace(options, numerics="f32", threads=options.threads or os.cpu_count() or 1)
    info = ProgramInfo(
        device="reference",
        numerics="f32",
        threads=resolved.threads,
        vocab=plan.vocab,
        options=resolved,
        detail=detail,
    )
    return Interpreter(plan, weights, ReferenceOps(options.context), info)
