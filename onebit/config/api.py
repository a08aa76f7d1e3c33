"""The HTTP API's part of the config."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr

from onebit.config.honoured import Honoured
from onebit.config.values import Bytes, FilePath, Section, split_list


class ApiConfig(Section):
    """`api:` of serve.yaml: who may ask, and how requests are judged."""

    keys: Annotated[
        tuple[SecretStr, ...], BeforeValidator(split_list), Honoured(flag="--api-key")
    ] = Field(default=(), description="Keys of which one must be sent; none: no key is asked.")
    keys_file: Annotated[FilePath | None, Honoured()] = Field(
        default=None, description="File with one key a line, beside `keys`; `#` starts a comment."
    )
    public_without_key: Annotated[bool, Honoured()] = Field(
        default=False, description="Allow an address other than loopback without any key."
    )
    cors_origins: Annotated[
        tuple[str, ...], BeforeValidator(split_list), Honoured(flag="--cors-origin")
    ] = Field(
        default=(), description="Origins whose web pages may call the API; `*` for every one."
    )
    max_body: Annotated[Bytes, Honoured(unit="bytes")] = Field(
        default=16 * 2**20, ge=1024, le=2**30, description="Largest request body."
    )
    model_mismatch: Annotated[Literal["refuse", "accept"], Honoured()] = Field(
        default="refuse",
        description="A request that names another model: 404, or answered by this model.",
    )
    strict_requests: Annotated[bool, Honoured()] = Field(
        default=False,
        description="Refuse unknown request fields instead of naming them in a reply header.",
    )
    slots: Annotated[bool, Honoured(flag="--slots")] = Field(
        default=True, description="Whether /slots tells how many places are taken."
    )
    metrics: Annotated[bool, Honoured(flag="--metrics")] = Field(
        default=True, description="Whether /metrics gives Prometheus' text."
    )
    body_timeout: Annotated[float, Honoured(unit="seconds")] = Field(
        default=30, gt=0, le=3600, description="A request body must have arrived within this."
    )
    idle_timeout: Annotated[float, Honoured(unit="seconds")] = Field(
        default=75, gt=0, le=3600, description="A kept-alive connection without a request ends."
    )
