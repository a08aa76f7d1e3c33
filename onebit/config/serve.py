"""`ServeConfig`: the whole wish to serve, typed."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from onebit.config.api import ApiConfig
from onebit.config.engine import EngineConfig
from onebit.config.honoured import PLANNED, Honoured
from onebit.config.logging import LoggingConfig
from onebit.config.names import ROUTES, NumericsName, RouteName
from onebit.config.npu import NpuConfig
from onebit.config.router import RouterConfig
from onebit.config.shutdown import ShutdownConfig
from onebit.config.values import FilePath

LAYERS: ContextVar[tuple[PydanticBaseSettingsSource, ...]] = ContextVar("LAYERS", default=())
"""Where values come from while `load_config` builds a config, strongest first; else nowhere."""


def _numerics_name(value: Any) -> Any:
    return "f32" if value == "exact" else value


class ServeConfig(BaseSettings):
    """Everything that one `onebit serve` was asked for: flags over environment over serve.yaml.

    Built by `load_config`. Built directly it reads neither files nor the environment.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=False)

    model: Annotated[FilePath | None, Honoured(routes=ROUTES)] = Field(
        default=None,
        description="A model directory, a model.q4nx inside one, or a .gguf file. Required.",
    )
    alias: Annotated[str | None, Honoured()] = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Name under which the model is served; without one, the path's last part.",
    )
    route: Annotated[Literal["auto"] | RouteName, Honoured(routes=ROUTES)] = Field(
        default="auto", description="Force a route; `auto` tries them in order."
    )
    device: Annotated[Literal["auto", "cpu", "npu", "reference"], Honoured(routes=PLANNED)] = Field(
        default="auto",
        description="Where the model runs. `auto`: the NPU when it is usable, else the CPU. `npu` "
        "never falls back. `reference` is the slow NumPy oracle.",
    )
    kernels: Annotated[
        FilePath | None, Honoured(routes=PLANNED, devices=("npu",), decides=True)
    ] = Field(
        default=None,
        description="Directory of NPU kernels, searched after ONEBIT_NPU_KERNELS and <model>/npu.",
    )
    host: Annotated[str, Honoured()] = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on."
    )
    port: Annotated[int, Honoured()] = Field(
        default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one."
    )
    ctx_size: Annotated[int, Honoured(unit="tokens")] = Field(
        default=0,
        ge=0,
        le=2**24,
        description="Longest prompt plus answer; 0: the model's own, as far as KV memory allows.",
    )
    threads: Annotated[int, Honoured(routes=PLANNED, devices=("cpu", "npu"))] = Field(
        default=0, ge=0, le=1024, description="Worker threads; 0: what measures best."
    )
    numerics: Annotated[NumericsName, BeforeValidator(_numerics_name), Honoured(routes=PLANNED)] = (
        Field(
            default="auto",
            description="Arithmetic of matrix products: f32 (also called exact), i16, i8, or "
            "int8-npu; auto: the device's default.",
        )
    )
    npu: NpuConfig = Field(default=NpuConfig(), description="The NPU.")
    engine: EngineConfig = Field(default=EngineConfig(), description="Sequences and KV memory.")
    api: ApiConfig = Field(default=ApiConfig(), description="The HTTP API.")
    router: RouterConfig = Field(default=RouterConfig(), description="The request router.")
    shutdown: ShutdownConfig = Field(default=ShutdownConfig(), description="The end of serving.")
    logging: LoggingConfig = Field(default=LoggingConfig(), description="Logs.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - fixed by pydantic-settings
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take values from the constructor and from `LAYERS`, never from the environment alone."""
        return (init_settings, *LAYERS.get())
