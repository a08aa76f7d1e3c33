"""Which kind a stored tensor is, and whether a kind and a logical shape fit its bytes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from onebit.container import detect
from onebit.container.entry import LOGICAL_DTYPE, Entry, show
from onebit.container.kinds import TensorKind, rows_and_cols, tensor_bytes, tile_grid
from onebit.container.meta_order import meta_order
from onebit.container.view import TensorView
from onebit.container.widths import CONVERTER, OTHER_TILES, odd_width
from onebit.findings import Finding, InputError, Where, error

if TYPE_CHECKING:
    from onebit.container.reader import Container

_PLAIN = {"BF16": TensorKind.BF16, "F32": TensorKind.F32, "F16": TensorKind.F16}
_PACKED = (
    TensorKind.Q4_1,
    TensorKind.Q4_K,
    TensorKind.Q8_A,
    TensorKind.Q8_IN_Q4,
    TensorKind.Q4_1_X64,
)
"""One kind for each tile size; the others of the same size differ by content."""
_MEND = "correct the shape in config.json or plan.json, or convert the model again"


def check_fit(container: Container, name: str, shape: tuple[int, ...], kind: TensorKind) -> None:
    """Raise an InputError unless kind and logical shape fit the stored tensor."""
    found = misfit(container, name, shape, kind)
    if found is not None:
        raise InputError(found)


def misfit(
    container: Container, name: str, shape: tuple[int, ...], kind: TensorKind
) -> Finding | None:
    """Return what keeps a stored tensor from being `shape` of `kind`, or None if it fits."""
    entry = container.entry(name)
    dtypes = {TensorKind.INT8: ("I8",)} | {plain: (dtype,) for dtype, plain in _PLAIN.items()}
    if entry.dtype not in dtypes.get(kind, ("I8", LOGICAL_DTYPE)):
        what = f"its dtype is {entry.dtype}, which is not how {kind} tensors are stored"
        return _finding(container, entry, "container.kind_mismatch", what)
    if kind is TensorKind.INT8 and not container.has_scale(name):
        what = f"an int8 table needs a partner {show(name)}.scale, and there is none"
        return _finding(container, entry, "container.int8_scale", what)
    if not kind.is_tiled or entry.dtype == LOGICAL_DTYPE:
        if _core(entry.shape) != _core(shape):
            what = f"its shape is {list(entry.shape)}, expected {list(shape)}"
            return _finding(container, entry, "container.shape_mismatch", what)
        return (
            None
            if entry.nbytes == tensor_bytes(kind, shape)
            else _extent(container, entry, shape, kind)
        )
    if entry.nbytes != tensor_bytes(kind, shape) or not _grid_fits(entry, shape, kind):
        return _extent(container, entry, shape, kind)
    return None


def kind_of(container: Container, name: str, shape: tuple[int, ...]) -> TensorKind:
    """Tell how a tensor of logical `shape` is stored; see `Container.kind_of`."""
    entry = container.entry(name)
    if entry.dtype in _PLAIN or container.has_scale(name):
        kind = _PLAIN.get(entry.dtype, TensorKind.INT8)
        check_fit(container, name, shape, kind)
        return kind
    candidates = [kind for kind in _PACKED if misfit(container, name, shape, kind) is None]
    if not candidates:
        raise InputError(_no_kind(container, entry, shape))
    views = [container.view(name, shape, kind) for kind in candidates]
    views = [view for view in views if _built_right(view)]
    if not views:
        raise InputError(_no_kind(container, entry, shape))
    view = views[0] if len(views) == 1 else detect.most_covered(views)
    match view.kind:
        case TensorKind.Q4_1:
            return _four_bit(container, entry, view)
        case TensorKind.Q8_A:
            return _eight_bit(container, entry, view)
        case kind:
            return kind


def _four_bit(container: Container, entry: Entry, view: TensorView) -> TensorKind:
    """Tell q4_1, signed q4_0 and subtractive q4nx apart by their planes."""
    evidence = detect.zero_convention(view)
    if evidence.verdict == "copied":
        what = (
            f"its zero plane repeats its scale plane in {evidence.copied_share:.0%} of the tiles: "
            "8-bit weights were pushed through a 4-bit packer and cannot be restored"
        )
        mend = "convert from the GGUF again: `onebit convert MODEL.gguf DIR`"
        raise InputError(_finding(container, entry, "container.q8_cut_to_q4", what, mend))
    kinds = {
        "signed": TensorKind.Q4_0,
        "subtractive": TensorKind.Q4NX,
        "additive": TensorKind.Q4_1,
    }
    default = TensorKind.Q4NX if entry.dtype == LOGICAL_DTYPE else TensorKind.Q4_1
    return kinds.get(evidence.verdict, default)


def _eight_bit(container: Container, entry: Entry, view: TensorView) -> TensorKind:
    """Tell the two code layouts of 8704-byte tiles apart by their codes."""
    evidence = detect.q8_layout(view)
    if evidence.verdict is not None:
        return evidence.verdict
    if any(
        other.shape[-1:] == (TensorKind.Q4_K.tile_bytes,) for other in container.entries.values()
    ):
        return TensorKind.Q8_A
    if meta_order(view).swapped:
        what = "its scales lie row by row inside a tile instead of group by group"
        mend = "convert the model from its GGUF: `onebit convert MODEL.gguf DIR`"
        raise InputError(_finding(container, entry, "container.scales_swapped", what, mend))
    what = (
        f"the code layout of its 8-bit tiles cannot be told: {evidence.share_a:.0%} of the groups "
        f"reach 127 in layout A, {evidence.share_b:.0%} in layout B"
    )
    mend = "write a plan.json that names its kind, q8_a or q8_b"
    raise InputError(_finding(container, entry, "container.q8_layout", what, mend))


def _built_right(view: TensorView) -> bool:
    """Whether tiles have the marks of their kind; only 8-bit tiles of 5120 bytes have any.

    Without this a 4-bit tensor given half its columns would pass for an 8-bit one.
    """
    return view.kind is not TensorKind.Q8_IN_Q4 or detect.q8_in_q4_share(view) > 0.99


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without axes of size 1: [1, n] and [n] hold the same values in the same order."""
    return tuple(size for size in shape if size != 1)


