"""Evaluation of a policy against its baseline on held-out prompts: improvement, side effects, and sample
completions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Group, pack, split_by_tokens
from rlhf.errors import DataError
from rlhf.evaluation.intervals import Array, Estimate, mean_interval, paired_bootstrap, share_interval, unit_means
from rlhf.evaluation.judges import Judge, Judged, judge_completions, judge_name, load_judge
from rlhf.evaluation.measures import (
    TOKENS_PER_BATCH,
    KnownTexts,
    distinct_n,
    effective_pairs,
    token_measures,
    why_no_kl,
)
from rlhf.evaluation.records import KL, SHARE, Change, Evaluation, ProxyAgreement, Side, SideBySide
from rlhf.evaluation.reward_quality import RewardQuality, reward_quality, spearman
from rlhf.evaluation.winrate import outcomes, win_rate
from rlhf.losses import split_pairs
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.models.score import evaluating
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.lengths import cuts_told
from rlhf.rollout.engines import close_engine
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion, RolloutEngine
from rlhf.seeds import derive_seed
from rlhf.training.monitoring.guards import repetition

NUM_SAMPLES_SHOWN = 12
NUM_REGRESSIONS_SHOWN = 4
PROMPTS_AT_ONCE = 64
"""Between two progress messages; a sample does not depend on the rest of its batch."""
VERDICTS = {1.0: "win", 0.5: "tie", 0.0: "loss"}


class Pairs(Protocol):
    """Held-out pairs: a list of groups, or a ``PreferenceDataset``."""

    def __len__(self) -> int:
        """How many."""
        ...

    def __iter__(self) -> Iterator[Group]:
        """Each with two branches, chosen first."""
        ...


@dataclass(frozen=True, slots=True)
class Answers:
    """Completions of one policy and their scores; S = prompts x samples, the samples of a prompt together."""

    completions: list[list[Completion]]
    judged: Judged
    proxy: list[float] | None
    entropy: Array | None
    judge_knows: KnownTexts | None = None
    """What a learned judge was trained on, where that can be read."""

    @property
    def flat(self) -> list[Completion]:
        """[S]."""
        return [completion for group in self.completions for completion in group]


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
    progress: Callable[..., None] | None = None,
) -> Evaluation:
    """Sample both, judge both, and measure what changed.

    The two draw from separate seeds. With the same uniform numbers for both, one would estimate another quantity: how
    often the policy wins *given that luck*, which is not the win rate people compare (0.70 instead of 0.65 for one pair
    of embedded models).

    Args:
        policy: After.
        baseline: Before; the same tokenizer.
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
        progress: Called as ``progress(whose, by=how_many)`` for completions that are done (``ProgressBar.advance``).

    Returns:
        See ``rlhf.evaluation.records``.

    Raises:
        DataError: There is no prompt.
        RewardError: The judge failed; names the sample.
    """
    if not prompts:
        raise DataError("There is no prompt to evaluate on; give at least one held-out prompt.")
    judge = load_judge(judge) if isinstance(judge, str) else judge
    proxy = LearnedReward(reward_model) if reward_model is not None else None
    if proxy is not None:
        proxy.lengths.cuts = True
    measurable = why_no_kl(sampling) is None

    # 1. Ask both, judge both.
    sides = []
    for side, name, model, other in ((0, names[1], baseline, policy), (1, names[0], policy, baseline)):
        own = derive_seed(seed, "evaluation", side)
        completions = _sample(build_engine(model), prompts, name, samples_per_prompt, sampling, own, progress)
        flat = [completion for group in completions for completion in group]
        asked = [prompt for prompt, group in zip(prompts, completions, strict=True) for _ in group]
        judged = judge_completions(judge, asked, flat)
        scores = [float(score) for score in proxy.score(asked, flat).scores] if proxy else None
        # 2. Measure each on its own samples; the KL that is kept is the policy's, which comes last.
        tokens = None
        if measurable:
            tokens = token_measures(model, other, prompts, completions, temperature=sampling.temperature)
        sides.append(Answers(completions, judged, scores, tokens.entropy if tokens else None, judge_knows))
    before, after = sides
    units = [i for i in range(len(prompts)) for _ in range(samples_per_prompt)]
    kl = KL.missing(why_no_kl(sampling) or "")
    if tokens is not None:
        lengths = np.array([len(completion.tokens) for completion in after.flat])
        kl = KL(
            k1=mean_interval(unit_means(tokens.kl_k1, units)),
            k3=mean_interval(unit_means(tokens.kl_k3, units)),
            per_token=mean_interval(unit_means(tokens.kl_k3 / lengths, units)),
        )

    # 3. Compare.
    missing: dict[str, str] = {} if measurable else {"kl": kl.k1.reason, "entropy": kl.k1.reason}
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
        changes=changes_between(before, after, units, seed=seed),
        kl=kl,
        samples=choose_samples(prompts, before, after, tie_band=tie_band),
        reward_model=judge_reward_model(reward_model, pairs, seed=seed) if reward_model and pairs else None,
        proxy=proxy_agreement(before, after, units) if proxy else None,
        missing=missing,
    )


class RLHFEvaluator:
    """``evaluate_policies`` with the settings that stay the same between calls.

    Args:
        judge: A judge or its ``package.module:function``.
        sampling: How completions are drawn; by default at temperature 1.
        samples_per_prompt: Completions of each policy for each prompt.
        tie_band: Judge scores this close are ties.
        seed: The run's seed.
    """

    def __init__(
        self,
        judge: Judge | str,
        *,
        sampling: SamplingConfig | None = None,
        samples_per_prompt: int = 1,
        tie_band: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.judge = load_judge(judge) if isinstance(judge, str) else judge
        self.sampling = sampling or SamplingConfig()
        self.samples_per_prompt = samples_per_prompt
        self.tie_band = tie_band
        self.seed = seed

    def evaluate(
        self,
        policy: PolicyModel,
        baseline: PolicyModel,
        prompts: Sequence[Prompt],
        *,
        reward_model: RewardModel | None = None,
        pairs: Pairs | None = None,
    ) -> Evaluation:
        """See ``evaluate_policies``."""
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


@torch.no_grad()
def judge_reward_model(reward_model: RewardModel, pairs: Pairs, *, seed: int = 0) -> RewardQuality:
    """Accuracy and calibration on held-out pairs.

    Args:
        reward_model: Scores both completions of each pair.
        pairs: Groups with two branches, chosen first.
        seed: For the null of the calibration error.
    """
    for pair in pairs:
        if len(pair.branches) != 2:
            raise DataError(
                f"Pair {pair.columns.get('id', '')} has {len(pair.branches)} completions; give chosen and rejected."
            )
    with evaluating(reward_model):
        parts = split_by_tokens(pairs, max_tokens=TOKENS_PER_BATCH)
        scores = torch.cat([reward_model.scores(pack(part)).cpu().double() for part in parts])
    chosen, rejected = split_pairs(scores)
    slips = [pair.columns.get("flipped") for pair in pairs]
    known = all(slip is not None for slip in slips)
    return reward_quality(
        chosen.numpy(),
        rejected.numpy(),
        flipped=[bool(slip) for slip in slips] if known else None,
        # Undoes the normalization: the Bradley-Terry loss saw raw scores. Exact for one member, near for an ensemble.
        scale=float(reward_model.std.mean()),
        threshold=_tie_threshold(reward_model),
        seed=seed,
    )


def _tie_threshold(reward_model: RewardModel) -> float:
    """The lead of raw scores below which the model calls two completions equal, mean over its scores; 0 without one.

    Davidson's tie weight is none: his odds of win against loss are those of Bradley and Terry.
    """
    learned = reward_model.learned
    if learned is None or learned.kind not in ("threshold", "margins"):
        return 0.0
    return float(torch.stack([learned.value(score)[0] for score in range(reward_model.num_scores)]).mean())


def changes_between(before: Answers, after: Answers, units: Sequence[int], *, seed: int) -> dict[str, Change]:
    """Every quantity that both sides have, with intervals; prompts are the units."""
    old, new = quantities(before), quantities(after)
    found: dict[str, Change] = {}
    for name, unit in {name: unit for side in (old, new) for name, (_, unit) in side.items()}.items():
        first, second = (_complete(side[name][0]) if name in side else None for side in (old, new))
        if first is None or second is None:
            nothing = Estimate.missing("it was not given for every completion")
            found[name] = Change(before=nothing, after=nothing, gain=nothing, unit=unit)
            continue
        is_share = unit == "" and all(0 <= value <= 1 for value in (*first, *second))
        level = share_interval if is_share else mean_interval  # a t interval around 1 % would reach below 0
        found[name] = Change(
            before=level(unit_means(first, units)),
            after=level(unit_means(second, units)),
            gain=paired_bootstrap(first, second, seed=derive_seed(seed, "evaluation", "gain", name), units=units),
            unit=SHARE if is_share else unit,
        )
    for name, (measure, unit) in VARIETY.items():
        was, became = (measure([c.text for c in side.flat]) for side in (before, after))
        found[name] = _variety(was, became, n=len(set(units)), unit=unit)
    return found


def quantities(answers: Answers) -> dict[str, tuple[Sequence[float | None], str]]:
    """Name -> [S] values, and their unit."""
    found: dict[str, tuple[Sequence[float | None], str]] = {"gold": (answers.judged.scores, "points")}
    found |= {f"gold/{name}": (values, "") for name, values in answers.judged.metrics.items()}
    if answers.proxy is not None:
        found["proxy"] = answers.proxy, "points"
    if answers.entropy is not None:
        found["entropy"] = answers.entropy.tolist(), "nats per token"
    found["length"] = [float(len(completion.tokens)) for completion in answers.flat], "tokens"
    found["unended_frac"] = [float(completion.truncated) for completion in answers.flat], ""
    found["empty_frac"] = [float(not completion.text.strip()) for completion in answers.flat], ""
    found["repetition"] = [repetition(completion.tokens) for completion in answers.flat], ""
    if (known := answers.judge_knows) is not None:
        found["judge_unseen_frac"] = [known.unseen_frac(completion.text) for completion in answers.flat], ""
        found["judge_overlong_frac"] = [float(known.is_long(completion.text)) for completion in answers.flat], ""
    return found


def choose_samples(
    prompts: Sequence[Prompt], before: Answers, after: Answers, *, tie_band: float = 0.0
) -> list[SideBySide]:
    """The first prompts in the order of the file, whatever came out, and the worst regressions among the others.

    Each prompt is shown with its first completion.
    """
    per_prompt = len(before.completions[0])
    first = range(0, len(before.flat), per_prompt)
    old, new = (np.array(side.judged.scores)[first] for side in (before, after))
    verdicts = outcomes(new, old, tie_band)
    worst = [int(i) for i in np.argsort(new - old, kind="stable") if verdicts[i] == 0 and i >= NUM_SAMPLES_SHOWN]
    chosen = [(i, "first") for i in range(min(NUM_SAMPLES_SHOWN, len(prompts)))]
    chosen += [(i, "regression") for i in worst[:NUM_REGRESSIONS_SHOWN]]
    return [
        SideBySide(
            chosen_as=why,
            prompt_id=prompts[i].id,
            prompt=prompts[i].text,
            before=_side(before, i * per_prompt),
            after=_side(after, i * per_prompt),
            verdict=VERDICTS[float(verdicts[i])],
        )
        for i, why in chosen
    ]


def proxy_agreement(before: Answers, after: Answers, units: Sequence[int]) -> ProxyAgreement:
    """The reward model compared with the judge, on the policies' own completions."""
    assert before.proxy is not None
    assert after.proxy is not None
    one_each = [i for i, unit in enumerate(units) if i == 0 or units[i - 1] != unit]
    gold, proxy = np.array(after.judged.scores), np.array(after.proxy)
    gold_step, proxy_step = gold - np.array(before.judged.scores), proxy - np.array(before.proxy)
    decided = gold_step != 0
    right = (np.sign(gold_step) * np.sign(proxy_step) + 1)[decided] / 2
    return ProxyAgreement(
        spearman=spearman(proxy[one_each], gold[one_each]),
        agreement=share_interval(unit_means(right, [units[i] for i in np.flatnonzero(decided).tolist()])),
    )


