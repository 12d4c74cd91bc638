"""Searches from Python: a policy, a reward and a strategy's settings; texts in, answers with their traces out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal

import numpy as np

from rlhf.config.policy import SamplingConfig
from rlhf.config.search_revision import PAIR_GAIN, RevisionConfig
from rlhf.config.search_strategies import MCTSConfig
from rlhf.data.contracts import Prompt, Text
from rlhf.data.datasets import GRPODataset
from rlhf.data.expand import prompt_names
from rlhf.errors import ConfigError, DataError, check_type, kind_of, look_up
from rlhf.files import write_jsonl
from rlhf.models.value import ValueModel
from rlhf.rewards.best_of_n_statistics import best_of_n_kl, best_of_n_kl_with_ties, best_of_n_means, score_shares
from rlhf.rewards.factory import as_scorer
from rlhf.rewards.steps import ProcessReward
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import RolloutEngine, SamplablePolicy
from rlhf.search.answer_key import AnswerOf, answer_reader
from rlhf.search.contract import Budget, SearchResult, Strategy
from rlhf.search.critics import as_critic, check_other_than_critic
from rlhf.search.prompt_texts import PromptTexts
from rlhf.search.refined_pairs import refined_pairs, refinement_lineage
from rlhf.search.search_helpers import SearchHelpers, value_scores
from rlhf.search.search_run import run_search
from rlhf.search.strategies.highest_score import best_of_n
from rlhf.search.strategies.refinement import refine
from rlhf.search.strategies.tree_search import mcts
from rlhf.search.strategies.votes_on_answers import majority_vote, weighted_vote
from rlhf.search.strategy_comparison import pool_of


class SearchGenerator:
    """Looks for answers by a strategy, a user's own or one of ``rlhf.search.strategies``.

    Args:
        policy: Who samples.
        strategy: See ``rlhf.search.contract``.
        reward: Who scores: a scorer, a function, or what a recipe's ``reward`` takes; None where the strategy scores nothing.
        arguments: Settings of the strategy.
        engine: Samples from the policy; one in this process by default.
        sampling: How completions are drawn.
        separator: Text that ends a step; by default that of a process reward model.
        budget: Limits, see ``Budget``.
        critic: Who says what is wrong with drafts: a function (``rlhf.search.critics``), ``"policy"``, a ``PolicyModel``, or what a
            ``critic`` section takes; None where the strategy asks none.
        value_model: A ``ValueModel`` or its folder, for strategies that ask one.
        seed: Same seed, same answers.
    """

    def __init__(
        self,
        policy: SamplablePolicy,
        strategy: Strategy,
        reward: Any = None,
        *,
        critic: Any = None,
        value_model: ValueModel | str | None = None,
        arguments: Mapping[str, Any] | None = None,
        engine: RolloutEngine | None = None,
        sampling: SamplingConfig | None = None,
        separator: str | None = None,
        budget: Budget | None = None,
        seed: int = 0,
    ) -> None:
        if not hasattr(policy, "tokenizer"):
            raise ConfigError(
                f"policy is {kind_of(policy)}; expected a PolicyModel; PolicyModel.from_pretrained(folder) loads one."
            )
        check_type(sampling, (SamplingConfig, NoneType), name="sampling", expected="a SamplingConfig")
        check_type(budget, (Budget, NoneType), name="budget", expected="a Budget of rlhf.search.contract")
        self.policy = policy
        self.strategy = strategy
        self.scorer = None if reward is None else as_scorer(reward, tokenizer=policy.tokenizer)
        self.arguments = dict(arguments or {})
        self.engine: RolloutEngine = LocalEngine(policy) if engine is None else engine
        self.sampling = sampling or SamplingConfig()
        self.separator = separator
        if separator is None and isinstance(self.scorer, ProcessReward):
            self.separator = self.scorer.model.step_separator
        self.budget = budget or Budget()
        self.seed = seed
        self.helpers = SearchHelpers(
            critic=None if critic is None else as_critic(critic, policy, self.engine),
            value=None if value_model is None else value_scores(value_model, policy),
            texts=PromptTexts(policy.tokenizer),
        )

    def generate(
        self, prompts: Sequence[Text] | Sequence[Prompt], *, file: Path | str | None = None
    ) -> list[SearchResult]:
        """An answer to each prompt, in order; those that ``budget.seconds`` left out are missing.

        Args:
            prompts: Texts, lists of messages, or prompts of a data set.
            file: Finished prompts are kept there, and a rerun goes on from them.

        Raises:
            DataError: It is one text and not a list, or a prompt is empty.
        """
        if isinstance(prompts, str):
            raise DataError("generate takes a list of prompts; for a single one give [prompt].")
        asked = [each for each in prompts if isinstance(each, Prompt)]
        texts = [each for each in prompts if not isinstance(each, Prompt)]
        if texts and asked:
            raise DataError("These prompts are texts and Prompt objects; give one or the other.")
        if texts:
            rows = list(GRPODataset([{"prompt": text} for text in texts], self.policy.tokenizer))
            asked = [replace(row, id=name) for row, name in zip(rows, prompt_names(texts), strict=True)]
        return self._searched(asked, file)

    def _searched(self, asked: Sequence[Prompt], file: Path | str | None) -> list[SearchResult]:
        return run_search(
            asked, self.strategy, engine=self.engine, scorer=self.scorer, helpers=self.helpers, arguments=self.arguments,
            sampling=self.sampling, separator=self.separator, budget=self.budget, seed=self.seed, file=file,
        ).results  # fmt: skip


Choose = Literal["score", "vote", "weighted_vote"]
CHOICES: Mapping[str, Strategy] = {"score": best_of_n, "vote": majority_vote, "weighted_vote": weighted_vote}


class BestOfNSampler(SearchGenerator):
    """The best of N samples, by a score or by a vote, and what N costs and brings.

    Args:
        policy: Who samples.
        reward: A reward model, a process reward (``aggregate`` is its own setting), a verifier or a function; None for a plain vote.
        num_samples: N.
        choose: ``score``, ``vote`` (majority) or ``weighted_vote``.
        answer_of: For votes: a completion's answer; by default its boxed or last number, see ``answer_reader``.
        how: Further arguments of ``SearchGenerator``.
    """

    def __init__(
        self,
        policy: SamplablePolicy,
        reward: Any = None,
        *,
        num_samples: int = 8,
        choose: Choose = "score",
        answer_of: AnswerOf | None = None,
        **how: Any,
    ) -> None:
        strategy = look_up(CHOICES, choose, kind="way to choose")
        if choose != "vote" and reward is None:
            raise ConfigError(f"choose is {choose!r}, which needs scores; give a reward.")
        arguments: dict[str, Any] = {"num_samples": num_samples}
        if choose != "score":
            arguments["answer_of"] = answer_of or answer_reader()
        super().__init__(policy, strategy, reward, arguments=arguments, **how)
        self.num_samples = num_samples

    @property
    def kl(self) -> float:
        """KL of the best by score to the policy in nats: log N - (N - 1) / N, exact without ties and else an upper bound."""
        return best_of_n_kl(self.num_samples)

    def kl_with_ties(self, results: Sequence[SearchResult], n: int | None = None) -> float:
        """Estimate of the same with the ties that the samples show, mean over prompts.

        Args:
            results: With scores of every sample; take ``num_samples`` several times ``n``.
            n: Of the best-of-n that is meant; by default ``num_samples``.
        """
        return float(
            np.mean(
                [best_of_n_kl_with_ties(score_shares(scores), n or self.num_samples) for scores in _scores(results)]
            )
        )

    def curve(
        self, results: Sequence[SearchResult], values: Sequence[Sequence[float]] | None = None
    ) -> dict[int, float]:
        """k -> mean value of the best of k, for every k from 1 to N: exact over all sets of k of each prompt's samples.

        Args:
            results: With scores of every sample.
            values: [P][N] what is measured, such as whether each sample is right; by default the scores themselves. With the truth as the
                reward this is pass@k.
        """
        scores = _scores(results)
        measured = scores if values is None else values
        sizes = {len(each) for each in (*scores, *measured)}
        if len(sizes) != 1 or len(measured) != len(scores):
            raise DataError(
                "Every prompt needs the same number of samples, with a value for each; a budget may have cut some short."
            )
        (size,) = sizes
        return {
            k: float(np.mean([best_of_n_means(s, v, k) for s, v in zip(scores, measured, strict=True)]))
            for k in range(1, size + 1)
        }


class MCTSGenerator(SearchGenerator):
    """Monte Carlo tree search over steps, see ``rlhf.search.strategies.tree_search.mcts``.

    Args:
        policy: Who samples.
        reward: Judges beginnings, in [0, 1]: a process reward model.
        settings: Of the search, such as ``max_children=16``, and further arguments of ``SearchGenerator``.
    """

    def __init__(self, policy: SamplablePolicy, reward: Any, **settings: Any) -> None:
        shared = {"engine", "sampling", "separator", "budget", "seed", "value_model"}
        how = {name: settings.pop(name) for name in shared & settings.keys()}
        super().__init__(policy, mcts, reward, arguments=MCTSConfig.of(settings).keywords(), **how)


class IterativeRefiner(SearchGenerator):
    """Generate, criticize, refine: a refinement is kept only where a judge other than the critic scores it higher.

    Args:
        policy: Who writes drafts and refinements.
        critic: As of ``SearchGenerator``.
        judge: Who decides: whatever may be a reward there.
        rounds: The most critiques of a prompt's draft.
        samples: Refinements of each critique.
        min_gain: Kept where the judge's score is higher by more than this.
        min_pair_gain: A preference row where it is higher by more than this: less may be the judge's noise.
        revision: How a draft is revised: ``RevisionConfig`` or its settings.
        how: Further arguments of ``SearchGenerator``.

    Raises:
        ConfigError: Judge and critic are the same, or one is missing.
    """

    def __init__(
        self,
        policy: SamplablePolicy,
        critic: Any,
        judge: Any,
        *,
        rounds: int = 3,
        samples: int = 1,
        min_gain: float = 0.0,
        min_pair_gain: float = PAIR_GAIN,
        revision: RevisionConfig | Mapping[str, Any] | None = None,
        **how: Any,
    ) -> None:
        if not isinstance(revision, RevisionConfig):
            revision = RevisionConfig.of(revision or {})
        arguments = {
            "rounds": rounds,
            "samples": samples,
            "min_gain": min_gain,
            "min_pair_gain": min_pair_gain,
            "revision": revision,
        }
        if critic is None or judge is None:
            missing = "critic, who says what is wrong" if critic is None else "judge, who decides what is kept"
            raise ConfigError(f"There is no {missing}; give one.")
        super().__init__(policy, refine, judge, critic=critic, arguments=arguments, **how)
        assert self.scorer is not None
        assert self.helpers.critic is not None
        check_other_than_critic(self.scorer, self.helpers.critic)
        self._answered: list[tuple[Prompt, SearchResult]] = []

    def preference_rows(self) -> list[dict[str, Any]]:
        """What every refinement so far was kept for: rows in which it is chosen over its draft, with who made them in ``lineage``."""
        assert self.scorer is not None
        assert self.helpers.critic is not None
        lineage = refinement_lineage(self.engine, self.scorer, self.helpers.critic, strategy="refine", seed=self.seed)
        return refined_pairs(self._answered, lineage)

    def save_preferences(self, path: Path | str) -> int:
        """Write ``preference_rows`` as JSONL, which `rlhf data check` and ``kind: dpo`` read; gives their number."""
        rows = self.preference_rows()
        write_jsonl(Path(path), rows)
        return len(rows)

    def _searched(self, asked: Sequence[Prompt], file: Path | str | None) -> list[SearchResult]:
        results = super()._searched(asked, file)
        prompts = {prompt.id: prompt for prompt in asked}
        self._answered += [(prompts[result.prompt_id], result) for result in results]
        return results


def _scores(results: Sequence[SearchResult]) -> list[Sequence[float]]:
    pools = [pool_of(result) for result in results]
    if not pools or any(pool is None or not pool.scores for pool in pools):
        raise DataError("These results have no scored pool of samples; take those of a BestOfNSampler with a reward.")
    return [pool.scores for pool in pools if pool is not None]
