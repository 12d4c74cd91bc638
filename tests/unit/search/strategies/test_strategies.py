"""What each strategy finds in a world where the right answer is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.config.search_strategies import ConfidenceStoppingConfig
from rlhf.errors import ConfigError
from rlhf.search.contract import Ask, Budget
from rlhf.search.search_run import run_search
from rlhf.search.strategies.adaptive_compute import AdaptiveComputeAllocator, adaptive_compute
from rlhf.search.strategies.confidence_stopping import (
    ConfidenceBasedStopping,
    confidence_stopping,
    vote_confidence,
)
from rlhf.search.strategies.highest_score import best_of_n
from rlhf.search.strategies.single_sample import greedy, single_sample
from rlhf.search.strategies.step_beam import beam
from rlhf.search.strategies.tree_search import mcts
from rlhf.search.strategies.votes_on_answers import elected, majority_vote, vote_weights, weighted_vote
from tests.fixtures.scripted_engine import completion
from tests.fixtures.step_world import DigitEngine, DigitScorer, last_digit, prompt, worth

PROMPTS = [prompt(f"p{i}", f"{i % 4}{(i + 1) % 4}{(i // 4 + 2) % 4}") for i in range(16)]


def search(strategy, prompts=PROMPTS, engine=None, scorer=None, **arguments):
    return run_search(
        prompts,
        strategy,
        engine=engine or DigitEngine(),
        scorer=scorer or DigitScorer(),
        arguments=arguments,
        sampling=SamplingConfig(max_new_tokens=7),
        separator=";",
    ).results


def solved(results, prompts=PROMPTS):
    return [worth(p.columns["wanted"], r.completion.text) == 1 for p, r in zip(prompts, results, strict=True)]


def test_baselines_take_one_completion():
    assert {result.completion.text for result in search(greedy)} == {"0;0;0;"}
    assert all(result.cost.policy_tokens == 7 for result in search(single_sample))


def test_best_of_n_answers_with_the_highest_score():
    results = search(best_of_n, num_samples=8)
    assert all(r.score == max(r.trace[1]["scores"]) for r in results)


def test_a_completion_that_was_cut_is_taken_last():
    (result,) = run_search(
        PROMPTS[:1], best_of_n, engine=DigitEngine(), scorer=DigitScorer(), arguments={"num_samples": 3},
        sampling=SamplingConfig(max_new_tokens=7), budget=Budget(policy_tokens=15),
    ).results  # fmt: skip
    assert not result.completion.truncated  # the third, of one token, would have had the highest score by luck at most


def test_what_ends_at_the_run_s_own_stop_text_is_complete_and_a_step_is_not():
    sampling = SamplingConfig(max_new_tokens=70, stop=["."])
    ask = Ask(PROMPTS[0], sampling=sampling, separator=";", seed=0)
    whole, step = (replace(completion("p", i, text), finish_reason="stop") for i, text in enumerate(["1;2.", "1;"]))
    assert [ask.ended(whole), ask.complete(whole)] == [True, True]
    assert [ask.ended(step), ask.complete(step)] == [False, False]
    ask.candidates, ask.scores = {0: whole, 1: step}, {0: 0.1, 1: 0.9}
    assert ask.best_so_far().completion is whole


def test_a_tree_search_samples_no_more_steps_of_a_node_than_its_cap():
    for result in search(mcts, engine=DigitEngine("3"), samples=2, max_children=3, widen_below=1.0):
        first = [
            len(event["candidates"]) for event in result.trace if event["did"] == "sampled" and event["from"] is None
        ]
        assert sum(first) <= 3


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [([1, 1, 1, 1], "4"), ([0.9, 0.9, 0.1, 0.1], "4"), ([0.1, 0.1, 0.9, 0.0], "5"), ([0.3, 0.2, 0.5, 1.0], "4")],
)
def test_the_answer_with_most_weight_is_elected(weights, wanted):
    said = [completion("p", i, text) for i, text in enumerate(["4", "4", "5", "no answer"])]
    choice = elected(said, weights, lambda text: text if text.isdigit() else None)
    assert choice.completion.text == wanted
    assert choice.details["answer"] == wanted


def test_a_vote_of_completions_without_answers_takes_the_heaviest():
    said = [completion("p", i, "none") for i in range(3)]
    assert elected(said, [0.1, 0.3, 0.2], lambda text: None).completion.sample == 1


def test_negative_scores_do_not_punish_being_given_often():
    assert vote_weights([-2.0, -1.0, 3.0]) == [0.0, 1.0, 5.0]
    assert vote_weights([0.2, 0.4]) == [0.2, 0.4]


def test_votes_count_the_samples():
    (result,) = search(majority_vote, PROMPTS[:1], answer_of=last_digit, num_samples=9)
    assert sum(result.details["votes"].values()) == 9
    assert result.details["votes"][result.details["answer"]] == max(result.details["votes"].values())
    (weighted,) = search(weighted_vote, PROMPTS[:1], answer_of=last_digit, num_samples=9)
    assert sum(weighted.details["votes"].values()) == pytest.approx(sum(weighted.trace[1]["scores"]))


def test_a_beam_solves_step_by_step_what_whole_samples_do_not():
    steps = search(beam, width=1, samples=12)
    whole = search(best_of_n, num_samples=12)
    assert sum(solved(steps)) > 12 > 6 > sum(solved(whole))  # 1 - (3/4)^12 for each of three digits; 1 - (63/64)^12
    for result in steps:
        assert result.cost.policy_tokens == 12 * (2 + 2 + 3)
        assert result.cost.prefill_tokens == 3 + 5 + 7  # each node's beginning once for its twelve children


def test_equal_beginnings_hold_one_place_of_a_beam():
    engine = DigitEngine(digits="01")
    (result,) = search(beam, PROMPTS[:1], engine=engine, width=4, samples=8)
    second = [event for event in result.trace if event["did"] == "sampled"][1:]
    assert len({event["from"] for event in second[:2]}) == 2  # of four places, two digits fill two


def test_a_tree_search_with_widening_finds_every_solution():
    results = search(mcts, max_children=64)
    assert all(solved(results))
    assert all(result.score == 1 for result in results)


def test_without_widening_wrong_first_steps_are_a_dead_end():
    narrow = search(mcts, widen_below=0.0)
    assert sum(solved(narrow)) < sum(solved(search(mcts, max_children=64)))


def test_a_tree_search_stops_early():
    sure = search(mcts, max_children=64)
    thorough = search(mcts, max_children=64, stop_at=None, max_expansions=64)
    assert sum(r.cost.policy_tokens for r in sure) < sum(r.cost.policy_tokens for r in thorough)


def test_leaves_of_one_call_are_different_nodes():
    (result,) = search(mcts, PROMPTS[:1], leaves_at_once=4, stop_at=None, max_expansions=24)
    places = [event["from"] for event in result.trace if event["did"] == "sampled"]
    assert len(places) <= 24
    assert len(set(places)) > 4


def test_a_root_that_moves_keeps_its_subtree():
    (moved,) = search(mcts, PROMPTS[:1], commit_after=2, max_children=64)
    sampled = [event for event in moved.trace if event["did"] == "sampled"]
    assert moved.completion is not None
    starts = [event["from"] for event in sampled]
    assert None in starts
    assert starts.index(None) == 0
    assert all(start is not None for start in starts[6:])  # it left the prompt behind


def test_a_tree_search_that_finishes_nothing_completes_its_best_beginning():
    (result,) = search(mcts, PROMPTS[:1], max_expansions=1)
    assert result.completion.finish_reason == "eos"
    assert result.completion.text.count(";") == 3


def test_the_confidence_of_a_vote_is_that_of_its_posterior():
    # P(p > 1/2) for Beta(4, 1): 1 - (1/2)^4; for Beta(3, 2): 11/16, both by hand.
    assert vote_confidence(["a", "a", "a"]) == pytest.approx(15 / 16)
    assert vote_confidence(["a", "b", "a", None]) == pytest.approx(11 / 16)
    assert vote_confidence([None]) == pytest.approx(0.5)
    assert ConfidenceBasedStopping("vote", threshold=0.9).should_stop(answers=["a"] * 3)
    assert not ConfidenceBasedStopping("vote", threshold=0.9).should_stop(answers=["a", "b", "a"])
    assert not ConfidenceBasedStopping("score", threshold=0.5, min_samples=3).should_stop(scores=[0.9, 0.9])


def test_sampling_stops_at_a_score():
    results = search(confidence_stopping, threshold=0.05, max_samples=20)
    for result in results:
        scored = [score for event in result.trace if event["did"] == "scored" for score in event["scores"]]
        assert all(score < 0.05 for score in scored[:-1])
        assert scored[-1] >= 0.05 or len(scored) == 20


def test_sampling_stops_when_the_vote_is_sure():
    sure = search(confidence_stopping, engine=DigitEngine(digits="1"), rule="vote", threshold=0.9, answer_of=last_digit)
    assert {result.cost.policy_tokens for result in sure} == {3 * 7}


@pytest.mark.parametrize(
    ("difficulties", "total", "cap", "wanted"),
    [
        ([1, 1, 2], 8, 9, [2, 2, 4]),
        ([0, 0, 0], 6, 9, [2, 2, 2]),
        ([0.0, 0.5, 0.5], 3, 9, [0, 2, 1]),
        ([0, 1, 3], 8, 4, [0, 4, 4]),
        ([1, 1], 100, 3, [3, 3]),
        ([0, 1], 5, 4, [1, 4]),
        ([], 0, 4, []),
    ],
)
def test_samples_are_divided_in_proportion(difficulties, total, cap, wanted):
    assert AdaptiveComputeAllocator(max_samples=cap).allocate(difficulties, total) == wanted


def test_difficulties_are_what_the_first_look_lacks():
    assert AdaptiveComputeAllocator("gap").difficulties([[0.2, 0.9], [0.4, 0.1]]) == pytest.approx([0.1, 0.6])
    assert AdaptiveComputeAllocator("gap").difficulties([[-3.0, 2.0], [0.5, -1.0]]) == pytest.approx([0, 1.5])
    looks = [["a", "a"], ["a", "b"], [None, None]]
    assert AdaptiveComputeAllocator("disagreement").difficulties(looks) == pytest.approx([0, 0.5, 1])


def test_adaptive_compute_spends_its_average_where_scores_are_low():
    results = search(adaptive_compute, first=2, average=6, max_samples=20)
    counts = [result.cost.policy_tokens // 7 for result in results]
    assert sum(counts) == 6 * len(PROMPTS)
    after_two = [max(result.trace[1]["scores"]) for result in results]
    easy = [count for count, score in zip(counts, after_two, strict=True) if score >= 0.1]
    hard = [count for count, score in zip(counts, after_two, strict=True) if score < 0.1]
    assert easy
    assert hard
    assert max(easy) <= min(hard)


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError):
        search(confidence_stopping, rule="vote")
    with pytest.raises(ConfigError):
        search(adaptive_compute, first=4, average=2)
    with pytest.raises(ConfigError):
        ConfidenceBasedStopping("vote", threshold=0.2)
    with pytest.raises(ConfigError):
        AdaptiveComputeAllocator("length")


def test_a_vote_without_a_threshold_is_not_decided_by_its_first_sample():
    config = ConfidenceStoppingConfig(rule="vote")
    results = search(confidence_stopping, engine=DigitEngine("2"), **config.keywords(), answer_of=last_digit)
    assert {len(result.trace) - 1 for result in results} == {4}  # 1 - 0.5^5 is the first above 0.95
    bare = search(confidence_stopping, rule="vote", answer_of=last_digit, engine=DigitEngine("2"))
    assert [result.cost.policy_tokens for result in bare] == [result.cost.policy_tokens for result in results]
    assert ConfidenceStoppingConfig().keywords()["threshold"] == 0.5


def test_a_tree_search_refuses_scores_that_are_no_probabilities():
    class Raw(DigitScorer):
        def score(self, prompts, completions):
            verdict = super().score(prompts, completions)
            return replace(verdict, scores=[score - 2 for score in verdict.scores])

    with pytest.raises(ConfigError, match="from 0 to 1"):
        search(mcts, scorer=Raw())
