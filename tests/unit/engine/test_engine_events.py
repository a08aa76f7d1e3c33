"""What events carry: progress, timings of tokens, the score of an end token."""

from __future__ import annotations

from engine_support import Driver, alone, request

from onebit.devices.null import NullScript, emit
from onebit.engine import EngineLimits, ProgressEvent, SamplingParams, TokenEvent

PROMPT = list(range(10, 33))
END = 7


def test_progress_is_reported_once_and_survives_preemption() -> None:
    driver = Driver(pages=10, context=40, limits=EngineLimits(prefill_chunk=6))
    older = driver.submit(request([1] * 5, 30))
    driver.step()
    watched = driver.submit(request(PROMPT, 4, progress=True, token_timings=True))
    while driver.core.busy:
        driver.step()
    assert driver.sequences[1].restarted
    assert not any(isinstance(event, ProgressEvent) for event in driver.events(older))
    reports = [event for event in driver.events(watched) if isinstance(event, ProgressEvent)]
    read = [report.processed for report in reports]
    assert read[0] == reports[0].cached
    assert read == sorted(set(read))
    assert read[-1] == len(PROMPT)
    assert {report.cached for report in reports} == {read[0]}
    tokens = [event for event in driver.events(watched) if isinstance(event, TokenEvent)]
    assert [e.timings.predicted_n for e in tokens if e.timings] == [1, 2, 3, 4]
    assert driver.tokens(watched) == alone(PROMPT, 4)


def test_an_end_token_is_scored() -> None:
    driver = Driver(script=NullScript(next_token=emit([5], END)))
    for logprobs in (None, 0):
        handle = driver.submit(
            request(
                PROMPT,
                9,
                stop_ids=frozenset({END}),
                sampling=SamplingParams(temperature=0, logprobs=logprobs),
            )
        )
        driver.finish()
        end = driver.end(handle)
        assert end.stop_token == END
        scored = end.stop_logprob
        assert (scored and scored.token) == (None if logprobs is None else END)
