"""What a conversion did, as data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from onebit.container import TensorKind
from onebit.findings import Finding


class TensorReport(BaseModel):
    """One tensor that was written."""

    model_config = ConfigDict(frozen=True)

    name: str
    source: str = Field(description="Name in the source.")
    source_type: str
    kind: TensorKind
    codes_kept: bool = Field(description="Quantised codes are the source's own.")
    relative_rms: float = Field(
        description="RMS of the change over RMS of the source's values; 0 when nothing changed."
    )


class ConvertReport(BaseModel):
    """A whole conversion."""

    model_config = ConfigDict(frozen=True)

    directory: str
    family: str
    tensors: tuple[TensorReport, ...]
    findings: tuple[Finding, ...]

    @property
    def requantised(self) -> tuple[TensorReport, ...]:
        """Tensors that were quantised anew."""
        return tuple(t for t in self.tensors if t.kind.is_tiled and not t.codes_kept)