def _grid_fits(entry: Entry, shape: tuple[int, ...], kind: TensorKind) -> bool:
    """Check a packed shape [tiles, bytes], [row blocks, column blocks, bytes] or [n, 1280]."""
    *grid, last = entry.shape
    if len(grid) == 2 and last == kind.tile_bytes:
        return tuple(grid) == tile_grid(kind, shape)
    return last == kind.tile_bytes or (
        last == TensorKind.Q4_1_X64.tile_bytes and kind is TensorKind.Q4_1
    )


def _extent(
    container: Container, entry: Entry, shape: tuple[int, ...], kind: TensorKind
) -> Finding:
    expected = tensor_bytes(kind, shape)
    detail = f"{expected} bytes"
    if kind.is_tiled:
        down, across = tile_grid(kind, shape)
        detail = f"{down} x {across} tiles of {kind.tile_bytes} bytes, {expected} in all"
    what = (
        f"{list(shape)} as {kind} takes {detail}; the file holds {entry.nbytes} bytes as "
        f"{entry.dtype} {list(entry.shape)}"
    )
    return _finding(container, entry, "container.shape_mismatch", what)


def _no_kind(container: Container, entry: Entry, shape: tuple[int, ...]) -> Finding:
    last = entry.shape[-1] if entry.shape else 0
    stored = f"{entry.dtype} {list(entry.shape)}, {entry.nbytes} bytes"
    for kind in _PACKED:
        if kind.tile_bytes == last and kind is not TensorKind.Q8_IN_Q4:
            return _extent(container, entry, shape, kind)
    odd = odd_width(entry, *rows_and_cols(shape))
    if odd is not None:
        return _width_finding(container, entry, *odd)
    if entry.dtype in ("I8", "U8") and last in OTHER_TILES:
        what = f"it is stored as {OTHER_TILES[last]} ({stored}), which onebit does not read"
        mend = "convert the model from its GGUF: `onebit convert MODEL.gguf DIR`"
        return _finding(container, entry, "container.kind_unsupported", what, mend)
    if entry.dtype == "I8" and prod(entry.shape) == prod(shape):
        what = f"it looks like an int8 table ({stored}) but has no partner {show(entry.name)}.scale"
        return _finding(container, entry, "container.int8_scale", what)
    rows, cols = rows_and_cols(shape)
    what = f"no way of storing {rows} x {cols} values fits {stored}"
    return _finding(container, entry, "container.no_kind", what)


def _width_finding(container: Container, entry: Entry, width: int, tiles: str) -> Finding:
    what = (
        f"it is stored as {tiles} of 32 x {width} ({entry.dtype} {list(entry.shape)}); 32 x 256 is "
        f"expected. {CONVERTER} makes them with `col_block_size` {width} in configs/MODEL.json"
    )
    mend = (
        "convert the model from its GGUF: `onebit convert MODEL.gguf DIR`, or set "
        "`col_block_size` to 256 and run that converter again"
    )
    return _finding(container, entry, "container.chunk_width", what, mend)


def _finding(
    container: Container, entry: Entry, code: str, what: str, mend: str = _MEND
) -> Finding:
    where = Where(file=container.path, field=show(entry.name), offset=entry.begin)
    return error(code, what, mend, where)
