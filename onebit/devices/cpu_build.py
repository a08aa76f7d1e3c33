"""Builds the native program of a plan: weights, buffers and phases handed to the extension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from onebit.container.decode import decode
from onebit.container.view import TensorView
from onebit.devices import cpu_compile as compiled
from onebit.devices.base import ProgramOptions
from onebit.devices.cpu_native import native
from onebit.plan.model import Add, Embed, Glu, Plan, RmsNorm, Rope, Softcap


class BoundWeights(Protocol):
    """What `onebit.plan.bind` returns: tensors by layer and role."""

    @property
    def outer(self) -> Mapping[str, TensorView]:
        """Tensors outside the layers, by role."""
        ...

    def layer(self, index: int) -> Mapping[str, TensorView]:
        """Tensors of one layer, by role."""
        ...


class Builder:
    """Builds the native program of one plan."""

    def __init__(
        self, plan: Plan, weights: BoundWeights, options: ProgramOptions, isa: str
    ) -> None:
        self._plan = plan
        self._weights = weights
        self.native: Any = native.Program(
            max_rows=options.max_rows,
            context=options.context,
            pages=options.pages,
            page_size=options.page_size,
            threads=options.threads,
            numerics=options.numerics,
            isa=isa,
            kv_bf16=options.kv_dtype == "bf16",
        )
        self._weight_ids: dict[int, int] = {}
        self._vector_ids: dict[int, int] = {}
        self.ropes: list[tuple[Any, NDArray[np.float32], NDArray[np.float32]]] = []
        self._rope_ids = {name: self._add_rope(name) for name in plan.ropes}
        self._kv_ids = [self._add_kv(i) for i in range(len(plan.layers))]

        program = compiled.compile_plan(plan)
        self.values = {
            name: self.native.add_value(plan.values[name], at)
            for name, at in program.offsets.items()
        }
        self.values[compiled.LOGITS] = self.native.add_value(plan.values[compiled.LOGITS], -1)
        for index, phase in enumerate(program.phases):
            self._add_phase(phase, program, index)
        self.native.seal()

    def _add_rope(self, name: str) -> int:
        recipe = self._plan.ropes[name]
        index: int = self.native.add_rope(recipe.dim // 2)
        cos, sin = self.native.rope_table(index)
        self.ropes.append((recipe, cos, sin))
        return index

    def _add_kv(self, layer: int) -> int:
        op = self._plan.attention(layer)
        index: int = self.native.add_kv(op.kv_heads, op.head_dim)
        return index

    def _view(self, role: str, layer: int | None) -> TensorView:
        if layer is None:
            return self._weights.outer[role]
        return self._weights.layer(layer)[role]

    def _weight(self, role: str, layer: int | None) -> int:
        view = self._view(role, layer)
        if id(view) not in self._weight_ids:
            self._weight_ids[id(view)] = self.native.add_weight(
                kind=view.kind.value,
                data=view.data,
                scale=view.scale,
                rows=view.rows,
                cols=view.cols,
            )
        return self._weight_ids[id(view)]

    def _vector(self, role: str | None, layer: int | None) -> int:
        if role is None:
            return -1
        view = self._view(role, layer)
        if id(view) not in self._vector_ids:
            self._vector_ids[id(view)] = self.native.add_vector(decode(view))
        return self._vector_ids[id(view)]

    def _add_phase(self, phase: compiled.Phase, program: compiled.Compiled, index: int) -> None:
        wanted = index > program.last_attention
        if isinstance(phase, compiled.RowPhase):
            ops = [native for row in phase.ops for native in self._row_ops(row)]
            names = [type(row.op).__name__ for row in phase.ops]
            self.native.add_rows(label=_row_label(names), wanted=wanted, ops=ops)
        elif isinstance(phase, compiled.LinearPhase):
            self._add_linear(phase, wanted)
        else:
            op = phase.op
            last = index == program.last_attention
            self.native.add_attention(
                label="attention",
                q=self.values[op.q],
                out=self.values[op.out],
                layer=self._kv_ids[phase.layer],
                heads=op.heads,
                scale=op.scale,
                window=op.window,
                softcap=op.softcap,
                kept=[self.values[name] for name in program.kept] if last else [],
                last=last,
            )

    def _add_linear(self, phase: compiled.LinearPhase, wanted: bool) -> None:
        op, then = phase.op, phase.then
        biases = op.biases or (None,) * len(op.weights)
        pieces = [
            native.Piece(
                weight=self._weight(weight, phase.layer),
                bias=self._vector(bias, phase.layer),
                out=-1 if then is not None else self.values[out],
                scale=op.scale,
            )
            for weight, bias, out in zip(op.weights, biases, op.out, strict=True)
        ]
        self.native.add_linear(
            label=op.role if then is None else f"{op.role}+{then.op}",
            wanted=wanted,
            pieces=pieces,
            then="nothing" if then is None else then.op,
            out=-1 if then is None else self.values[then.out],
            other=self.values[then.a] if isinstance(then, Add) else -1,
            scale=then.scale if isinstance(then, Add) else 1.0,
            act=then.act if isinstance(then, Glu) else "",
        )

    def _row_ops(self, row: compiled.PlacedRow) -> list[Any]:
        """Native row ops of one op; rope has one per value."""
        ids, widths, make = self.values, self._plan.values, native.RowOp
        match row.op:
            case Embed(weight=weight, out=out, scale=scale):
                return [make.embed(self._weight(weight, row.layer), ids[out], scale)]
            case RmsNorm() as op:
                return [
                    make.rms_norm(
                        ids[op.input],
                        self._vector(op.weight, row.layer),
                        ids[op.out],
                        op.groups,
                        widths[op.input] // op.groups,
                        op.eps,
                        op.offset,
                    )
                ]
            case Rope() as op:
                table = self._rope_ids[op.table]
                return [
                    make.rope(ids[name], table, widths[name] // op.head_dim, op.head_dim)
                    for name in op.values
                ]
            case Add() as op:
                return [make.add(ids[op.a], ids[op.b], ids[op.out], widths[op.out], op.scale)]
            case Glu() as op:
                return [make.glu(ids[op.gate], ids[op.up], ids[op.out], widths[op.out], op.act)]
            case Softcap() as op:
                return [make.softcap(ids[op.value], widths[op.value], op.cap)]
            case compiled.Append() as op:
                return [make.append(ids[op.k], ids[op.v], self._kv_ids[op.layer])]
            case compiled.Pack() as op:
                return [make.pack(ids[op.input], widths[op.input])]


def _row_label(names: list[str]) -> str:
    short = {"Embed": "embed", "RmsNorm": "norm", "Rope": "rope", "Append": "kv"}
    return "+".join(dict.fromkeys(short.get(name, name.lower()) for name in names))
