"""The flags of every setting, made from `ServeConfig` itself, and the config they give."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onebit.config import LoadedConfig, load_config
from onebit.config.walk import Leaf, leaves
from onebit.findings import Refusal, UsageError, Where, error

if TYPE_CHECKING:
    from onebit.routes.world import World

SHORT = {"model": "-m", "port": "-p"}
NOT_SERVED = {
    "embedding": "embeddings",
    "embeddings": "embeddings",
    "reranking": "reranking",
    "rerank": "reranking",
}
"""Flags that supervisors send for other kinds of models -> what they ask for."""

_F = TypeVar("_F", bound=Callable[..., Any])


def config_options(function: _F) -> _F:
    """Add `--config` and the flag of every setting to a click command."""
    for leaf in reversed(leaves()):
        function = _option(leaf)(function)
    for name in NOT_SERVED:
        function = click.option(f"--{name}", is_flag=True, hidden=True)(function)
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="serve.yaml; environment variables and flags override it.",
    )(function)


def _option(leaf: Leaf) -> Callable[[_F], _F]:
    names = [SHORT[leaf.name]] if leaf.name in SHORT else []
    target = _parameter(leaf)
    text = leaf.field.description or ""
    if leaf.is_flag:
        flag = f"{leaf.flag}/--no-{leaf.flag.removeprefix('--')}"
        return click.option(flag, target, default=None, help=text)
    if leaf.is_mapping:
        return click.option(leaf.flag, target, multiple=True, metavar="KEY=VALUE", help=text)
    if leaf.is_list:
        return click.option(leaf.flag, target, multiple=True, metavar="TEXT", help=text)
    return click.option(*names, leaf.flag, target, default=None, metavar=_metavar(leaf), help=text)


def _metavar(leaf: Leaf) -> str:
    if leaf.choices:
        return "|".join(leaf.choices)
    if leaf.is_path:
        return "PATH"
    unit = leaf.honoured.unit.upper() if leaf.honoured is not None else ""
    return unit or ("NUMBER" if isinstance(leaf.default, int | float) else "TEXT")


def _parameter(leaf: Leaf) -> str:
    return "set__" + "__".join(leaf.keys)


def read_config(parameters: dict[str, Any]) -> LoadedConfig:
    """Return the config that file, environment and a command's parameters give.

    Raises:
        UsageError: something in them is wrong.
        Refusal: a flag asks for another kind of model.
    """
    refused = [name for name in NOT_SERVED if parameters.get(name)]
    if refused:
        raise Refusal([_not_served(name) for name in refused])
    flags: dict[tuple[str, ...], tuple[str, Any]] = {}
    for leaf in leaves():
        value = parameters.get(_parameter(leaf))
        if value is None or value == ():
            continue
        if leaf.is_mapping:
            value = _pairs(leaf, value)
        flags[leaf.keys] = (leaf.flag, list(value) if leaf.is_list else value)
    return load_config(parameters.get("config_file"), os.environ, flags)


def _not_served(name: str) -> Any:
    return error(
        "usage.not_served",
        f"onebit serves text generation; it does not serve {NOT_SERVED[name]}",
        f"leave --{name} out, or serve this model with another program",
        Where(field=f"--{name}"),
    )


def _pairs(leaf: Leaf, values: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not key or not equals or key in pairs:
            what = f"is given twice: {key}" if key in pairs else f"expected KEY=VALUE, got {text!r}"
            mend = f"write {leaf.flag} KEY=VALUE once for each key"
            raise UsageError(error("usage.key_value", what, mend, Where(field=leaf.flag)))
        pairs[key] = value
    return pairs


def this_world() -> World:
    """Return the machine that this process runs on."""
    from onebit.routes.world import World  # brings the whole engine: only when it is needed

    return World(environ=dict(os.environ))
