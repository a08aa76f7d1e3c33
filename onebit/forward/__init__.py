"""A plan, its weights and a device make a runnable program."""

from onebit.forward.interpreter import Interpreter

__all__ = ["Interpreter"]
