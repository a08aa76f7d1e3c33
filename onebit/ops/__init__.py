"""One op per file: its contract and its NumPy reference, the oracle of every kernel."""
