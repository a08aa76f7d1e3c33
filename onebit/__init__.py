"""onebit: a manifest-first server for quantised LLM containers on NPUs and CPUs."""

__version__ = "0.1.0"

__all__ = ["__version__"]
