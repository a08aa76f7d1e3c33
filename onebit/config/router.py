"""The request router of add-ons that drive several devices."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from onebit.config.honoured import Honoured
from onebit.config.values import FilePath, Section


class RouterConfig(Section):
    """`router:` of serve.yaml."""

    laya_model: Annotated[FilePath | None, Honoured(routes=(), flag="--laya-model")] = Field(
        default=None,
        description="Model of the router that picks a device for each request. Routes with one "
        "device have nothing to pick; only a private add-on may honour it.",
    )
