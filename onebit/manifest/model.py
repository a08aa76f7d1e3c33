"""The container manifest: a model directory as typed data."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from onebit.findings import Finding, Severity
from onebit.plan import Plan


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileFacts(_Model):
    """One file of the directory."""

    name: str
    bytes: int


class TokenizerFacts(_Model):
    """What tokenizer.json holds."""

    tokens: int = Field(description="Vocabulary size, added tokens included.")
    largest_id: int
    model: str = Field(description="Kind of tokenizer: BPE, Unigram, WordPiece.")


class TemplateFacts(_Model):
    """The chat template."""

    source: str = Field(description="File that it comes from.")
    renders: bool


class ContainerManifest(_Model):
    """A model directory, read and checked: its four parts and the kernels beside them."""

    path: str = Field(description="The directory, as given.")
    container: str = Field(default="model.q4nx", description="The container's file name.")
    files: tuple[FileFacts, ...] = ()
    family: str | None = None
    model_type: str | None = None
    tensor_count: int = 0
    tensor_kinds: dict[str, int] = Field(
        default_factory=dict, description="Number of the plan's tensors of each kind."
    )
    metadata: dict[str, str] = Field(default_factory=dict, description="The header's metadata.")
    plan: Plan | None = Field(default=None, description="The plan; null when it cannot be made.")
    plan_source: str | None = Field(
        default=None, description="`plan.json`, or `derived` from the family manifest."
    )
    tokenizer: TokenizerFacts | None = None
    template: TemplateFacts | None = None
    npu_dir: str | None = Field(
        default=None, description="`npu/` of the directory, if it is there."
    )
    fast_lane: bool = Field(
        default=False, description="Whether `npu/` holds whole-layer kernels of the fast lane."
    )
    findings: tuple[Finding, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether no finding is an error: a route can take the directory."""
        return not any(f.severity is Severity.ERROR for f in self.findings)
