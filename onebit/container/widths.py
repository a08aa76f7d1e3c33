"""Names the converter option or version that made tiles of another size than readers expect."""

from __future__ import annotations

from onebit.container.entry import Entry
from onebit.container.kinds import GROUP_COLS, TILE_COLS, TILE_ROWS

CONVERTER = "FLM_Q4NX_Converter"
NARROW_Q8 = (
    f"{CONVERTER} before commit 038e67e writes Q8_0 so: its `_pack_q4nx_8b` turns a "
    "`col_block_size` of 256 into 128"
)

_GROUP_BYTES = {
    640: "4-bit tiles with scales and zeros",
    1088: "8-bit tiles with scales",
    1152: "8-bit tiles with scales and zeros",
}
"""Bytes that 32 rows x 32 columns take: one scale (and one zero) a row, and the codes."""

OTHER_TILES = {
    4608: "4-bit tiles without a zero plane",
    9216: "8-bit tiles with a zero or bias plane, empty ones as "
    f"{CONVERTER} at commit 038e67e (branch mix-precision) writes Q8_0; 8704 bytes are expected",
    5632: "4-bit tiles with a bias plane",
    9728: "8-bit tiles with a zero and a bias plane",
    2560: "tiles of 32 x 128 (`col_block_size` 128), as only the gpt-oss class of its converter "
    "writes them",
}
"""Bytes of known tiles that are not read -> what they are."""


def odd_width(entry: Entry, rows: int, cols: int) -> tuple[int, str] | None:
    """Return the width of a tensor's tiles and what they hold, when it is not 256.

    Told from the size of one tile and the number of tiles that `rows` x `cols` values need.
    """
    if entry.dtype not in ("I8", "U8") or len(entry.shape) < 2 or not entry.shape[-1]:
        return None
    size = entry.shape[-1]
    for group_bytes, what in _GROUP_BYTES.items():
        groups, rest = divmod(size, group_bytes)
        width = groups * GROUP_COLS
        if rest or not groups or width == TILE_COLS:
            continue
        if entry.nbytes == -(-rows // TILE_ROWS) * -(-cols // width) * size:
            return width, what
    return None
