from __future__ import annotations

import random

import pytest

from rlhf.scale.engine_speed import EngineRows, EngineSpeed, Row, dealt, rollout_seconds
from rlhf.scale.pipelines import PipelineSpec, simulate

PLAIN = EngineSpeed(step_seconds=1.0, weights_seconds=0.0, row_seconds=0.0, cached_seconds=0.0, prompt_seconds=0.0)
"""A second for each token, whatever is sampled beside it."""


def spec(kind, staleness=0, *, engines=1, speed=PLAIN, score=0.0, learn=10.0, push=0.0):
    return PipelineSpec(
        kind=kind, max_staleness=staleness, num_engines=engines, speed=speed, score_seconds=lambda _: score,
        learn_seconds=lambda _: learn, push_seconds=push,
    )  # fmt: skip


def batches(count, *lengths):
    return [[[Row(0, 5, length)] for length in lengths] for _ in range(count)]


def test_a_step_takes_the_longer_of_products_and_memory():
    speed = EngineSpeed(
        step_seconds=0.5, weights_seconds=2.0, routed_seconds=4.0, routed_frac=0.5, row_seconds=1.0, cached_seconds=0.1,
        prompt_seconds=0.0,
    )  # fmt: skip
    assert speed.step(1, 10) == 0.5 + 2 + 4 * 0.5 + 1  # one row passes half of the experts
    assert speed.step(2, 10) == 0.5 + 2 + 4 * 0.75 + 1
    assert speed.step(20, 0) == 0.5 + 20


def test_a_rollout_ends_with_its_longest_completion_and_a_prompt_of_siblings_is_read_once():
    speed = EngineSpeed(step_seconds=1.0, weights_seconds=0.0, row_seconds=0.0, cached_seconds=0.0, prompt_seconds=0.25)
    assert rollout_seconds(speed, [Row(0, 4, 3), Row(0, 4, 7), Row(1, 4, 2)]) == 7 + 2 * 4 * 0.25


def test_cached_tokens_are_read_again_for_every_token():
    speed = EngineSpeed(step_seconds=0.0, weights_seconds=0.0, row_seconds=0.0, cached_seconds=1.0, prompt_seconds=0.0)
    # 4 tokens after a prompt of 10: on average 12 are in the cache
    assert rollout_seconds(speed, [Row(0, 10, 4)]) == 4 * 12
    # two rows: 2 steps with 20 to 24 tokens; then one row, 2 steps from 12 to 14
    assert rollout_seconds(speed, [Row(0, 10, 2), Row(1, 10, 4)]) == 2 * 22 + 2 * 13


@pytest.mark.parametrize("limit", [{"max_rows": 2}, {"max_tokens": 18}])
def test_completions_without_room_wait_until_others_end(limit):
    speed = EngineSpeed(
        step_seconds=1.0, weights_seconds=0.0, row_seconds=0.0, cached_seconds=0.0, prompt_seconds=0.0, **limit
    )
    assert rollout_seconds(speed, [Row(0, 4, 3), Row(1, 4, 5), Row(2, 4, 4)]) == 3 + 4


def test_all_tokens_are_sampled_and_nothing_is_left_in_the_cache():
    draw = random.Random(1)
    engine = EngineRows(PLAIN)
    lengths = [draw.randint(1, 40) for _ in range(50)]
    engine.waiting.extend(Row(number, 3, length) for number, length in enumerate(lengths))
    ended = []
    while engine.num_asked:
        engine.admit()
        tokens, _ = engine.until_next()
        ended += engine.advance(tokens * draw.choice([0.3, 1.0]))
    assert sorted(row.length for row in ended) == sorted(lengths)
    assert engine.cached == pytest.approx(0, abs=1e-4)
    assert engine.reserved == 0


def test_groups_are_dealt_whole():
    groups = [[Row(0, 1, 1), Row(0, 1, 1)], [Row(1, 1, 1)], [Row(2, 1, 1)]]
    assert [[row.group for row in share] for share in dealt(groups, 2)] == [[0, 0, 2], [1]]


def test_in_turns_a_phase_takes_the_sum():
    result = simulate(spec("synchronous", score=2.0, push=1.0), batches(5, 4, 6))
    assert result.seconds_per_phase == pytest.approx(6 + 2 + 10 + 1)
    assert result.staleness == {0: 1.0}
    assert result.engine_utilization == pytest.approx(6 / 19)
    assert result.trainer_utilization == pytest.approx(12 / 19)


@pytest.mark.parametrize(("length", "seconds"), [(6, 2 + 10 + 1), (30, 2 + 30)])
def test_one_step_off_takes_the_longer_of_sampling_and_learning_and_scoring_comes_before(length, seconds):
    result = simulate(spec("one-step-off", 1, score=2.0, push=1.0), batches(6, 4, length))
    # the engine takes the new weights in the middle of the 30 tokens, for which it stops a second
    assert result.seconds_per_phase == pytest.approx(seconds + (1 if length == 30 else 0))
    assert result.staleness == {1: 1.0}


def test_asynchronous_sampling_hides_stragglers_that_one_step_off_waits_for():
    draw = random.Random(0)
    long_tails = [[[Row(0, 5, 60 if draw.random() < 0.1 else 6)] for _ in range(8)] for _ in range(40)]

    def seconds(kind, staleness):
        fresh = [[[Row(0, 5, row.length) for row in group] for group in batch] for batch in long_tails]
        return simulate(spec(kind, staleness), fresh).seconds_per_phase

    in_turns, one_off, free = seconds("synchronous", 0), seconds("one-step-off", 1), seconds("asynchronous", 4)
    assert free < one_off < in_turns
    assert free >= 10  # the trainer alone


@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
def test_nothing_is_older_than_the_limit(staleness):
    draw = random.Random(staleness)
    work = [[[Row(0, 5, draw.choice([3, 5, 90]))] for _ in range(6)] for _ in range(30)]
    result = simulate(spec("asynchronous", staleness, engines=2, learn=4.0), work)
    assert max(result.staleness) <= staleness
    assert sum(result.staleness.values()) == pytest.approx(1)
    assert staleness == 0 or max(result.staleness) > 0


def test_without_staleness_asynchronous_is_synchronous():
    work = batches(6, 3, 9, 7)
    again = batches(6, 3, 9, 7)
    first = simulate(spec("synchronous", engines=2, push=0.5), work)
    second = simulate(spec("asynchronous", 0, engines=2, push=0.5), again)
    assert first.seconds_per_phase == pytest.approx(second.seconds_per_phase)


def test_no_part_works_longer_than_there_is_time():
    draw = random.Random(7)
    for kind, staleness in (("synchronous", 0), ("one-step-off", 1), ("asynchronous", 3)):
        work = [[[Row(0, 5, draw.randint(1, 50)) for _ in range(2)] for _ in range(4)] for _ in range(20)]
        result = simulate(spec(kind, staleness, engines=3, score=1.0, learn=8.0, push=0.3), work)
        assert 0 < result.engine_utilization <= 1
        assert 0 < result.trainer_utilization <= 1
        assert result.seconds_per_phase >= 9.3 - 1e-9
