"""Searches side by side: what they are given, what it costs, where they stop, and what a rerun finds."""

from __future__ import annotations

import json
import math

import pytest
import torch

from rlhf.config.policy import SamplingConfig
from rlhf.errors import ConfigError, DataError
from rlhf.rewards.functions import FunctionReward, load_function
from rlhf.search.answer_key import answer_reader
from rlhf.search.contract import Budget, BudgetSpent, Choice
from rlhf.search.search_identity import code_identity
from rlhf.search.search_run import run_search
from rlhf.search.strategies.highest_score import best_of_n
from rlhf.search.strategies.single_sample import single_sample
from rlhf.search.strategies.step_beam import beam
from tests.fixtures.step_world import DigitEngine, DigitScorer, prompt

PROMPTS = [prompt(f"p{i}", f"{i % 4}{(i + 1) % 4}{(i + 2) % 4}") for i in range(6)]
SAMPLING = SamplingConfig(max_new_tokens=7)


def search(strategy=best_of_n, prompts=PROMPTS, **how):
    how = {"engine": DigitEngine(), "scorer": DigitScorer(), "sampling": SAMPLING, "separator": ";", "seed": 3} | how
    return run_search(prompts, strategy, **how)


def test_every_token_is_in_the_account():
    run = search(arguments={"num_samples": 4})
    for result in run.results:
        assert result.cost.policy_tokens == 4 * 7  # three digits, three semicolons and the end
        assert result.cost.prefill_tokens == 3  # the prompt once for its four samples
        assert result.cost.scorer_forwards == 4
        assert result.cost.scorer_tokens == 0  # the scorer runs no model
        assert [event["did"] for event in result.trace] == ["sampled", "scored", "kept"]
        assert result.score == max(result.trace[1]["scores"])


def test_what_prompts_ask_for_goes_into_one_call():
    engine = DigitEngine()
    search(engine=engine, arguments={"num_samples": 4})
    assert [len(call["prompts"]) for call in engine.calls] == [len(PROMPTS)]


@pytest.mark.parametrize("at_once", [1, 4])
def test_an_answer_does_not_depend_on_the_other_prompts(at_once):
    def answers(run):
        return {result.prompt_id: (result.completion.text, result.cost.policy_tokens) for result in run.results}

    how = {"strategy": beam, "arguments": {"width": 2, "samples": 3}}
    assert answers(search(**how)) == answers(search(**how, prompts=PROMPTS[::-1], prompts_at_once=at_once))


@pytest.mark.parametrize("limit", [2, 4, 6])
def test_an_answer_that_the_length_cuts_where_a_step_ends_was_cut(limit):
    """Steps are two tokens, a digit and a separator."""
    how = {"strategy": beam, "arguments": {"samples": 3}}
    for result in search(**how, sampling=SAMPLING.updated(max_new_tokens=limit)).results:
        assert len(result.completion.tokens) == limit
        assert result.completion.finish_reason == "length"
        assert [event for event in result.trace if event["did"] == "sampled"][-1]["finish_reasons"] == ["length"] * 3
    stops = SAMPLING.updated(max_new_tokens=limit, stop=[";"])
    assert {r.completion.finish_reason for r in search(single_sample, sampling=stops).results} == {"stop"}


def test_another_seed_searches_elsewhere():
    texts = [[result.completion.text for result in search(single_sample, seed=seed).results] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("limit", range(1, 31))
def test_no_token_is_sampled_beyond_the_budget(limit):
    run = search(budget=Budget(policy_tokens=limit), arguments={"num_samples": 4})
    for result in run.results:
        assert result.cost.policy_tokens <= limit
        assert result.completion is not None
        # Four completions of seven tokens: below 28 something is missing, and the answer says so.
        assert result.stopped_by == (None if limit >= 28 else "policy_tokens")
    if limit >= 7:
        assert all(not result.completion.truncated for result in run.results)
        assert all(result.cost.policy_tokens == min(limit, 28) for result in run.results)


def test_requests_side_by_side_do_not_use_up_the_budget_by_what_they_might_take():
    """Each of four beams may sample 4 x 7 tokens and takes 4 x 2: room for all of them is no reason to stop at half of the budget."""
    how = {"strategy": beam, "arguments": {"width": 4, "samples": 4}}
    free = search(**how).results
    enough = max(result.cost.policy_tokens for result in free) + SAMPLING.max_new_tokens
    bounded = search(**how, budget=Budget(policy_tokens=enough)).results
    assert [result.stopped_by for result in bounded] == [None] * len(PROMPTS)
    assert all(result.cost.policy_tokens <= enough for result in bounded)
    short = search(**how, budget=Budget(policy_tokens=20)).results
    assert [result.cost.policy_tokens for result in short] == [20] * len(PROMPTS)


def test_no_more_is_scored_than_the_budget_allows():
    run = search(budget=Budget(scorer_forwards=2), arguments={"num_samples": 4})
    for result in run.results:
        assert result.cost.scorer_forwards == 2
        assert result.stopped_by == "scorer_forwards"
        assert result.score == max(result.trace[1]["scores"])


def test_the_time_ends_a_search_before_its_next_call():
    now = iter(range(10_000))
    run = search(budget=Budget(seconds=8), prompts_at_once=2, clock=lambda: float(next(now)))
    assert 0 < len(run.results) < len(PROMPTS)
    assert [result.prompt_id for result in run.results] + run.not_reached == [each.id for each in PROMPTS]


def test_a_strategy_may_answer_a_refusal_itself():
    def stubborn(ask):
        seen = []
        try:
            while True:
                seen += yield ask.sample(1)
        except BudgetSpent as limit:
            limits.append(str(limit))
            return seen[0]

    limits: list[str] = []

    (result,) = search(stubborn, PROMPTS[:1], budget=Budget(policy_tokens=15)).results
    assert limits == ["policy_tokens"]
    assert result.cost.policy_tokens == 15
    assert result.completion.sample == 0
    assert result.stopped_by == "policy_tokens"


def test_a_rerun_searches_only_what_is_missing(tmp_path):
    file, engine = tmp_path / "results.jsonl", DigitEngine()
    whole = search(engine=DigitEngine())
    search(file=file, prompts=PROMPTS[:4])
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:-1]) + lines[-1][:40])  # killed while it wrote the fourth
    again = search(file=file, engine=engine)
    assert engine.calls[0]["prompts"] == ["p3", "p4", "p5"]
    assert [result.to_row() for result in again.results] == [
        result.to_row() | {"cost": other.to_row()["cost"]}
        for result, other in zip(whole.results, again.results, strict=True)
    ]
    assert len(file.read_text().splitlines()) == 1 + len(PROMPTS)