def distinct_completions(texts: Sequence[str]) -> float:
    """Share of different texts."""
    return len(set(texts)) / len(texts) if texts else math.nan


VARIETY: dict[str, tuple[Callable[[Sequence[str]], float], str]] = {
    "distinct_1": (lambda texts: distinct_n(texts, 1), SHARE),
    "distinct_2": (lambda texts: distinct_n(texts, 2), SHARE),
    "distinct_completions": (distinct_completions, SHARE),
    "variety": (effective_pairs, "pairs of letters"),
}
"""Name -> what is measured on all texts together, and its unit."""


def _sample(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    name: str,
    samples_per_prompt: int,
    sampling: SamplingConfig,
    seed: int,
    progress: Callable[..., None] | None,
) -> list[list[Completion]]:
    found: list[list[Completion]] = []
    try:
        for start in range(0, len(prompts), PROMPTS_AT_ONCE):
            part = prompts[start : start + PROMPTS_AT_ONCE]
            found += engine.generate(
                part, num_samples=samples_per_prompt, sampling=sampling, seed=seed, rollout_index=0
            )
            if progress is not None:
                progress(name, by=len(part) * samples_per_prompt)
    finally:
        close_engine(engine)  # before another one needs its memory
    return found


def _complete(values: Sequence[float | None]) -> list[float] | None:
    """The values, where there is one for every completion."""
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) else None


def _variety(old: float, new: float, *, n: int, unit: str) -> Change:
    """Numbers over all texts together, which have no interval."""
    reason = "a number over all texts together has no simple interval"
    before, after, gain = (
        Estimate(value=value, low=math.nan, high=math.nan, n=n, reason=reason) for value in (old, new, new - old)
    )
    return Change(before=before, after=after, gain=gain, unit=unit)


def _side(answers: Answers, number: int) -> Side:
    completion = answers.flat[number]
    metrics: Mapping[str, Any] = {name: values[number] for name, values in answers.judged.metrics.items()}
    return Side(
        text=completion.text,
        ended=not completion.truncated,
        score=answers.judged.scores[number],
        proxy=answers.proxy[number] if answers.proxy else None,
        metrics=metrics,
    )
