"""The plan model: what `plan.json` holds.

A plan is a family manifest filled in with one model's numbers. It names every tensor with its
logical shape and kind, and lists the ops of each layer kind in order. Devices run it and read
nothing else: whatever can be refused has been refused before a plan exists.

Values are named buffers of float32 rows: `h` is [rows, hidden]. `Plan.values` gives the width
of each.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from onebit.container.kinds import TensorKind

PLAN_SCHEMA: Final = 1
"""Version of the plan schema that this onebit writes and reads."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TensorRef(_Model):
    """A tensor of the container as the plan uses it."""

    name: str = Field(description="Name in the container's header.")
    shape: tuple[int, ...] = Field(
        description="Logical shape: [out_features, in_features] or [size]."
    )
    kind: TensorKind = Field(description="How its values are stored.")


class RopeScaling(_Model):
    """How the rope frequencies are changed for long contexts.

    Formulas: the `rope_scaling` conventions of Hugging Face config files.
    """

    kind: Literal["none", "linear", "llama3", "longrope", "yarn", "proportional"] = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    attention_factor: float = Field(default=1.0, description="Multiplies cos and sin.")
    beta_fast: float = 32.0
    beta_slow: float = 1.0


class RopeTable(_Model):
    """Recipe of one rope table. Half-split pairs: (i, i + dim / 2)."""

    dim: int = Field(gt=0, description="Rotated dimensions of each head; the rest passes through.")
    theta: float = Field(gt=0)
    scaling: RopeScaling = RopeScaling()


class Embed(_Model):
    """out = scale * weight[token]."""

    op: Literal["embed"] = "embed"
    weight: str
    out: str
    scale: float = 1.0


class RmsNorm(_Model):
    """out = x / sqrt(mean(x^2) + eps) * (weight + offset), over each of `groups` equal parts.

    `groups` is the number of heads for a per-head norm (the weight is then [head_dim]).
    """

    op: Literal["rms_norm"] = "rms_norm"
    input: str
    weight: str
    out: str
    eps: float
    groups: int = 1
    offset: float = Field(default=0.0, description="1 where the weight is stored as w - 1.")


class Linear(_Model):
    """out[i] = scale * (input @ weights[i].T + biases[i]): one GEMM role, its pieces along N."""

    op: Literal["linear"] = "linear"
    role: str = Field(description="GEMM role: QKV, O, GU, D or HEAD.")
    input: str
    weights: tuple[str, ...]
    biases: tuple[str | None, ...] = ()
    out: tuple[str, ...]
    k: int = Field(description="in_features.")
    n: tuple[int, ...] = Field(description="out_features of each piece.")
    scale: float = 1.0


class Rope(_Model):
    """Rotate `values` in place by position, head by head."""

    op: Literal["rope"] = "rope"
    values: tuple[str, ...]
    table: str
    head_dim: int


class Attention(_Model):
    """Causal grouped-query attention over this layer's KV cache, after appending k and v.

    score = scale * q.k, optionally softcap * tanh(score / softcap); position p sees
    p - window + 1 .. p when window > 0, else 0 .. p. KV head of head h: h // (heads / kv_heads).
    """

    op: Literal["attention"] = "attention"
    q: str
    k: str
    v: str
    out: str
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    softcap: float = 0.0


class Add(_Model):
    """out = a + scale * b."""

    op: Literal["add"] = "add"
    a: str
    b: str
    out: str
    scale: float = 1.0


class Glu(_Model):
    """out = act(gate) * up."""

    op: Literal["glu"] = "glu"
    gate: str
    up: str
    out: str
    act: Literal["silu", "gelu_tanh", "gelu"]


class Softcap(_Model):
    """value = cap * tanh(value / cap), in place."""

    op: Literal["softcap"] = "softcap"
    value: str
    cap: float


Op = Annotated[
    Embed | RmsNorm | Linear | Rope | Attention | Add | Glu | Softcap, Field(discriminator="op")
]


class Layer(_Model):
    """One layer: its kind (a key of `Plan.kinds`) and its tensors by role."""

    kind: str
    tensors: dict[str, TensorRef]


class SpecialTokens(_Model):
    """Token ids with a meaning. `bos` is prepended to raw prompts when `add_bos` is set."""

    bos: int | None = None
    eos: tuple[int, ...] = Field(default=(), description="Generation ends on any of these.")
    pad: int | None = None
    add_bos: bool = False


class Provenance(_Model):
    """Where the container came from. Facts only; never used to run."""

    source: str = ""
    source_bytes: int = 0
    source_sha256: str = ""
    converter: str = ""
    name: str = ""


class Plan(_Model):
    """One model's program: dims, tensors, ops in order, rope tables, KV layout, tokens."""

    schema_version: Literal[1] = PLAN_SCHEMA
    family: str = Field(description="Family manifest it was made from.")
    model_type: str = Field(description="`model_type` of config.json.")
    dims: dict[str, int] = Field(
        description="hidden, layers, heads, kv_heads, head_dim, inter, vocab, context and others."
    )
    ropes: dict[str, RopeTable]
    values: dict[str, int] = Field(description="Width of every named value, in float32 elements.")
    tensors: dict[str, TensorRef] = Field(description="Tensors outside the layers, by role.")
    prologue: tuple[Op, ...]
    kinds: dict[str, tuple[Op, ...]] = Field(description="Ops of each layer kind, in order.")
    layers: tuple[Layer, ...]
    epilogue: tuple[Op, ...] = Field(description="Ends in the value `logits`.")
    tokens: SpecialTokens
    thinks: bool = Field(
        default=False, description="Whether the model writes <think> blocks before its answer."
    )
    tool_format: str | None = Field(
        default=None, description="How the model writes tool calls: a name known to onebit.text."
    )
    provenance: Provenance = Provenance()

    @property
    def vocab(self) -> int:
        """Real vocabulary size; padded head rows beyond it are never produced."""
        return self.dims["vocab"]

    @property
    def context(self) -> int:
        """Largest context the model was made for, in tokens."""
        return self.dims["context"]

    def layer_ops(self, index: int) -> tuple[Op, ...]:
        """Return the ops of layer `index`, in order."""
        return self.kinds[self.layers[index].kind]

    def attention(self, index: int) -> Attention:
        """Return the attention op of layer `index`; every layer has exactly one."""
        return next(op for op in self.layer_ops(index) if isinstance(op, Attention))
