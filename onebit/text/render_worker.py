"""The process in which chat templates are rendered.

A template comes with a model and is somebody else's program. It runs here, in Jinja's immutable
sandbox, with a limit on processor time, memory and output, so that the server stays responsive
whatever the template does. Run as a script: one JSON request per line on standard input, one
JSON reply per line on standard output; the end of input ends it. Imports Jinja and the standard
library only, to start fast.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from datetime import datetime
from types import FrameType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2 import meta as template_meta
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS = 0.4
"""Processor time for one request."""
MEMORY_BYTES = 768 << 20
"""Address space of this process."""
OUTPUT_CHARS = 32 << 20
"""Largest prompt that a template may make."""


class BudgetError(BaseException):
    """The time limit has passed. Not an `Exception`, so that no template helper can catch it."""


class RefusedError(TemplateError):
    """The template called `raise_exception`."""


class Generation(Extension):
    """`{% generation %}`: marks training text in some templates; rendered as plain content."""

    tags = {"generation"}  # noqa: RUF012  (Jinja reads it from the class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the block's body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return `value` as JSON, without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message: str) -> None:
    """Let a template refuse its input."""
    raise RefusedError(message)


def strftime_now(pattern: str) -> str:
    """Return the local time in `pattern`."""
    return datetime.now().strftime(pattern)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment that chat templates are written for."""

    intercepted_binops = frozenset({"**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
        )
        self.filters["tojson"] = tojson
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        """Refuse a walk to an object's insides at once; Jinja would print nothing for it."""
        raise SecurityError(
            f"the attribute {attribute} of a {type(obj).__name__} is not open to a chat template"
        )

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002
        """Refuse powers: one of them can compute for hours without a chance to interrupt it."""
        raise SecurityError(f"the operator {operator} is not allowed in a chat template")


class Worker:
    """Holds the compiled template and answers requests."""

    def __init__(self) -> None:
        self._environment = ChatEnvironment()
        self._template: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request; errors become data."""
        try:
            if "template" in request:
                return self._load(request["template"])
            return {"text": self._render(request["variables"])}
        except TemplateSyntaxError as error:
            return {"error": "syntax", "message": error.message, "line": error.lineno}
        except RefusedError as error:
            return {"error": "refused", "message": str(error)}
        except SecurityError as error:
            return {"error": "security", "message": str(error)}
        except (BudgetError, MemoryError, RecursionError):
            return {"error": "budget", "message": "it needs too much time or memory"}
        except Exception as error:  # whatever a template can raise is the template's error
            return {"error": "failed", "message": f"{type(error).__name__}: {error}"[:500]}

    def _load(self, source: str) -> dict[str, Any]:
        tree = self._environment.parse(source)
        self._template = self._environment.from_string(source)
        return {"variables": sorted(template_meta.find_undeclared_variables(tree))}

    def _render(self, variables: dict[str, Any]) -> str:
        parts, length = [], 0
        for part in self._template.generate(**variables):
            length += len(part)
            if length > OUTPUT_CHARS:
                raise MemoryError
            parts.append(part)
        return "".join(parts)


def _out_of_time(_signal: int, _frame: FrameType | None) -> None:
    raise BudgetError


def main() -> None:
    """Answer requests until the input ends."""
    # The parent ends this process by closing its input; a Ctrl-C meant for the parent must not.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, _out_of_time)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    worker = Worker()
    reply_to = os.fdopen(os.dup(1), "w", encoding="ascii")
    for line in sys.stdin:
        reply: dict[str, Any] = {"error": "budget", "message": "it needs too much time or memory"}
        # Were the template stuck where no signal is seen, the kernel ends this process.
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 3, resource.RLIM_INFINITY))
        try:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS, 0.05)
            reply = worker.answer(json.loads(line))
            signal.setitimer(signal.ITIMER_PROF, 0)
        except BudgetError:
            signal.setitimer(signal.ITIMER_PROF, 0)
        try:
            reply_to.write(json.dumps(reply) + "\n")
            reply_to.flush()
        except BrokenPipeError:
            os._exit(0)  # the parent is gone: nobody reads this, nor a traceback


if __name__ == "__main__":
    main()
