"""The family manifest model: what one file of `manifests/families/` holds.

Everything that makes a model family itself stands in its manifest. Expressions are names and
simple arithmetic over the config (see `expressions.py`); they are checked, never run as code.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from onebit.container.kinds import TensorKind

Expr = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int | float) else value),
    Field(description="Number, or arithmetic over dims, params and the layer kind's variables."),
]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_value(value: Any) -> Any:
    return {"key": value} if isinstance(value, str | list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class Value(_Model):
    """Where a number, flag or word comes from: the first config key that is there, or `expr`."""

    key: Names = Field(
        default=(),
        description="Keys of config.json, first one found wins; dots go into objects. "
        "Each is looked up at the top level, then in `text_config`.",
    )
    default: Expr | bool | None = Field(
        default=None, description="Expression or word used when no key is there; none: required."
    )
    expr: Expr | None = Field(default=None, description="Computed, not read.")
    map: dict[str, str] = Field(
        default_factory=dict, description="Words allowed in the config -> word used in the plan."
    )


ValueSpec = Annotated[Value, BeforeValidator(_as_value)]


class RopeSpec(_Model):
    """One rope table's recipe."""

    dim: Expr
    theta: ValueSpec
    scaling: Names = Field(
        default=(), description="Config keys that hold a rope_scaling object; first found wins."
    )


class TensorSpec(_Model):
    """One tensor role."""

    name: Names = Field(description="Names in the container; `{n}` is the layer index.")
    shape: tuple[Expr, ...] = Field(description="Logical shape: [out, in] or [size].")
    when: Expr | None = Field(default=None, description="Only there when this is non-zero.")
    otherwise: str | None = Field(
        default=None, description="Role used instead when the container has no such tensor."
    )
    otherwise_when: Expr | None = Field(
        default=None, description="`otherwise` is allowed only when this is non-zero."
    )


class EmbedSpec(_Model):
    """See `onebit.plan.Embed`."""

    op: Literal["embed"]
    weight: str
    out: str
    scale: Expr = "1"
    scale_otherwise: Expr | None = Field(
        default=None, description="`scale` when the weight's `otherwise` role is in use."
    )
    when: Expr | None = None


class RmsNormSpec(_Model):
    """See `onebit.plan.RmsNorm`."""

    op: Literal["rms_norm"]
    input: str
    weight: str
    out: str
    eps: Expr = "eps"
    groups: Expr = "1"
    offset: Expr = "0"
    when: Expr | None = None


class LinearSpec(_Model):
    """See `onebit.plan.Linear`."""

    op: Literal["linear"]
    role: str
    input: str
    weights: Names
    biases: tuple[str, ...] = Field(default=(), description="Roles; absent ones are skipped.")
    out: Names
    scale: Expr = "1"
    scale_otherwise: Expr | None = Field(
        default=None, description="`scale` when the weight's `otherwise` role is in use."
    )
    when: Expr | None = None


class RopeOpSpec(_Model):
    """See `onebit.plan.Rope`."""

    op: Literal["rope"]
    values: Names
    table: str = Field(description="Rope name, or a layer kind's variable that holds one.")
    head_dim: Expr = "head_dim"
    when: Expr | None = None


class AttentionSpec(_Model):
    """See `onebit.plan.Attention`."""

    op: Literal["attention"]
    q: str
    k: str
    v: str
    out: str
    heads: Expr = "heads"
    kv_heads: Expr = "kv_heads"
    head_dim: Expr = "head_dim"
    scale: Expr
    window: Expr = "0"
    softcap: Expr = "0"
    when: Expr | None = None


class AddSpec(_Model):
    """See `onebit.plan.Add`."""

    op: Literal["add"]
    a: str
    b: str
    out: str
    scale: Expr = "1"
    when: Expr | None = None


class GluSpec(_Model):
    """See `onebit.plan.Glu`."""

    op: Literal["glu"]
    gate: str
    up: str
    out: str
    act: str = Field(description="Activation, or a param that holds its name.")
    when: Expr | None = None


class SoftcapSpec(_Model):
    """See `onebit.plan.Softcap`."""

    op: Literal["softcap"]
    value: str
    cap: Expr
    when: Expr | None = None


OpSpec = Annotated[
    EmbedSpec
    | RmsNormSpec
    | LinearSpec
    | RopeOpSpec
    | AttentionSpec
    | AddSpec
    | GluSpec
    | SoftcapSpec,
    Field(discriminator="op"),
]


