"""A plan, its weights and a device make a runnable program."""

from onebit.forward.interpreter import Interpreter
from onebit.forward.open import open_host, open_reference

__all__ = ["Interpreter", "open_host", "open_reference"]
