"""The plan: one model's program as data, every shape proven. See `model.py`."""

from onebit.plan.bind import Weights, bind
from onebit.plan.files import plan_differences, plan_text, read_plan, write_plan
from onebit.plan.model import (
    PLAN_SCHEMA,
    Add,
    Attention,
    Embed,
    Glu,
    Layer,
    Linear,
    Op,
    Plan,
    Provenance,
    RmsNorm,
    Rope,
    RopeScaling,
    RopeTable,
    Softcap,
    SpecialTokens,
    TensorRef,
)

__all__ = [
    "PLAN_SCHEMA",
    "Add",
    "Attention",
    "Embed",
    "Glu",
    "Layer",
    "Linear",
    "Op",
    "Plan",
    "Provenance",
    "RmsNorm",
    "Rope",
    "RopeScaling",
    "RopeTable",
    "Softcap",
    "SpecialTokens",
    "TensorRef",
    "Weights",
    "bind",
    "plan_differences",
    "plan_text",
    "read_plan",
    "write_plan",
]
