"""`onebit run`: one completion in the terminal, streamed."""

from __future__ import annotations

import sys
from typing import Any

import click

from onebit.cli.options import config_options, read_config, this_world
from onebit.cli.output import ProgressBar, show_findings
from onebit.findings import Severity, UsageError, Where, error


@click.command("run")
@click.argument("prompt")
@click.option("--chat", is_flag=True, help="Ask through the model's chat template.")
@click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True)
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Makes a draw repeatable.")
@config_options
def command(
    prompt: str,
    chat: bool,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    **parameters: Any,
) -> int:
    """Print the completion of PROMPT as it is made. Without -m, the demo model runs."""
    from onebit.cli.demo_model import with_demo_model
    from onebit.engine import Engine, FinishEvent, GenerationRequest, SamplingParams, TokenEvent
    from onebit.routes import resolve

    loaded, world = read_config(parameters), this_world()
    if loaded.config.model is None:
        loaded = with_demo_model(loaded, world)
    resolution = resolve(loaded, world)
    with ProgressBar() as bar:
        session = resolution.open(bar)
    show_findings(f for f in session.resolution.findings if f.severity is Severity.WARNING)
    text = session.text
    if chat and text.template is None:
        session.close()
        what, mend = "the model has no chat template", "leave --chat out"
        raise UsageError(error("run.no_template", what, mend, Where(field="--chat")))
    if chat:
        ids = text.encode_chat(text.render([{"role": "user", "content": prompt}]))
    else:
        ids = text.encode(prompt)
    engine = Engine(session.program, session.limits, eos=session.plan.tokens.eos)
    engine.start()
    sampling = SamplingParams(temperature=temperature, seed=seed)
    request = GenerationRequest(prompt=ids, max_tokens=max_tokens, sampling=sampling)
    pieces = text.detokenizer()
    try:
        with engine.submit(request) as handle:
            for event in handle:
                if isinstance(event, TokenEvent):
                    _write(pieces.push(event.token))
                elif isinstance(event, FinishEvent) and event.error is not None:
                    raise event.error
        _write(pieces.finish() + "\n")
    finally:
        engine.close()
        session.close()
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