class LayerKinds(_Model):
    """Which kind each layer has."""

    key: Names = Field(default=(), description="Config key of a list of layer types.")
    map: dict[str, str] = Field(default_factory=dict, description="Layer type -> layer kind.")
    every: ValueSpec | None = Field(
        default=None, description="Without the list: each `every`-th layer is `last`."
    )
    start: Expr | None = Field(
        default=None, description="Without the list: layers from this index on are `last`."
    )
    last: str | None = Field(default=None, description="The kind that `every` or `start` picks.")
    others: str = Field(description="The kind of all other layers.")


class GgufTensor(_Model):
    """How one role is made from a GGUF."""

    name: str = Field(description="GGUF tensor name; `{n}` is the layer index.")
    transforms: tuple[str, ...] = Field(
        default=(),
        description="Applied in order: `rope_permute(heads)` interleaved -> half-split rows; "
        "`rows(start, count)` a part of a fused tensor; `scale(factor)`; `add(offset)`. "
        "Arguments are expressions over dims.",
    )
    kind: TensorKind | None = Field(default=None, description="Stored as this whatever the source.")


GgufTensorSpec = Annotated[
    GgufTensor, BeforeValidator(lambda v: {"name": v} if isinstance(v, str) else v)
]


class GgufConfig(_Model):
    """Where a config.json key's value comes from in a GGUF."""

    key: Names = Field(default=(), description="Metadata key without the `<arch>.` prefix.")
    default: Any = Field(default=None, description="Used when no key is there; null: left out.")
    value: Any = Field(default=None, description="A constant.")
    rows: str | None = Field(default=None, description="Number of rows of this GGUF tensor.")
    absent: str | None = Field(default=None, description="True when this GGUF tensor is absent.")
    per: str | None = Field(
        default=None, description="Divide the key's value by this (as `expr`, over config keys)."
    )
    expr: str | None = Field(
        default=None,
        description="Used when no key is there: arithmetic over config keys written before.",
    )


GgufConfigSpec = Annotated[GgufConfig, BeforeValidator(_as_value)]


class GgufSpec(_Model):
    """The converter's map from GGUF."""

    arch: Names = Field(description="`general.architecture` values.")
    config: dict[str, GgufConfigSpec] = Field(description="config.json keys to write, in order.")
    tensors: dict[str, GgufTensorSpec] = Field(description="Role -> GGUF tensor.")
    rope_freqs: str | None = Field(
        default=None, description="GGUF tensor of rope divisors, turned into `rope_scaling`."
    )
    rope_factors: tuple[str, str] | None = Field(
        default=None, description="GGUF tensors of longrope short and long factors."
    )
    applied: tuple[str, ...] = Field(
        default=(), description="Scale-like metadata keys (no prefix) that this family applies."
    )


class HfSpec(_Model):
    """Where Hugging Face safetensors differ from the container's names and values."""

    tensors: dict[str, GgufTensorSpec] = Field(default_factory=dict)


class Match(_Model):
    """What the family is recognised by."""

    model_type: Names = Field(description="`model_type` values of config.json.")


def _allow_extension(schema: dict[str, Any]) -> None:
    """A file that extends another need not repeat what it inherits."""
    schema["required"] = ["family"]


class Family(_Model):
    """One model family, declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_allow_extension)

    extends: str | None = Field(
        default=None,
        description="Family whose manifest this one changes: objects are merged key by key, "
        "anything else is replaced, null removes.",
    )
    schema_version: Literal[1] = Field(alias="schema", description="Version of this schema.")
    family: str = Field(description="Name; also the file's name.")
    match: Match
    dims: dict[str, ValueSpec] = Field(
        description="Integers, in order: later ones may use earlier ones. "
        "Required: hidden, layers, heads, kv_heads, head_dim, inter, vocab, context."
    )
    params: dict[str, ValueSpec] = Field(
        default_factory=dict, description="Other numbers, flags (0 or 1) and words, in order."
    )
    padded: dict[str, Expr] = Field(
        default_factory=dict,
        description="Dims that some converters round up, and to what: used when the tensors "
        "have that size.",
    )
    ropes: dict[str, RopeSpec] = Field(default_factory=dict)
    tensors: dict[str, TensorSpec] = Field(description="Roles outside the layers.")
    layer_tensors: dict[str, TensorSpec] = Field(description="Roles of each layer.")
    kinds: dict[str, dict[str, Expr]] = Field(
        description="Layer kinds, each with the variables that the op list sees."
    )
    layers: LayerKinds
    prologue: tuple[OpSpec, ...]
    layer: tuple[OpSpec, ...] = Field(description="The ops of a layer, in order.")
    epilogue: tuple[OpSpec, ...]
    gguf: GgufSpec | None = None
    hf: HfSpec = HfSpec()
    scales: tuple[str, ...] = Field(
        default=(), description="Scale-like config.json keys that this family knows and applies."
    )
