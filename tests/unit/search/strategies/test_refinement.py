"""Drafts that are criticized and revised: what is kept, who decides, what it costs and where it ends."""

from __future__ import annotations

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.config.search_revision import PolicyCriticConfig, RevisionConfig
from rlhf.errors import ConfigError, RewardError
from rlhf.search.contract import Budget
from rlhf.search.critics import FunctionCritic, ModelCritic
from rlhf.search.refined_pairs import refined_pairs
from rlhf.search.search_helpers import SearchHelpers
from rlhf.search.search_run import run_search
from rlhf.search.strategies.refinement import refine
from rlhf.search.strategies.tpo import tpo
from tests.fixtures.step_world import DigitEngine, DigitScorer, DigitTexts, digit_critic, prompt, worth

PROMPTS = [prompt(f"p{i}", f"{i % 4}{(i + 1) % 4}{(i // 4 + 2) % 4}") for i in range(12)]
CONTINUING = RevisionConfig(by="continuing")
SAMPLING = SamplingConfig(max_new_tokens=7)
ALWAYS = FunctionCritic(lambda p, c, rejected: ["do better"] * len(p), name="always")


def run(strategy, prompts=PROMPTS, critic=None, scorer=None, budget=None, seed=0, prompts_at_once=64, **arguments):
    critic = critic or FunctionCritic(digit_critic)
    helpers = SearchHelpers(critic=critic, texts=DigitTexts())
    return run_search(
        prompts, strategy, engine=DigitEngine(), scorer=scorer or DigitScorer(), helpers=helpers, arguments=arguments,
        sampling=SAMPLING, budget=budget, seed=seed, prompts_at_once=prompts_at_once,
    ).results  # fmt: skip


def texts(results):
    return [result.completion.text for result in results]


def test_a_revision_is_kept_only_where_the_judge_scores_it_higher():
    results = run(refine, rounds=4, revision=CONTINUING)
    assert any(result.details["accepted"] for result in results)
    refused = 0
    for asked, result in zip(PROMPTS, results, strict=True):
        before = result.trace[0]["texts"][0]
        for pair in result.details["accepted"]:
            assert pair["before"] == before
            low, high = (worth(asked.columns["wanted"], pair[key]) for key in ("before", "after"))
            assert [low, high] == pair["scores"]
            assert low < high
            before = pair["after"]
        assert result.completion.text == before
        refused += sum(event["did"] == "revised" for event in result.trace) - len(result.details["accepted"])
    assert refused > 0


def test_a_judge_who_likes_no_revision_keeps_every_draft():
    class Unmoved(DigitScorer):
        def score(self, prompts, completions):
            result = super().score(prompts, completions)
            result.scores[:] = [0.5] * len(completions)
            return result

    results = run(refine, scorer=Unmoved(), rounds=2, revision=CONTINUING)
    assert texts(results) == [result.trace[0]["texts"][0] for result in results]
    assert not any(result.details["accepted"] for result in results)


def test_a_gain_below_the_least_is_not_enough():
    assert not any(r.details["accepted"] for r in run(refine, rounds=3, min_gain=1.0, revision=CONTINUING))


def test_a_gain_that_may_be_noise_is_kept_and_makes_no_pair():
    class Unsure(DigitScorer):
        """Each score it gives is a little higher than the last."""

        def score(self, prompts, completions):
            result = super().score(prompts, completions)
            self.calls = getattr(self, "calls", 0) + 1
            result.scores[:] = [0.01 * self.calls] * len(completions)
            return result

    for least, rows in ((None, 0), (0.0, 2), (0.009, 2), (0.011, 0)):
        how = {} if least is None else {"min_pair_gain": least}
        results = run(refine, PROMPTS[:1], critic=ALWAYS, scorer=Unsure(), rounds=2, **how)
        assert len(results[0].details["accepted"]) == 2
        assert len(refined_pairs([(PROMPTS[0], results[0])])) == rows


