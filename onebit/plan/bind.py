"""Binds a plan to its container: every tensor of the plan as a view on the mapped file."""

from __future__ import annotations

from dataclasses import dataclass

from onebit.container import Container, TensorView
from onebit.plan.model import Plan, TensorRef


@dataclass(frozen=True)
class Weights:
    """The tensors of a plan, by role; nothing is copied."""

    outer: dict[str, TensorView]
    layers: tuple[dict[str, TensorView], ...]

    def layer(self, index: int) -> dict[str, TensorView]:
        """Return the tensors of one layer by role."""
        return self.layers[index]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, each counted once."""
        views = [*self.outer.values(), *(v for layer in self.layers for v in layer.values())]
        return sum(size for size in {view.name: view.data.size for view in views}.values())


def bind(plan: Plan, container: Container) -> Weights:
    """Return the views of all tensors that the plan names.

    Raises:
        InputError: the container lacks a tensor, or it has another size or kind.
    """

    def views(refs: dict[str, TensorRef]) -> dict[str, TensorView]:
        return {role: container.view(r.name, r.shape, r.kind) for role, r in refs.items()}

    return Weights(views(plan.tensors), tuple(views(layer.tensors) for layer in plan.layers))
