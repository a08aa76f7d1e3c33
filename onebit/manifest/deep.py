"""`validate --deep`: every tile is read, and encodings are proved by the data."""

from __future__ import annotations

from collections.abc import Callable

from onebit.container import Container, TensorKind, TensorView, decode
from onebit.container.detect import SURE, code_use
from onebit.container.meta_order import meta_order
from onebit.container.scan import ABSURD_SCALE, scan_padding, scan_q8_layout, scan_scales
from onebit.container.scan_zero import scan_zeros
from onebit.container.widths import NARROW_Q8
from onebit.families import load_families
from onebit.findings import Finding, Where, error, note, warning
from onebit.manifest.head import head_findings
from onebit.manifest.rope_order import rope_order_findings
from onebit.plan import Plan, Weights, bind

Progress = Callable[[int, int], None]

_MEND = "convert the model again from its source with `onebit convert`"
_MIN_GROUPS = 64
"""Fewer groups than this tell nothing about a quantiser."""


def deep_findings(plan: Plan, container: Container, progress: Progress | None) -> list[Finding]:
    """Return what a full read of the plan's tensors shows, with the evidence."""
    weights = bind(plan, container)
    views = {
        view.name: view
        for view in [*weights.outer.values(), *(v for y in weights.layers for v in y.values())]
    }
    total = sum(view.data.size for view in views.values())
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    found: list[Finding] = []
    for view in views.values():
        found += _values(view, str(container.path), advance)
        if view.kind.is_tiled:
            found += _tiles(view, str(container.path))
    found += _layout_note(views, str(container.path))
    found += head_findings(plan, weights, str(container.path))
    found += _unit_norms(plan, weights, str(container.path))
    found += rope_order_findings(plan, weights, str(container.path))
    return found


def _values(view: TensorView, file: str, advance: Callable[[int], None]) -> list[Finding]:
    scan = scan_scales(view, advance)
    found = []
    if scan.nonfinite:
        where = Where(file=file, field=view.name)
        if scan.first_bad is not None:
            what = f"{scan.nonfinite} scales or values are NaN or infinite, first at byte "
            what += f"{scan.first_bad} of the tensor"
        else:
            what = f"{scan.nonfinite} scales are NaN or infinite"
        found.append(error("container.nonfinite", what, _MEND, where))
    if scan.absurd:
        what = (
            f"{scan.absurd} scales are above {ABSURD_SCALE:g} (largest {scan.max_abs:.3g}): "
            "no trained model has such weights"
        )
        found.append(
            error("container.absurd_scale", what, _MEND, Where(file=file, field=view.name))
        )
    if scan.count and scan.zero == scan.count and view.rows > 1:
        what = f"all {scan.count} groups are zero"
        found.append(error("container.all_zero", what, _MEND, Where(file=file, field=view.name)))
    return found


def _tiles(view: TensorView, file: str) -> list[Finding]:
    where = Where(file=file, field=view.name)
    found = []
    padding = scan_padding(view)
    if padding.rows or padding.groups:
        what = (
            f"{padding.rows} padded rows and {padding.groups} padded groups do not decode to zero:"
            " the logical shape is wrong, or the converter left rubbish there"
        )
        found.append(warning("container.padding", what, _MEND, where))
    found += _scale_order(view, where)
    if view.kind in (TensorKind.Q8_A, TensorKind.Q8_B):
        found += _code_layout(view, where)
    if view.kind in _ZEROS:
        found += _zeros(view, where)
    if view.kind in (*_ZEROS, TensorKind.Q4_1_X64):
        found += _code_order(view, where)
    return found


_ZEROS = {
    TensorKind.Q4_1: "additive zeros: w = d * q + m",
    TensorKind.Q4_0: "signed codes without zeros: w = d * q",
    TensorKind.Q4NX: "subtractive zeros: w = d * (q - z)",
}


def _zeros(view: TensorView, where: Where) -> list[Finding]:
    scan = scan_zeros(view)
    if scan.other is not None:
        at, kind = scan.other
        what = (
            f"it is read with {_ZEROS[view.kind]}, as {scan.shares[view.kind]:.0%} of its tiles "
            f"are, but tile {at} and {scan.shares[kind]:.0%} in all look like {_ZEROS[kind]}"
        )
        return [error("container.zero_mixed", what, _MEND, where)]
    if not scan.tiles or scan.shares[view.kind] >= SURE:
        return []
    what = (
        f"it is read with {_ZEROS[view.kind]}, but only {scan.shares[view.kind]:.0%} of its tiles "
        "look so and the rest like no known kind"
    )
    mend = "if the model answers nonsense: " + _MEND
    return [warning("container.zero_unclear", what, mend, where)]