def test_results_of_other_settings_are_refused(tmp_path):
    file = tmp_path / "results.jsonl"
    search(file=file)
    with pytest.raises(DataError, match="seed"):
        search(file=file, seed=4)


def shorter(prompts, completions):
    return [-float(len(completion)) for completion in completions]


def longer(prompts, completions):
    return [float(len(completion)) for completion in completions]


def test_results_of_another_reward_are_refused(tmp_path):
    file = tmp_path / "results.jsonl"
    search(file=file, scorer=FunctionReward(shorter, in_process=True))
    search(file=file, scorer=FunctionReward(shorter, in_process=True))
    with pytest.raises(DataError, match="reward_identity"):
        search(file=file, scorer=FunctionReward(longer, in_process=True))


def test_the_result_of_another_prompt_with_the_same_id_is_refused(tmp_path):
    file = tmp_path / "results.jsonl"
    search(file=file, prompts=[prompt("p0", "012")])
    with pytest.raises(DataError, match="p0"):
        search(file=file, prompts=[prompt("p0", "210")])


def test_results_of_a_strategy_that_was_edited_are_refused(tmp_path):
    file, code = tmp_path / "results.jsonl", tmp_path / "mine.py"
    text = "def mine(ask):\n    (only,) = yield ask.sample(1)\n    return only\n"
    code.write_text(text)
    search(load_function(f"{code}:mine"), file=file)
    code.write_text(text + "# edited\n")
    with pytest.raises(DataError, match="strategy_code"):
        search(load_function(f"{code}:mine"), file=file)


def test_what_a_vote_compares_is_the_same_in_another_process():
    """A function made by another one is told by what it has from it, not by its place in memory."""
    readers = [answer_reader(pattern=pattern) for pattern in (r"A(\d)", r"A(\d)", r"B(\d)")]
    one, again, other = map(code_identity, readers)
    assert one == again != other
    assert code_identity(answer_reader()) != code_identity(answer_reader(where=["boxed"]))


@pytest.mark.parametrize("line", ["[]", "{", '{"prompt_id": "p0"}'])
def test_a_damaged_file_is_an_error_that_names_the_line(tmp_path, line):
    file = tmp_path / "results.jsonl"
    search(file=file, prompts=PROMPTS[:2])
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")
    with pytest.raises(DataError, match="line 2"):
        search(file=file)


def test_two_prompts_of_one_id_are_refused():
    with pytest.raises(DataError, match="p1"):
        search(prompts=[PROMPTS[1], PROMPTS[1]])


def test_wrong_strategies_are_told_what_is_wrong():
    def yields_text(ask):
        yield "sample"

    def returns_text(ask):
        yield ask.sample(1)
        return "42"

    def fails(ask):
        yield ask.sample(1)
        raise ZeroDivisionError

    for wrong in (yields_text, returns_text, fails, lambda ask: None):
        with pytest.raises(ConfigError):
            search(wrong)
    with pytest.raises(ConfigError, match="nmu_samples"):
        search(arguments={"nmu_samples": 4})
    with pytest.raises(ConfigError, match=r"asked for 2\.5 samples"):
        search(arguments={"num_samples": 2.5})
    with pytest.raises(ConfigError, match="reward"):
        search(scorer=None)
    with pytest.raises(ConfigError, match="step_separator"):
        search(beam, separator=None)


def test_texts_with_line_separators_of_unicode_survive_their_file(tmp_path):
    def telling(ask):
        (only,) = yield ask.sample(1)
        return Choice(completion=only, details={"why": "one\u2028two\x85three \ud800"})

    file, engine = tmp_path / "results.jsonl", DigitEngine()
    first = search(telling, file=file)
    again = search(telling, file=file, engine=engine)
    assert not engine.calls
    assert [each.completion for each in again.results] == [each.completion for each in first.results]
    assert again.results[0].details["why"].startswith("one\u2028two\x85three")


@pytest.mark.parametrize("value", [torch.tensor(1.0), {1, 2}, float("nan")])
def test_details_that_are_no_json_are_refused_by_name(value):
    def telling(ask):
        (only,) = yield ask.sample(1)
        return Choice(completion=only, details={"why": value})

    with pytest.raises(ConfigError, match=r"'p0' can't be written as JSON"):
        search(telling)


@pytest.mark.parametrize(
    "limits",
    [{"policy_tokens": 0}, {"policy_tokens": 7.5}, {"scorer_forwards": "9"}, {"seconds": math.nan}, {"seconds": -1}],
)
def test_a_limit_that_is_none_is_refused(limits):
    with pytest.raises(ConfigError, match=f"budget.{next(iter(limits))} is "):
        Budget(**limits)


def test_results_survive_their_file():
    result = search().results[0]
    row = json.loads(json.dumps(result.to_row()))
    assert type(result).from_row(row) == result
