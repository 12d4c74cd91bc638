"""Conformance checks for implementations of a contract, this library's and yours.

    @pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
    def test_my_engine(check):
        check(MyEngine(...), prompts)

Each check raises AssertionError with a message. Give at least three prompts, with texts of different lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import RLHFError
from rlhf.rewards.types import Scorer
from rlhf.rollout.types import Completion, RolloutEngine

SAMPLING = SamplingConfig(max_new_tokens=12)


def check_every_prompt_gets_its_samples_in_order(engine: RolloutEngine, prompts: Sequence[Prompt]) -> None:
    """Shape, names and lengths of what an engine returns."""
    groups = engine.generate(prompts, num_samples=3, sampling=SAMPLING, seed=1, rollout_index=0)
    assert len(groups) == len(prompts), f"{len(groups)} groups for {len(prompts)} prompts"
    for prompt, group in zip(prompts, groups, strict=True):
        assert [c.prompt_id for c in group] == [prompt.id] * 3, f"completions of another prompt under {prompt.id}"
        assert [c.sample for c in group] == [0, 1, 2], "samples are numbered from 0 in order"
        for completion in group:
            assert 1 <= len(completion.tokens) <= SAMPLING.max_new_tokens, f"{len(completion.tokens)} tokens"
            own = completion.sampled_tokens
            assert 1 <= len(completion.logprobs) == len(own), "one log-probability for each token that was sampled"
            assert all(math.isfinite(x) and x <= 1e-6 for x in completion.logprobs), "log-probabilities are at most 0"
            assert completion.weight_version == engine.weight_version, "a completion carries the weights' version"
            assert completion.sampling_logprobs is None, "nothing was filtered, so there is one distribution only"
            short = len(completion.tokens) < SAMPLING.max_new_tokens
            cut_early = short and completion.truncated and completion.turns == 1
            assert not cut_early, "only the length limit may cut a completion of one turn off"


def check_a_sample_hangs_on_nothing_beside_it(engine: RolloutEngine, prompts: Sequence[Prompt]) -> None:
    """Alone, among others, in reverse order: the same tokens."""
    together = engine.generate(prompts, num_samples=2, sampling=SAMPLING, seed=1, rollout_index=0)
    backwards = engine.generate(prompts[::-1], num_samples=2, sampling=SAMPLING, seed=1, rollout_index=0)[::-1]
    for prompt, group, other in zip(prompts, together, backwards, strict=True):
        alone = engine.generate([prompt], num_samples=1, sampling=SAMPLING, seed=1, rollout_index=0)[0][0]
        assert alone.tokens == group[0].tokens, f"prompt {prompt.id} alone gives another sample"
        assert _tokens(group) == _tokens(other), f"prompt {prompt.id} gives another sample in another order"


def check_the_seed_and_the_rollout_index_decide(engine: RolloutEngine, prompts: Sequence[Prompt]) -> None:
    """The same call repeats itself; another seed or step does not."""

    def ask(seed: int, step: int) -> list[list[int]]:
        groups = engine.generate(prompts, num_samples=2, sampling=SAMPLING, seed=seed, rollout_index=step)
        return [tokens for group in groups for tokens in _tokens(group)]

    first = ask(1, 0)
    assert ask(1, 0) == first, "the same call gave other samples"
    assert ask(2, 0) != first, "another seed gave the same samples"
    assert ask(1, 1) != first, "another step gave the same samples"


def check_the_samples_of_a_group_differ(engine: RolloutEngine, prompts: Sequence[Prompt]) -> None:
    """A prompt that comes twice goes on counting, so no two samples share a seed."""
    twice = [prompts[0], prompts[1], prompts[0]]
    groups = engine.generate(twice, num_samples=4, sampling=SAMPLING, seed=1, rollout_index=0)
    same_prompt = groups[0] + groups[2]
    assert [c.sample for c in same_prompt] == list(range(8)), "the second time goes on counting"
    assert len({tuple(c.tokens) for c in same_prompt}) > 1, "eight samples of one prompt are all the same"


def check_greedy_sampling_ignores_the_seed(engine: RolloutEngine, prompts: Sequence[Prompt]) -> None:
    """Temperature 0."""
    greedy = SAMPLING.updated(temperature=0.0)
    groups = engine.generate(prompts, num_samples=2, sampling=greedy, seed=1, rollout_index=0)
    again = engine.generate(prompts, num_samples=1, sampling=greedy, seed=2, rollout_index=3)
    for group, (single,) in zip(groups, again, strict=True):
        assert _tokens(group) == [single.tokens] * 2, "greedy samples differ"


def check_a_lower_limit_cuts_the_same_samples(engine: RolloutEngine, prompts: Sequence[Prompt]) -> None:
    """What is sampled does not depend on how much more may come."""
    whole = engine.generate(prompts, num_samples=2, sampling=SAMPLING, seed=1, rollout_index=0)
    limit = SAMPLING.max_new_tokens // 2
    cut = engine.generate(
        prompts, num_samples=2, sampling=SAMPLING.updated(max_new_tokens=limit), seed=1, rollout_index=0
    )
    for group, shorter in zip(whole, cut, strict=True):
        for completion, begun in zip(group, shorter, strict=True):
            assert len(begun.tokens) <= limit, f"{len(begun.tokens)} tokens under a limit of {limit}"
            assert begun.tokens == completion.tokens[: len(begun.tokens)], "a lower limit gave another sample"
            longer = len(completion.tokens) > len(begun.tokens)
            assert not longer or begun.truncated, "a completion that was cut does not say so"


def check_a_paused_engine_refuses(engine: RolloutEngine, prompts: Sequence[Prompt]) -> None:
    """And says so; afterwards it answers as before."""
    before = engine.generate(prompts[:1], num_samples=1, sampling=SAMPLING, seed=1, rollout_index=0)
    engine.pause()
    assert not engine.health().ok, "a paused engine says that it is well"
    try:
        engine.generate(prompts[:1], num_samples=1, sampling=SAMPLING, seed=1, rollout_index=0)
    except RLHFError:
        pass
    else:
        raise AssertionError("a paused engine sampled")
    engine.resume()
    assert engine.health().ok, "a resumed engine says that it is not well"
    after = engine.generate(prompts[:1], num_samples=1, sampling=SAMPLING, seed=1, rollout_index=0)
    assert _tokens(after[0]) == _tokens(before[0]), "a pause changed the samples"


def check_completions_carry_the_version_that_was_loaded(engine: RolloutEngine, prompts: Sequence[Prompt]) -> None:
    """So that a stale engine can be found out."""
    version = engine.weight_version + 7
    engine.load_weights(version)
    assert engine.weight_version == engine.health().weight_version == version
    completions = engine.generate(prompts[:1], num_samples=1, sampling=SAMPLING, seed=1, rollout_index=0)
    assert completions[0][0].weight_version == version
    assert engine.fingerprint() == engine.fingerprint() != "", "a fingerprint is a stable text"


ENGINE_CHECKS: tuple[Callable[[RolloutEngine, Sequence[Prompt]], None], ...] = (
    check_every_prompt_gets_its_samples_in_order,
    check_a_sample_hangs_on_nothing_beside_it,
    check_the_seed_and_the_rollout_index_decide,
    check_the_samples_of_a_group_differ,
    check_greedy_sampling_ignores_the_seed,
    check_a_lower_limit_cuts_the_same_samples,
    check_a_paused_engine_refuses,
    check_completions_carry_the_version_that_was_loaded,
)
"""Every engine passes all of them."""


def check_every_completion_gets_a_number(scorer: Scorer, prompts: Sequence[Prompt], texts: Sequence[str]) -> None:
    """One finite score each, and components of the same length."""
    completions = [_completion(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    result = scorer.score(prompts, completions)
    assert len(result.scores) == len(texts), f"{len(result.scores)} scores for {len(texts)} completions"
    assert all(math.isfinite(score) for score in result.scores), f"not all finite: {result.scores}"
    assert result.per_component, "the parts of a score are there, even where there is one only"
    assert all(len(part) == len(texts) for part in result.per_component.values())
    assert not result.errors
    assert scorer.name, "a scorer has a name"


def check_scores_follow_their_completions(scorer: Scorer, prompts: Sequence[Prompt], texts: Sequence[str]) -> None:
    """In reverse order, and one at a time: the same scores."""
    completions = [_completion(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    scores = scorer.score(prompts, completions).scores
    backwards = scorer.score(prompts[::-1], completions[::-1]).scores[::-1]
    singles = [scorer.score([p], [c]).scores[0] for p, c in zip(prompts, completions, strict=True)]
    for place, score in enumerate(scores):
        assert math.isclose(score, backwards[place], abs_tol=1e-4), "another order gives another score"
        assert math.isclose(score, singles[place], abs_tol=1e-4), "alone, a completion gets another score"


def check_nothing_is_judged_as_nothing(scorer: Scorer, prompts: Sequence[Prompt], texts: Sequence[str]) -> None:
    """No completions, no scores, no error."""
    assert scorer.score([], []).scores == []


def check_judging_changes_nothing(scorer: Scorer, prompts: Sequence[Prompt], texts: Sequence[str]) -> None:
    """Prompts and completions are afterwards what they were."""
    completions = [_completion(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    before = [(list(p.ids), p.text, dict(p.columns), replace(c)) for p, c in zip(prompts, completions, strict=True)]
    scorer.score(prompts, completions)
    assert before == [(p.ids, p.text, dict(p.columns), c) for p, c in zip(prompts, completions, strict=True)]


SCORER_CHECKS: tuple[Callable[[Scorer, Sequence[Prompt], Sequence[str]], None], ...] = (
    check_every_completion_gets_a_number,
    check_scores_follow_their_completions,
    check_nothing_is_judged_as_nothing,
    check_judging_changes_nothing,
)
"""Every scorer that scores completions independently passes all of them."""


def _tokens(group: Sequence[Completion]) -> list[list[int]]:
    return [completion.tokens for completion in group]


def _completion(prompt: Prompt, text: str) -> Completion:
    """A completion for scorers that read texts or ids; its ids are the prompt's own, so any model knows them."""
    return Completion(
        prompt_id=prompt.id,
        sample=0,
        tokens=list(prompt.ids),
        logprobs=[0.0] * len(prompt.ids),
        finish_reason="length",
        weight_version=0,
        text=text,
    )
