"""One file per way of storing: reading planes out of tiles, and packing planes into them."""
