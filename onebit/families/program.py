"""Turns a family's op list into a plan's ops, inferring and checking every value's width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onebit.families.config_json import Scope
from onebit.families.expressions import ExpressionError
from onebit.families.model import (
    AddSpec,
    AttentionSpec,
    EmbedSpec,
    Family,
    GluSpec,
    LinearSpec,
    OpSpec,
    RmsNormSpec,
    RopeOpSpec,
    SoftcapSpec,
)
from onebit.families.tensors import TensorTable
from onebit.plan.model import (
    Add,
    Attention,
    Embed,
    Glu,
    Linear,
    Op,
    RmsNorm,
    Rope,
    RopeTable,
    Softcap,
    TensorRef,
)


@dataclass(frozen=True)
class Ops:
    """The op lists of a plan and the widths of its values."""

    prologue: tuple[Op, ...]
    kinds: dict[str, tuple[Op, ...]]
    epilogue: tuple[Op, ...]
    values: dict[str, int]


def build_ops(
    family: Family,
    scope: Scope,
    table: TensorTable,
    kinds: tuple[str, ...],
    ropes: dict[str, RopeTable],
) -> Ops:
    """Return the ops of each layer kind in use.

    Raises:
        ExpressionError: an op reads a value that nothing wrote, widths disagree, or a number of
            the manifest cannot be computed.
    """
    values: dict[str, int] = {}
    outer = _Builder(scope, {}, table.outer, table.substituted, ropes, values)
    prologue = outer.build(family.prologue)
    lists: dict[str, tuple[Op, ...]] = {}
    for kind in dict.fromkeys(kinds):
        tensors = table.layers[kinds.index(kind)]
        builder = _Builder(scope, family.kinds[kind], tensors, set(), ropes, values)
        lists[kind] = builder.build(family.layer)
        if sum(isinstance(op, Attention) for op in lists[kind]) != 1:
            raise ExpressionError(f"layer kind {kind!r} needs exactly one attention op")
    epilogue = outer.build(family.epilogue)
    if "logits" not in values:
        raise ExpressionError("the epilogue writes no value named logits")
    return Ops(prologue, lists, epilogue, values)


class _Builder:
    def __init__(
        self,
        scope: Scope,
        variables: dict[str, str],
        tensors: dict[str, TensorRef],
        substituted: set[str],
        ropes: dict[str, RopeTable],
        values: dict[str, int],
    ) -> None:
        self.variables = variables
        self.ropes = ropes
        self.scope = Scope(dict(scope.numbers), scope.words)
        for name, expr in variables.items():
            if expr not in ropes:
                self.scope.numbers[name] = scope.number(expr)
        self.tensors, self.substituted, self.values = tensors, substituted, values

    def build(self, specs: tuple[OpSpec, ...]) -> tuple[Op, ...]:
        return tuple(
            self.op(spec)
            for spec in specs
            if spec.when is None or bool(self.scope.number(spec.when))
        )

    def width(self, value: str) -> int:
        if value not in self.values:
            raise ExpressionError(f"value {value!r} is read before anything writes it")
        return self.values[value]

    def write(self, value: str, width: int) -> str:
        known = self.values.setdefault(value, width)
        if known != width:
            raise ExpressionError(f"value {value!r} is {known} wide, then {width}")
        return value

    def tensor(self, role: str) -> TensorRef:
        if role not in self.tensors:
            raise ExpressionError(f"no tensor for role {role!r}")
        return self.tensors[role]

    def op(self, spec: OpSpec) -> Op:
        match spec:
            case EmbedSpec():
                out = self.write(spec.out, self.tensor(spec.weight).shape[1])
                return Embed(weight=spec.weight, out=out, scale=self.scale(spec, (spec.weight,)))
            case RmsNormSpec():
                return self.rms_norm(spec)
            case LinearSpec():
                return self.linear(spec)
            case RopeOpSpec():
                return self.rope(spec)
            case AttentionSpec():
                return self.attention(spec)
            case AddSpec():
                if self.width(spec.a) != self.width(spec.b):
                    raise ExpressionError(f"add of {spec.a!r} and {spec.b!r}: widths differ")
                out = self.write(spec.out, self.width(spec.a))
                return Add(a=spec.a, b=spec.b, out=out, scale=self.scope.number(spec.scale))
            case GluSpec():
                return self.glu(spec)
            case SoftcapSpec():
                self.width(spec.value)
                return Softcap(value=spec.value, cap=self.scope.number(spec.cap))

    def rms_norm(self, spec: RmsNormSpec) -> RmsNorm:
        groups = self.scope.integer(spec.groups)
        width = self.width(spec.input)
        if width != groups * self.tensor(spec.weight).shape[0]:
            raise ExpressionError(f"norm of {spec.input!r}: {width} is not {groups} x its weight")
        return RmsNorm(
            input=spec.input,
            weight=spec.weight,
            out=self.write(spec.out, width),
            eps=self.scope.number(spec.eps),
            groups=groups,
            offset=self.scope.number(spec.offset),
        )

    def linear(self, spec: LinearSpec) -> Linear:
        k = self.width(spec.input)
        shapes = [self.tensor(role).shape for role in spec.weights]
        if any(len(shape) != 2 or shape[1] != k for shape in shapes):
            raise ExpressionError(f"linear {spec.role}: input is {k} wide, weights are {shapes}")
        biases = tuple(role if role in self.tensors else None for role in spec.biases)
        return Linear(
            role=spec.role,
            input=spec.input,
            weights=spec.weights,
            biases=biases if any(biases) else (),
            out=tuple(self.write(o, s[0]) for o, s in zip(spec.out, shapes, strict=True)),
            k=k,
            n=tuple(shape[0] for shape in shapes),
            scale=self.scale(spec, spec.weights),
        )

    def scale(self, spec: EmbedSpec | LinearSpec, weights: Sequence[str]) -> float:
        if spec.scale_otherwise is not None and self.substituted.intersection(weights):
            return self.scope.number(spec.scale_otherwise)
        return self.scope.number(spec.scale)

    def rope(self, spec: RopeOpSpec) -> Rope:
        table = self.variables.get(spec.table, spec.table)
        head_dim = self.scope.integer(spec.head_dim)
        if table not in self.ropes or self.ropes[table].dim > head_dim:
            raise ExpressionError(f"rope table {table!r} is missing or wider than a head")
        if any(self.width(value) % head_dim for value in spec.values):
            raise ExpressionError(f"rope of {spec.values}: not whole heads of {head_dim}")
        return Rope(values=spec.values, table=table, head_dim=head_dim)

    def attention(self, spec: AttentionSpec) -> Attention:
        heads, kv_heads = self.scope.integer(spec.heads), self.scope.integer(spec.kv_heads)
        head_dim = self.scope.integer(spec.head_dim)
        widths = (self.width(spec.q), self.width(spec.k), self.width(spec.v))
        if widths != (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim):
            raise ExpressionError(f"attention: q, k, v are {widths} wide")
        if heads % kv_heads:
            raise ExpressionError(f"attention: {kv_heads} kv heads do not divide {heads} heads")
        return Attention(
            q=spec.q,
            k=spec.k,
            v=spec.v,
            out=self.write(spec.out, heads * head_dim),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=self.scope.number(spec.scale),
            window=self.scope.integer(spec.window),
            softcap=self.scope.number(spec.softcap),
        )

    def glu(self, spec: GluSpec) -> Glu:
        if self.width(spec.gate) != self.width(spec.up):
            raise ExpressionError(f"glu of {spec.gate!r} and {spec.up!r}: widths differ")
        act = self.scope.words.get(spec.act, spec.act)
        return Glu(
            gate=spec.gate,
            up=spec.up,
            out=self.write(spec.out, self.width(spec.gate)),
            act=act,
        )
