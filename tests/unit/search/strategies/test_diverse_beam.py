"""Groups of beams in a world where the scores of all steps are known: 1 for right digits, a tenth of it for each wrong one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.config.search_strategies import DiverseBeamConfig
from rlhf.errors import ConfigError
from rlhf.search.contract import Budget
from rlhf.search.search_run import run_search
from rlhf.search.strategies.diverse_beam import diverse_beam
from rlhf.search.strategies.step_beam import beam
from tests.fixtures.step_world import EOS, DigitEngine, DigitScorer, prompt

PROMPTS = [prompt(f"p{i}", f"{i % 4}{(i + 1) % 4}{(i + 2) % 4}") for i in range(6)]
ZEROS = [prompt("zeros", "000")]
ENOUGH = 24
"""Samples among which each of three digits is, in these tests."""


class ShortEngine(DigitEngine):
    """A completion that begins with 0 ends there."""

    def _one(self, asked, sample, sampling, seed):
        one = super()._one(asked, sample, sampling, seed)
        if len(asked.ids) == 3 and one.text == "0;":
            return replace(one, tokens=[*one.tokens, EOS], logprobs=[-1.0] * 3, finish_reason="eos")
        return one


def search(strategy, prompts=PROMPTS, *, digits="0123", engine=None, budget=None, file=None, **arguments):
    return run_search(
        prompts, strategy, engine=engine or DigitEngine(digits), scorer=DigitScorer(), arguments=arguments, separator=";",
        sampling=SamplingConfig(max_new_tokens=7), seed=3, budget=budget, file=file,
    ).results  # fmt: skip


def gone_on_from(result):
    """Texts of the beginnings that were gone on from, in order; the prompt's is empty."""
    texts, beginnings = {None: ""}, []
    for event in result.trace:
        if event["did"] == "sampled":
            beginnings.append(texts[event["from"]])
            texts |= {
                number: beginnings[-1] + text for number, text in zip(event["candidates"], event["texts"], strict=True)
            }
    return beginnings


@pytest.mark.parametrize(
    ("digits", "groups", "penalty", "taken"),
    [
        # Right digits score 1, wrong ones .1: a second group takes the right one, too, while 1 - penalty is above .1.
        ("01", 2, 0.8, ["0;"]),
        ("01", 2, 0.95, ["0;", "1;"]),
        # A third group finds the one step that is left.
        ("012", 3, 1.0, ["0;", "1;", "2;"]),
        # 1 - 2 * penalty against .1.
        ("012", 3, 0.4, ["0;"]),
    ],
)
def test_groups_choose_one_after_another_and_keep_away_from_what_was_taken(digits, groups, penalty, taken):
    how = {"groups": groups, "samples": ENOUGH, "diversity_penalty": penalty}
    (result,) = search(diverse_beam, ZEROS, digits=digits, **how)
    assert (result.completion.text, result.score) == ("0;0;0;", 1), "the penalty is no part of a score"
    begun = gone_on_from(result)
    for length in (2, 4):
        assert sorted(text[-2:] for text in begun if len(text) == length) == taken


def test_a_step_that_was_taken_twice_costs_twice():
    """Of five groups the fourth takes the right digit again, as 1 - 1 is more than .1 - 1; the fifth does not: 1 - 2 is less."""
    how = {"groups": 5, "samples": ENOUGH, "diversity_penalty": 1.0}
    (result,) = search(diverse_beam, ZEROS, digits="012", **how)
    second = [event for event in result.trace if event["did"] == "sampled"][1:4]
    groups = dict(zip(gone_on_from(result)[1:4], [len(event["candidates"]) // ENOUGH for event in second], strict=True))
    assert groups["0;"] == 2
    assert sorted(groups.values()) == [1, 2, 2]


@pytest.mark.parametrize("engine", [DigitEngine(), ShortEngine("01")])
@pytest.mark.parametrize(
    "settings", [{"width": 1, "samples": 4}, {"width": 2, "samples": 3}, {"width": 2, "samples": 12}]
)
def test_one_group_is_a_beam_search_to_the_token(settings, engine):
    alone = search(diverse_beam, engine=engine, groups=1, diversity_penalty=1.0, **settings)
    for ours, theirs in zip(alone, search(beam, engine=engine, **settings), strict=True):
        assert ours.completion == theirs.completion
        assert (ours.score, ours.trace) == (theirs.score, theirs.trace)


def test_a_penalty_is_no_part_of_the_score_by_which_the_answer_is_chosen():
    """Of one draw a group takes what it has: with a penalty every search ends with the same answer as without."""
    free, penalized = (search(diverse_beam, groups=6, samples=1, diversity_penalty=penalty) for penalty in (0.0, 1.0))
    assert [(r.completion, r.score) for r in penalized] == [(r.completion, r.score) for r in free]


def test_without_a_penalty_groups_are_beam_searches_that_draw_for_themselves():
    """One may take what another took, and the best of all is the answer."""
    results = search(diverse_beam, groups=4, samples=3)
    single = search(beam, samples=3)
    assert sum(result.score for result in results) > sum(result.score for result in single)
    assert {result.cost.policy_tokens for result in results} == {4 * 3 * (2 + 2 + 3)}


def test_a_beginning_of_several_groups_is_read_once_and_equal_steps_are_scored_once():
    (result,) = search(diverse_beam, ZEROS, digits="3", groups=4, samples=2)
    assert result.cost.policy_tokens == 4 * 2 * (2 + 2 + 3)
    assert result.cost.prefill_tokens == 3 + 5 + 7
    assert result.cost.scorer_forwards == 3


def test_a_group_that_ended_waits_for_the_others_and_repeats_nothing():
    (result,) = search(diverse_beam, ZEROS, engine=ShortEngine("01"), groups=2, samples=ENOUGH, diversity_penalty=1.0)
    assert gone_on_from(result) == ["", "1;", "1;0;"]
    assert (result.completion.text, result.score) == ("0;", 1)


@pytest.mark.parametrize("limit", [1, 20, 45, 83, 84])
def test_no_budget_is_exceeded(limit):
    how = {"groups": 3, "samples": 4, "diversity_penalty": 0.5}
    for result in search(diverse_beam, budget=Budget(policy_tokens=limit), **how):
        assert result.cost.policy_tokens <= limit
        assert result.completion is not None
        assert (result.stopped_by is None) == (limit >= 3 * 4 * 7)
    for result in search(diverse_beam, budget=Budget(scorer_forwards=3), **how):
        assert result.cost.scorer_forwards <= 3


def test_a_rerun_goes_on_with_the_same_answers(tmp_path):
    file, how = tmp_path / "found.jsonl", {"groups": 2, "samples": 3, "diversity_penalty": 0.5}
    whole = search(diverse_beam, **how)
    search(diverse_beam, PROMPTS[:3], file=file, **how)
    engine = DigitEngine()
    again = search(diverse_beam, file=file, engine=engine, **how)
    assert {name.partition("#")[0] for call in engine.calls for name in call["prompts"]} == {"p3", "p4", "p5"}
    assert [(r.completion, r.score) for r in again] == [(r.completion, r.score) for r in whole]


@pytest.mark.parametrize("wrong", [{"groups": 0}, {"diversity_penalty": -0.1}, {"diversity_penalty": float("inf")}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        DiverseBeamConfig.of(wrong)
