"""`onebit`: the command group and the one place where errors become exit statuses.

0: done. 1: refused, not servable, or failed. 2: bad usage.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from onebit.cli.output import fail, show_findings
from onebit.findings import OnebitError, UsageError

COMMANDS = {
    "bench": "onebit.cli.bench",
    "cache": "onebit.cli.cache",
    "convert": "onebit.cli.convert",
    "demo": "onebit.cli.demo",
    "explain": "onebit.cli.explain",
    "forward-serve": "onebit.cli.forward_serve",
    "inspect": "onebit.cli.inspect",
    "kernels": "onebit.cli.kernels",
    "plan": "onebit.cli.plan",
    "run": "onebit.cli.run",
    "schema": "onebit.cli.schema",
    "serve": "onebit.cli.serve",
    "validate": "onebit.cli.validate",
    "version": "onebit.cli.version",
}
"""Command -> module that holds it as `command`; imported only when it is used."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[name]).command
        return command if isinstance(command, click.Command) else None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show the traceback of an internal error.")
def cli(debug: bool) -> None:
    """Validate, convert and serve quantised LLM containers."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit the process with its status."""
    given = sys.argv[1:] if arguments is None else arguments
    sys.exit(_run(given, debug="--debug" in given))


def _run(given: list[str], *, debug: bool) -> int:
    try:
        status: Any = cli.main(given, prog_name="onebit", standalone_mode=False)
    except click.exceptions.Abort:
        return 130
    except click.ClickException as problem:
        problem.show()
        return 2
    except OnebitError as problem:
        show_findings(problem.findings)
        return 2 if isinstance(problem, UsageError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader went away; point stdout elsewhere so that the interpreter's own flush is quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as problem:
        if debug:
            raise
        fail(f"internal error: {type(problem).__name__}: {problem}")
        fail("this is a bug in onebit; `onebit --debug ...` shows where")
        return 1
    return status if isinstance(status, int) else 0