def _scale_order(view: TensorView, where: Where) -> list[Finding]:
    order = meta_order(view)
    if not order.swapped:
        return []
    what = (
        "its scales lie row by row inside a tile instead of group by group: read as they "
        f"should lie, rows and columns explain {order.group_major:.2f} of their spread, "
        f"row by row {order.row_major:.2f}"
    )
    mend = "convert again with a converter that writes scale index g * 32 + r; " + _MEND
    return [error("container.scales_swapped", what, mend, where)]


def _code_layout(view: TensorView, where: Where) -> list[Finding]:
    layout, other_from = scan_q8_layout(view)
    if layout.groups < _MIN_GROUPS or (other_from is None and layout.verdict is view.kind):
        return []
    shares = (
        f"{layout.share_a:.0%} of all groups reach 127 as layout A, {layout.share_b:.0%} as "
        "layout B; rightly read ones nearly all do"
    )
    if other_from is not None:
        what = f"it is read as {view.kind}, but tiles from {other_from} on lie the other way: "
        return [error("container.q8_layout", what + shares, _MEND, where)]
    what = f"its codes do not tell that {view.kind} is their layout: {shares}"
    mend = "if the model answers nonsense: " + _MEND
    return [warning("container.q8_layout", what, mend, where)]


def _code_order(view: TensorView, where: Where) -> list[Finding]:
    use = code_use(view)
    if use.groups < _MIN_GROUPS or use.both_ends > 0.75 or use.lowest > 0.95:
        return []
    what = (
        f"only {use.both_ends:.0%} of its groups use both code 0 and code 15: rightly read tiles "
        "of a min/max quantiser have nearly 100 %, tiles whose codes lie in another order 54-66 %"
    )
    mend = "if the model answers nonsense: " + _MEND
    return [warning("container.code_order", what, mend, where)]


def _layout_note(views: dict[str, TensorView], file: str) -> list[Finding]:
    kinds = sorted({v.kind.value for v in views.values() if v.kind in _LAYOUT_TEXT})
    found = [
        note("container.encoding", _LAYOUT_TEXT[TensorKind(kind)], Where(file=file))
        for kind in kinds
    ]
    narrow = [view.name for view in views.values() if view.kind is TensorKind.Q8_IN_Q4]
    if narrow:
        found.append(
            warning(
                "container.chunk_width",
                f"{len(narrow)} tensor(s) hold 8-bit codes in tiles of 32 x 128, filled up to 5120 "
                f"bytes; 32 x 256 is expected. {NARROW_Q8}. onebit reads them; a runtime with "
                "kernels for 8704-byte tiles ends while it loads, without a word",
                f"for other runtimes: {_MEND}, or with a later version of that converter",
                Where(file=file, field=narrow[0]),
            )
        )
    return found


_LAYOUT_TEXT = {
    TensorKind.Q8_A: 'Q8 tiles are in layout A ("column")',
    TensorKind.Q8_B: 'Q8 tiles are in layout B ("16-lane")',
    TensorKind.Q4_0: "4-bit tiles hold signed codes and no zeros (Q4_0)",
    TensorKind.Q4NX: "4-bit tiles have subtractive zeros: w = d * (q - z)",
    TensorKind.Q4_1_X64: "1280-byte tiles are read as 32 x 64 (`col_block_size` 64)",
}


def _unit_norms(plan: Plan, weights: Weights, file: str) -> list[Finding]:
    """Norm weights of families that store 1 + w: values around 0 lack the 1."""
    family = load_families()[plan.family]
    roles = [r for r, t in family.hf.tensors.items() if any("add" in x for x in t.transforms)]
    found = []
    for role in roles:
        views = [layer[role] for layer in weights.layers if role in layer]
        if role in weights.outer:
            views.append(weights.outer[role])
        values = [decode(view) for view in views]
        negative = sum(int((v < 0).sum()) for v in values) / max(1, sum(v.size for v in values))
        if values and negative > 0.1:
            what = (
                f"{negative:.0%} of the {role} weights are negative: this family stores 1 + w, "
                "and these look like w"
            )
            where = Where(file=file, field=views[0].name)
            found.append(error("container.norm_offset", what, _MEND, where))
    return found
