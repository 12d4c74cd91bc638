"""What changed from baseline to policy: every quantity of both with intervals, samples of both, and whether the reward model agrees."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf.data.contracts import Prompt
from rlhf.evaluation.intervals import Array, Estimate, mean_interval, paired_difference, share_interval, unit_means
from rlhf.evaluation.judges import Judged
from rlhf.evaluation.measures import KnownTexts, distinct_n, effective_pairs
from rlhf.evaluation.records import SHARE, Change, PerPrompt, ProxyAgreement, Side, SideBySide
from rlhf.evaluation.reward_quality import spearman
from rlhf.evaluation.winrate import outcomes
from rlhf.rollout.types import Completion
from rlhf.training.monitoring.guards import repetition

NUM_SAMPLES_SHOWN = 12
NUM_REGRESSIONS_SHOWN = 4
VERDICTS = {1.0: "win", 0.5: "tie", 0.0: "loss"}


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


def changes_between(before: Answers, after: Answers, units: Sequence[int]) -> dict[str, Change]:
    """Every quantity that both sides have, with intervals; prompts are the units."""
    old, new = quantities(before), quantities(after)
    changes: dict[str, Change] = {}
    for name, unit in {name: unit for side in (old, new) for name, (_, unit) in side.items()}.items():
        first, second = (_complete(side[name][0]) if name in side else None for side in (old, new))
        if first is None or second is None:
            nothing = Estimate.missing("it was not given for every completion")
            changes[name] = Change(before=nothing, after=nothing, gain=nothing, unit=unit)
            continue
        is_share = unit == "" and all(0 <= value <= 1 for value in (*first, *second))
        level = share_interval if is_share else mean_interval  # a t interval around 1 % would reach below 0
        changes[name] = Change(
            before=level(unit_means(first, units)),
            after=level(unit_means(second, units)),
            gain=paired_difference(first, second, units=units, shares=is_share),
            unit=SHARE if is_share else unit,
        )
    for name, (measure, unit) in VARIETY.items():
        was, became = (measure([c.text for c in side.flat]) for side in (before, after))
        changes[name] = _variety(was, became, n=len(set(units)), unit=unit)
    return changes


def prompt_pairs(before: Answers, after: Answers, prompts: Sequence[Prompt]) -> PerPrompt:
    """Quantity -> prompt -> its values before and after, of every quantity that all completions of both sides have."""
    units = [i for i, group in enumerate(after.completions) for _ in group]
    old, new = quantities(before), quantities(after)
    by_quantity = {}
    for name in [name for name in old if name in new]:
        first, second = (_complete(side[name][0]) for side in (old, new))
        if first is not None and second is not None:
            pairs = zip(unit_means(first, units).tolist(), unit_means(second, units).tolist(), strict=True)
            by_quantity[name] = {prompt.id: pair for prompt, pair in zip(prompts, pairs, strict=True)}
    return by_quantity


def quantities(answers: Answers) -> dict[str, tuple[Sequence[float | None], str]]:
    """Name -> [S] values, and their unit."""
    measured: dict[str, tuple[Sequence[float | None], str]] = {"gold": (answers.judged.scores, "points")}
    measured |= {f"gold/{name}": (values, "") for name, values in answers.judged.metrics.items()}
    if answers.proxy is not None:
        measured["proxy"] = answers.proxy, "points"
    if answers.entropy is not None:
        measured["entropy"] = answers.entropy.tolist(), "nats per token"
    measured["length"] = [float(len(completion.tokens)) for completion in answers.flat], "tokens"
    measured["unended_frac"] = [float(completion.truncated) for completion in answers.flat], ""
    measured["empty_frac"] = [float(not completion.text.strip()) for completion in answers.flat], ""
    measured["repetition"] = [repetition(completion.tokens) for completion in answers.flat], ""
    if (known := answers.judge_knows) is not None:
        measured["judge_unseen_frac"] = [known.unseen_frac(completion.text) for completion in answers.flat], ""
        measured["judge_overlong_frac"] = [float(known.is_long(completion.text)) for completion in answers.flat], ""
    return measured


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


def _complete(values: Sequence[float | None]) -> list[float] | None:
    """The values, where there is one for every completion."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


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