def test_a_revision_goes_on_from_what_the_critic_says_is_right():
    for asked, result in zip(PROMPTS, run(refine, rounds=1, revision=CONTINUING), strict=True):
        revised = [event for event in result.trace if event["did"] == "revised"]
        (critique,) = [event for event in result.trace if event["did"] == "criticized"]
        if not critique["texts"][0]:
            assert not revised
            continue
        right = int(critique["texts"][0].split()[1])
        assert revised[0]["prefill_tokens"] == len(asked.ids) + 2 * right
        assert revised[0]["from"] == 0
        assert revised[0]["policy_tokens"] == 7 - 2 * right


def test_a_revision_is_written_anew_from_prompt_draft_and_critique():
    helpers = SearchHelpers(
        critic=FunctionCritic(lambda p, c, rejected: ["too {draft} short"] * len(p)), texts=DigitTexts()
    )
    how = {"rounds": 1, "revision": RevisionConfig(prompt="{prompt}|{draft}|{critique}")}
    (result,) = run_search(
        PROMPTS[:1],
        refine,
        engine=DigitEngine(),
        scorer=DigitScorer(),
        helpers=helpers,
        arguments=how,
        sampling=SAMPLING,
    ).results
    draft = result.trace[0]["texts"][0]
    assert helpers.texts.asked == [f"p0|{draft}|too {{draft}} short"]
    assert result.cost.critiques == 1


@pytest.mark.parametrize("strategy", [refine, tpo])
def test_answers_do_not_depend_on_the_other_prompts_and_repeat_by_seed(strategy):
    def found(**how):
        return {r.prompt_id: r.completion.text for r in run(strategy, revision=CONTINUING, **how)}

    first = found()
    assert first == found(prompts=PROMPTS[::-1], prompts_at_once=5)
    assert first != found(seed=1)


def test_the_pool_s_best_of_tpo_is_its_answer_and_grows_with_iterations():
    shallow, deep = (run(tpo, samples=3, iterations=n, revision=CONTINUING) for n in (1, 3))
    for asked, before, after in zip(PROMPTS, shallow, deep, strict=True):
        assert after.score >= before.score
        scores = [score for event in after.trace if event["did"] == "scored" for score in event["scores"]]
        assert after.score == max(scores) == worth(asked.columns["wanted"], after.completion.text)
    assert sum(r.score for r in deep) > sum(r.score for r in shallow)


def test_tpo_compares_the_best_with_the_worst_and_revises_by_the_advice():
    asked = []

    def critic(prompts, completions, rejected):
        asked.append((completions[0], rejected[0]))
        return ["improve"]

    (result,) = run(tpo, PROMPTS[:1], critic=FunctionCritic(critic), samples=4, iterations=1)
    scores = result.trace[1]["scores"]
    drawn = result.trace[0]["texts"]
    ((best, worst),) = asked
    assert worth("012", best) == max(scores)
    assert worth("012", worst) == min(scores)
    assert {best, worst} <= set(drawn)
    assert [event["did"] for event in result.trace] == [
        "sampled", "scored", "criticized", "advised", "revised", "scored", "kept",
    ]  # fmt: skip


class WordyEngine(DigitEngine):
    """A critic's engine: as many tokens as it may."""

    def _one(self, asked, sample, sampling, seed):
        from dataclasses import replace

        said = super()._one(asked, sample, sampling, seed)
        count = sampling.max_new_tokens
        return replace(said, tokens=[60] * count, logprobs=[-1.0] * count, text="2" * count, finish_reason="length")


@pytest.mark.parametrize("strategy", [refine, tpo])
@pytest.mark.parametrize("limit", [*range(1, 40, 6), 70])
def test_a_model_that_criticizes_draws_from_the_same_budget(strategy, limit):
    config = PolicyCriticConfig(sampling=SamplingConfig(max_new_tokens=10))
    critic = ModelCritic(WordyEngine(), DigitTexts(), config, name="wordy")
    results = run(strategy, PROMPTS[:3], critic=critic, budget=Budget(policy_tokens=limit))
    for result in results:
        assert result.cost.policy_tokens <= limit
        assert result.cost.policy_tokens == sum(event.get("policy_tokens", 0) for event in result.trace)
        assert result.completion is not None
    if limit < 7:
        assert all(result.stopped_by == "policy_tokens" for result in results)


