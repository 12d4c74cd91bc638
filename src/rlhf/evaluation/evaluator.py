"""Evaluation of a policy against its baseline on held-out prompts: improvement, side effects, and sample
completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, DataError, kind_of
from rlhf.evaluation.changes import Answers, changes_between, choose_samples, prompt_pairs, proxy_agreement
from rlhf.evaluation.evaluate_model import ModelLike, evaluate_model
from rlhf.evaluation.intervals import mean_interval, unit_means
from rlhf.evaluation.judges import Judge, judge_completions, judge_name, load_judge
from rlhf.evaluation.measures import KnownTexts, token_measures, why_no_kl, why_not_comparable
from rlhf.evaluation.model_evaluation import ModelEvaluation
from rlhf.evaluation.records import KL, Evaluation
from rlhf.evaluation.reward_model_quality import Pairs, judge_reward_model
from rlhf.evaluation.sampled_completions import sample_completions
from rlhf.evaluation.winrate import win_rate
from rlhf.models.divergence import check_comparable
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.lengths import cuts_told
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion, RolloutEngine
from rlhf.seeds import derive_seed


def evaluate_policies(
    policy: PolicyModel,
    baseline: PolicyModel,
    prompts: Sequence[Prompt],
    judge: Judge | str,
    *,
    sampling: SamplingConfig,
    seed: int,
    samples_per_prompt: int = 1,
    reward_model: RewardModel | None = None,
    pairs: Pairs | None = None,
    tie_band: float = 0.0,
    build_engine: Callable[[PolicyModel], RolloutEngine] = LocalEngine,
    names: tuple[str, str] = ("policy", "baseline"),
    judge_called: str | None = None,
    judge_knows: KnownTexts | None = None,
    completions: tuple[Sequence[Sequence[Completion]], Sequence[Sequence[Completion]]] | None = None,
    not_drawn: str | None = None,
    progress: Callable[..., None] | None = None,
) -> Evaluation:
    """Sample both, judge both, and measure what changed.

    The two draw from separate seeds. With the same uniform numbers for both, one would estimate another quantity: how
    often the policy wins *given that luck*, which is not the win rate people compare (0.70 instead of 0.65 for one pair
    of embedded models).

    Args:
        policy: After.
        baseline: Before; the same tokenizer, unless ``completions`` are given.
        prompts: Held-out, at least one.
        judge: See ``rlhf.evaluation.judges``; none of the training stages may have seen it.
        sampling: How completions are drawn. KL needs a temperature above 0 and no filters.
        seed: The run's seed.
        samples_per_prompt: Completions of each policy for each prompt; the prompt stays the unit of all intervals.
        reward_model: The proxy that was trained against, if any.
        pairs: Held-out preference pairs, chosen first (``PreferenceDataset``); with the column ``flipped`` the accuracy
            against the true preference is given as well.
        tie_band: Judge scores this close are ties.
        build_engine: What samples from a policy.
        names: What reports call policy and baseline.
        judge_called: What they call the judge; its own name by default.
        judge_knows: What a learned judge was trained on: how unlike it the completions are is measured too.
        completions: Those of policy and baseline, [P] of each prompt, where they were sampled already (with ``sampling``).
        not_drawn: Why ``completions`` are no draws from the policies' own distributions; KL and entropy are missing then.
        progress: Called as ``progress(whose, by=how_many)`` for completions that are done (``ProgressBar.advance``).

    Returns:
        See ``rlhf.evaluation.records``.

    Raises:
        DataError: There is no prompt.
        ModelError: The baseline reads other token ids, and is to be sampled.
        RewardError: The judge failed; names the sample.
    """
    if not prompts:
        raise DataError("There is no prompt to evaluate on; give at least one held-out prompt.")
    judge = load_judge(judge) if isinstance(judge, str) else judge
    proxy = LearnedReward(reward_model) if reward_model is not None else None
    if proxy is not None:
        proxy.lengths.cuts = True
    if completions is None:
        check_comparable(
            policy, baseline, what="The baseline"
        )  # it would be asked in token ids that it reads otherwise
    unmeasurable = not_drawn or why_no_kl(sampling) or why_not_comparable(policy, baseline)

    # 1. Ask both, judge both.
    sides = []
    for side, name, model, other in ((0, names[1], baseline, policy), (1, names[0], policy, baseline)):
        if completions is not None:
            own = [list(group) for group in completions[1 - side]]
        else:
            own = sample_completions(
                build_engine(model), prompts, num_samples=samples_per_prompt, sampling=sampling,
                seed=derive_seed(seed, "evaluation", side), name=name, progress=progress,
            )  # fmt: skip
        flat = [completion for group in own for completion in group]
        asked = [prompt for prompt, group in zip(prompts, own, strict=True) for _ in group]
        judged = judge_completions(judge, asked, flat)
        scores = [float(score) for score in proxy.score(asked, flat).scores] if proxy else None
        # 2. Measure each on its own samples; the KL that is kept is the policy's, which comes last.
        tokens = None
        if unmeasurable is None:
            tokens = token_measures(model, other, prompts, own, temperature=sampling.temperature)
        sides.append(Answers(own, judged, scores, tokens.entropy if tokens else None, judge_knows))
    before, after = sides
    units = [i for i in range(len(prompts)) for _ in range(samples_per_prompt)]
    kl = KL.missing(unmeasurable or "")
    if tokens is not None:
        lengths = np.array([len(completion.tokens) for completion in after.flat])
        kl = KL(
            k1=mean_interval(unit_means(tokens.kl_k1, units)),
            k3=mean_interval(unit_means(tokens.kl_k3, units)),
            per_token=mean_interval(unit_means(tokens.kl_k3 / lengths, units)),
        )

    # 3. Compare.
    missing = {} if unmeasurable is None else {"kl": unmeasurable, "entropy": unmeasurable}
    missing["curve"] = "no rollouts of a training stage were judged"
    if proxy is None:
        missing |= {"proxy": "there is no reward model", "reward_model": "there is no reward model"}
    elif pairs is None or not len(pairs):
        missing["reward_model"] = "there are no held-out pairs"
    return Evaluation(
        settings={
            "policy": names[0],
            "baseline": names[1],
            "judge": judge_called or judge_name(judge),
            "num_prompts": len(prompts),
            "samples_per_prompt": samples_per_prompt,
            "seed": seed,
            "sampling": sampling.model_dump(),
            "proxy_cuts": cuts_told(proxy, whom="the reward model") if proxy else [],
        },
        win_rate=win_rate(after.judged.scores, before.judged.scores, units, tie_band),
        changes=changes_between(before, after, units),
        kl=kl,
        samples=choose_samples(prompts, before, after, tie_band=tie_band),
        reward_model=judge_reward_model(reward_model, pairs, seed=seed) if reward_model and pairs else None,
        proxy=proxy_agreement(before, after, units) if proxy else None,
        missing=missing,
        per_prompt=prompt_pairs(before, after, prompts),
        judged=after.judged,
    )


class RLHFEvaluator:
    """``evaluate_policies`` and ``evaluate_model`` with the settings that stay the same between calls.

    Args:
        judge: A judge or its ``package.module:function``; None where only metrics without one are measured.
        metrics: What ``evaluate_model`` measures by default; see ``rlhf.config.metric_table``.
        sampling: How completions are drawn; by default at temperature 1.
        samples_per_prompt: Completions of each policy for each prompt.
        tie_band: Judge scores this close are ties.
        seed: The run's seed.
        needs: What metrics need, as of ``evaluate_model``: ``ref_model``, ``reward_model``, ``toxicity_classifier`` ...
    """

    def __init__(
        self,
        judge: Judge | str | None = None,
        *,
        metrics: Sequence[str] | None = None,
        sampling: SamplingConfig | None = None,
        samples_per_prompt: int = 1,
        tie_band: float = 0.0,
        seed: int = 0,
        **needs: Any,
    ) -> None:
        if judge is not None and not isinstance(judge, str) and not hasattr(judge, "score") and not callable(judge):
            raise ConfigError(
                f"judge is {kind_of(judge)}; expected a function, a scorer, or `package.module:function`."
            )
        self.judge = load_judge(judge) if isinstance(judge, str) else judge
        self.metrics = metrics
        self.sampling = sampling or SamplingConfig()
        self.samples_per_prompt = samples_per_prompt
        self.tie_band = tie_band
        self.seed = seed
        self.needs = needs

    def evaluate(
        self,
        policy: PolicyModel,
        baseline: PolicyModel,
        prompts: Sequence[Prompt],
        *,
        reward_model: RewardModel | None = None,
        pairs: Pairs | None = None,
    ) -> Evaluation:
        """Compare two policies by the judge on the same prompts, with ``evaluate_policies``.

        Raises:
            ConfigError: The evaluator has no judge.
        """
        if self.judge is None:
            raise ConfigError("evaluate compares two policies by a judge; RLHFEvaluator(judge=...) names it.")
        return evaluate_policies(
            policy,
            baseline,
            prompts,
            self.judge,
            sampling=self.sampling,
            seed=self.seed,
            samples_per_prompt=self.samples_per_prompt,
            reward_model=reward_model,
            pairs=pairs,
            tie_band=self.tie_band,
        )

    def evaluate_model(
        self, model: ModelLike, test_dataset: Any, metrics: Sequence[str] | str | None = None, **needs: Any
    ) -> ModelEvaluation:
        """Measure one policy with ``rlhf.evaluate_model``; what is given here comes before what the evaluator was made with."""
        own: dict[str, Any] = {
            "judge": self.judge, "sampling": self.sampling, "samples_per_prompt": self.samples_per_prompt,
            "tie_band": self.tie_band, "seed": self.seed,
        }  # fmt: skip
        chosen = metrics if metrics is not None else self.metrics
        return evaluate_model(model, test_dataset, chosen, **(own | self.needs | needs))
