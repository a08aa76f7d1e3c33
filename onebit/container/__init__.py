"""Q4NX containers: reading, decoding, telling encodings apart, writing.

Knows tensors and bytes; knows nothing of models, plans or serving.
"""

from onebit.container.decode import decode, decode_rows, iter_blocks, planes, row_blocks
from onebit.container.entry import Entry
from onebit.container.kinds import TensorKind, tensor_bytes, tile_grid
from onebit.container.reader import Container
from onebit.container.view import TensorView
from onebit.container.writer import TensorSpec, write_container

__all__ = [
    "Container",
    "Entry",
    "TensorKind",
    "TensorSpec",
    "TensorView",
    "decode",
    "decode_rows",
    "iter_blocks",
    "planes",
    "row_blocks",
    "tensor_bytes",
    "tile_grid",
    "write_container",
]
