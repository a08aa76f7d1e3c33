"""The end of serving."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from onebit.config.honoured import Honoured
from onebit.config.values import Section


class ShutdownConfig(Section):
    """`shutdown:` of serve.yaml."""

    grace: Annotated[float, Honoured(unit="seconds")] = Field(
        default=4,
        ge=0,
        le=3600,
        description="After SIGTERM, running answers get this long to finish; supervisors kill "
        "after 5 s by habit.",
    )