def test_what_was_kept_before_the_budget_ended_is_the_answer():
    whole = run(refine, rounds=4, revision=CONTINUING)
    cut = run(refine, rounds=4, revision=CONTINUING, budget=Budget(scorer_forwards=2))
    for before, after in zip(whole, cut, strict=True):
        assert after.cost.scorer_forwards <= 2
        assert after.details["accepted"] == before.details["accepted"][: len(after.details["accepted"])]
    assert any(result.stopped_by == "scorer_forwards" for result in cut)


def test_accepted_revisions_become_preference_rows():
    results = run(refine, rounds=4, min_pair_gain=0.0, revision=CONTINUING)
    rows = refined_pairs(list(zip(PROMPTS, results, strict=True)), {"critic": "digits"})
    assert len(rows) == sum(len(result.details["accepted"]) for result in results)
    by_id = {asked.id: asked for asked in PROMPTS}
    for row in rows:
        asked = by_id[row["id"].partition("/")[0]]
        assert worth(asked.columns["wanted"], row["chosen"]) > worth(asked.columns["wanted"], row["rejected"])
        assert row["prompt_ids"] == asked.ids
        assert "".join(chr(token - 10) for token in row["chosen_ids"] if token >= 42) == row["chosen"]
        assert row["lineage"] == {"critic": "digits"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (lambda p, c, rejected: ["one"], "1 critiques"),
        (lambda p, c, rejected: 1 / 0, "ZeroDivisionError"),
        (lambda p, c, rejected: [{"text": "x", "keep": 99}] * len(p), "p0"),
        (lambda p, c, rejected: [3] * len(p), "p0"),
    ],
)
def test_a_critic_that_fails_is_named(given, named):
    with pytest.raises(RewardError, match=named):
        run(refine, critic=FunctionCritic(given, name="strict"))


def test_what_is_missing_is_said():
    with pytest.raises(ConfigError, match="keep"):
        run(refine, critic=FunctionCritic(lambda p, c, rejected: ["bad"] * len(p)), revision=CONTINUING)
    with pytest.raises(ConfigError, match="critic"):
        run_search(PROMPTS[:1], refine, engine=DigitEngine(), scorer=DigitScorer(), sampling=SAMPLING)


class ShortEngine(WordyEngine):
    """Made for so many tokens, and refuses what is longer, as engines do."""

    def __init__(self, context_length: int) -> None:
        super().__init__()
        self.context_length = context_length

    def generate(self, prompts, *, sampling, **how):
        assert all(len(asked.ids) + sampling.max_new_tokens <= self.context_length for asked in prompts)
        return super().generate(prompts, sampling=sampling, **how)


class LongTexts(DigitTexts):
    """What is read about drafts of p1 takes ten tokens more."""

    def ids(self, prompt, text):
        return [1] * (13 if prompt.id == "p1" else 3)


@pytest.mark.parametrize("strategy", [refine, tpo])
def test_a_critic_that_can_not_read_a_draft_ends_that_search_only(strategy):
    config = PolicyCriticConfig(sampling=SamplingConfig(max_new_tokens=10))
    critic = ModelCritic(ShortEngine(13), LongTexts(), config, name="wordy")
    results = run(strategy, PROMPTS[:3], critic=critic)
    assert [result.stopped_by for result in results] == [None, "context_length", None]
    assert all(result.completion is not None and result.score is not None for result in results)
    why = results[1].details["why_stopped"]
    assert all(part in why for part in ("wordy", "'p1'", "13", "critic.sampling.max_new_tokens"))
    assert "why_stopped" not in results[0].details


@pytest.mark.parametrize("strategy", [refine, tpo])
def test_a_revision_that_the_policy_can_not_read_ends_that_search_only(strategy):
    class Digits(DigitEngine):
        context_length = 10

    results = run_search(
        PROMPTS[:3], strategy, engine=Digits(), scorer=DigitScorer(), sampling=SAMPLING,
        helpers=SearchHelpers(critic=ALWAYS, texts=LongTexts()),
    ).results  # fmt: skip
    assert [result.stopped_by for result in results] == [None, "context_length", None]
    assert "critic.sampling.max_new_tokens" in results[1].details["why_stopped"]
    assert results[1].completion is not None
