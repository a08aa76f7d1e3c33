"""Penalties, bias, bans, constraint, seeds and log-probabilities, each against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from engine_support import VOCAB, Driver, raw_logits, request

from onebit.devices.null import NullScript, emit
from onebit.engine import ConstraintFailed, EngineLimits, SamplingParams
from onebit.engine.draw import Workspace
from onebit.engine.sampler import Sampler, logprob_of
from onebit.findings import DeviceError, InputError

PROMPT = [3, 3, 9]
WORKSPACE = Workspace(8)


def sampler(**fields: object) -> Sampler:
    fields.setdefault("temperature", 0.0)
    prompt = np.array([1, 2, 2], np.int32)
    constraint = fields.pop("constraint", None)
    return Sampler(SamplingParams(**fields), 0, prompt, frozenset([7]), frozenset([7]), constraint)


def choose(one: Sampler, logits: list[float], generated: int = 0) -> int:
    row = np.array(logits, np.float32)
    before = row.copy()
    token = one.choose(row, 3 + generated, generated, WORKSPACE)
    assert (row == before).all()
    return token


def adjusted(one: Sampler, logits: list[float], generated: int = 0) -> list[float]:
    return one._adjust(np.array(logits, np.float32), generated, WORKSPACE).tolist()


FLAT = [1.0, 2.0, -2.0, 4.0, 0.0, 0.0, 0.0, 0.0]


def test_greedy_ties_go_to_the_lowest_id() -> None:
    assert choose(sampler(), [0, 5, 1, 5, 5, 0, 0, 0]) == 1
    assert choose(sampler(top_p=0.1, min_p=0.9, seed=3), [0, 5, 1, 5, 5, 0, 0, 0]) == 1
    assert choose(sampler(temperature=1.0, top_k=1), [0, 5, 1, 5, 5, 0, 0, 0]) == 1


def test_repetition_penalty_covers_prompt_and_answer() -> None:
    one = sampler(repetition_penalty=2.0)
    one.accept(3)
    assert adjusted(one, FLAT) == [1.0, 1.0, -4.0, 2.0, 0.0, 0.0, 0.0, 0.0]


def test_presence_and_frequency_cover_the_answer_only() -> None:
    one = sampler(presence_penalty=0.5, frequency_penalty=0.25)
    for token in (3, 3, 3, 4):
        one.accept(token)
    assert adjusted(one, FLAT) == [1.0, 2.0, -2.0, 2.75, -0.75, 0.0, 0.0, 0.0]


def test_penalties_stack_repetition_first() -> None:
    one = sampler(presence_penalty=-1.0, repetition_penalty=2.0)
    one.accept(3)
    assert adjusted(one, FLAT) == [1.0, 1.0, -4.0, 3.0, 0.0, 0.0, 0.0, 0.0]


def test_penalties_remember_more_tokens_than_they_reserved() -> None:
    row = np.zeros(1000, np.float32)
    one = Sampler(
        SamplingParams(frequency_penalty=1.0),
        0,
        np.array([1], np.int32),
        frozenset(),
        frozenset(),
        None,
    )
    for token in [*range(500), *range(250)]:
        one.accept(token)
    found = one._adjust(row, 750, Workspace(1000))
    assert found.tolist() == [-2.0] * 250 + [-1.0] * 250 + [0.0] * 500


def test_bias_adds_and_100_below_bans() -> None:
    one = sampler(logit_bias={0: 4.0, 3: -100.0, 5: -1.5})
    assert adjusted(one, FLAT) == [5.0, 2.0, -2.0, -np.inf, 0.0, -1.5, 0.0, 0.0]
    assert choose(sampler(logit_bias={3: -100}), [0, 0, 0, 1e9, 0, 0, 0, 0]) == 0
    assert choose(sampler(logit_bias={6: 100}), FLAT) == 6


def test_bans_end_tokens_and_min_tokens() -> None:
    logits = [0, 0, 0, 0, 0, 1, 2, 3]
    assert choose(sampler(), logits) == 7
    assert choose(sampler(ignore_eos=True), logits, generated=99) == 6
    assert choose(sampler(ignore_eos=True, banned=frozenset([6])), logits) == 5
    assert choose(sampler(min_tokens=2), logits, generated=1) == 6
    assert choose(sampler(min_tokens=2), logits, generated=2) == 7


class Only:
    """Allows the given ids in turn."""

    def __init__(self, *ids: int) -> None:
        self.ids = list(ids)
        self.accepted: list[int] = []

    def allowed(self):
        if not self.ids:
            return None
        mask = np.zeros(8, bool)
        mask[self.ids[0]] = True
        return mask

    def accept(self, token: int) -> None:
        self.accepted.append(token)
        if self.ids:
            self.ids.pop(0)


def test_constraint_masks_and_is_told() -> None:
    rule = Only(4, 2)
    one = sampler(constraint=rule)
    for expected in (4, 2, 3):
        token = choose(one, FLAT)
        one.accept(token)
        assert token == expected
    assert rule.accepted == [4, 2, 3]
    assert choose(sampler(constraint=Only(6), temperature=1.0, seed=1), FLAT) == 6


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_to_choose_is_said(temperature: float) -> None:
    with pytest.raises(ConstraintFailed, match="every token is banned"):
        choose(sampler(constraint=Only(6), banned=frozenset([6]), temperature=temperature), FLAT)


def test_constraint_that_raises_ends_its_sequence_alone() -> None:
    class Broken(Only):
        def allowed(self):
            raise RuntimeError("no")

    with pytest.raises(ConstraintFailed):
        choose(sampler(constraint=Broken()), FLAT)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("plain", [True, False])
def test_logits_that_are_no_numbers_are_a_device_error(temperature, value, plain) -> None:
    fields = {} if plain else {"logit_bias": {0: 1.0}}
    with pytest.raises(DeviceError):
        choose(sampler(temperature=temperature, **fields), [*FLAT[:5], value, 0.0, 0.0])
    with pytest.raises(DeviceError):
        choose(sampler(temperature=temperature, **fields), [-np.inf] * 8)


def test_logprobs_are_log_softmax_of_the_raw_row() -> None:
    row = np.array(FLAT, np.float32)
    expected = row - np.log(np.exp(row.astype(float)).sum())
    scored = logprob_of(row, 1, 3, WORKSPACE)
    assert (scored.token, [t for t, _ in scored.top]) == (1, [3, 1, 0])
    assert scored.logprob == pytest.approx(expected[1])
    assert [v for _, v in scored.top] == pytest.approx(expected[[3, 1, 0]].tolist())
    assert logprob_of(row, 1, 0, WORKSPACE).top == ()


def test_logprobs_ignore_temperature_penalties_and_bias() -> None:
    driver = Driver()
    sampling = SamplingParams(
        temperature=2.0, seed=5, presence_penalty=1.0, logit_bias={7: 3.0}, logprobs=2
    )
    handle = driver.submit(request(PROMPT, 6, sampling=sampling))
    driver.finish()
    text = list(PROMPT)
    for event in driver.events(handle)[:-1]:
        row = raw_logits(text)[-1]
        assert event.logprob == logprob_of(row, event.token, 2, Workspace(VOCAB))
        text.append(event.token)
    assert len(text) == 9


def answers(seeds: list[int | None], **fields: object) -> list[tuple[int, ...]]:
    driver = Driver(limits=EngineLimits(max_sequences=3), **fields)
    handles = [
        driver.submit(request(PROMPT, 12, sampling=SamplingParams(temperature=1.0, seed=seed)))
        for seed in seeds
    ]
    driver.finish()
    return [tuple(driver.tokens(handle)) for handle in handles]


def test_seed_decides_whatever_the_batch() -> None:
    together = answers([42, 43, 42, None, 42, None, None])
    single = answers([42])
    assert together[0] == together[2] == together[4] == single[0]
    assert len({*together}) == 5
    assert answers([42], max_rows=2) == single
    assert answers([42, 42, 42], pages=7, context=28)[2] == single[0]


def test_choices_of_one_seed_differ_and_repeat() -> None:
    found = []
    for _ in range(2):
        driver = Driver()
        sampling = SamplingParams(temperature=1.0, seed=11)
        handle = driver.submit(request(PROMPT, 10, n=2, sampling=sampling))
        driver.finish()
        found.append([driver.tokens(handle, choice) for choice in (0, 1)])
    assert found[0] == found[1]
    assert found[0][0] != found[0][1]


def test_seed_holds_at_a_position_so_a_continued_text_goes_on_alike() -> None:
    driver = Driver()
    sampling = SamplingParams(temperature=1.0, seed=11)
    whole = driver.submit(request(PROMPT, 10, sampling=sampling))
    driver.finish()
    head = driver.tokens(whole)[:4]
    rest = driver.submit(request(PROMPT + head, 6, sampling=sampling))
    driver.finish()
    assert driver.tokens(rest) == driver.tokens(whole)[4:]


def test_constraint_factory_gives_each_choice_its_own() -> None:
    made: list[Only] = []

    class Wide(Only):
        def allowed(self):
            return np.pad(super().allowed(), (0, VOCAB - 8)) if self.ids else None

    def make() -> Wide:
        made.append(Wide(4, 2))
        return made[-1]

    driver = Driver(script=NullScript(next_token=emit([5])))
    handle = driver.submit(request(PROMPT, 3, n=2, constraint=make))
    driver.finish()
    assert [driver.tokens(handle, choice) for choice in (0, 1)] == [[4, 2, 5]] * 2
    assert len(made) == 2


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"logit_bias": {512: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"banned": frozenset([999])}, "banned"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)
def test_values_out_of_range_are_refused_by_name(fields: dict, name: str) -> None:
    with pytest.raises(InputError) as caught:
        SamplingParams(**fields).check(512, 20)
    assert caught.value.findings[0].where.field == name
