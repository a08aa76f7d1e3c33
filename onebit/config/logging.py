"""What is logged, and how. Prompts and answers never are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from onebit.config.honoured import Honoured
from onebit.config.values import Section


class LoggingConfig(Section):
    """`logging:` of serve.yaml."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Honoured(flag="--log-level")] = (
        Field(default="info", description="Least weight of a line that is logged.")
    )
    format: Annotated[Literal["human", "json"], Honoured(flag="--log-format")] = Field(
        default="human", description="Plain lines, or one JSON object a line."
    )
