"""The NPU's part of the config."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from onebit.config.honoured import PLANNED, Honoured
from onebit.config.values import Section

_ON_NPU = Honoured(routes=PLANNED, devices=("npu",))


class NpuConfig(Section):
    """`npu:` of serve.yaml: how the NPU is opened and driven."""

    model_config = ConfigDict(coerce_numbers_to_str=True)

    streams: Annotated[int, Honoured(routes=PLANNED, devices=("npu",), unit="contexts")] = Field(
        default=1,
        ge=1,
        le=8,
        description="Hardware contexts in one process, under one shared device lock.",
    )
    options: Annotated[dict[str, str], Honoured(routes=("private",), flag="--npu-opt")] = Field(
        default_factory=dict,
        description="KEY: VALUE options handed to a private add-on, which refuses unknown ones.",
    )
    gemm: Annotated[Literal["device", "host"], _ON_NPU] = Field(
        default="device",
        description="Where the int8 matrix products run. `host`: the same plan, packing and "
        "arithmetic on the CPU, with no device opened; the kernel set is still checked.",
    )
    lock_timeout: Annotated[float, Honoured(routes=PLANNED, devices=("npu",), unit="seconds")] = (
        Field(
            default=0,
            ge=0,
            le=86400,
            description="How long to wait for a device that another process holds; 0: for ever.",
        )
    )
    launch_timeout: Annotated[float, Honoured(routes=PLANNED, devices=("npu",), unit="seconds")] = (
        Field(
            default=10,
            gt=0,
            le=600,
            description="A launch that takes longer counts as failed and its context is rebuilt.",
        )
    )
