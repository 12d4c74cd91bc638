"""The results of an evaluation, and the format of ``evaluation.json``.

    schema        1
    settings      policy, baseline, judge: names; num_prompts, samples_per_prompt, seed, sampling {...};
                  proxy_cuts: sentences about samples that were too long for the reward model
    win_rate      {rate, low, high, wins, losses, ties, n, num_prompts, tie_band, confidence}
    changes       name -> {before, after, gain: estimates; unit, "share" for 0..1}. Names: gold (the judge's score),
                  gold/<metric>, proxy (the reward model's score), entropy, length, unended_frac, empty_frac,
                  repetition, distinct_1, distinct_2, distinct_completions, variety; for a learned judge whose
                  training rows can be read also judge_unseen_frac, judge_overlong_frac
    kl            {k1, k3, per_token: estimates}: KL(policy || baseline), nats per sequence and per token; k1 is what is
                  printed: unbiased and, unlike k3, not at the mercy of single tokens, but it may come out below 0
    reward_model  null, or {accuracy, accuracy_clean, margin: estimates; ties, fitted_scale, calibration {scale,
                  threshold, log_loss, brier, expected_error, expected_error_null, bins [{low, high, count, confidence,
                  accuracy}]}}
    proxy         null, or {spearman, agreement: estimates}: reward model compared with the judge on the policies' completions
    training      how the training between baseline and policy ended, a stage each: [{stage, rollouts, alarms [{guard, metric, step,
                  limit, value}] that still held in the last fifth, first {...}, last {...}}]
    verdict       {tone, title, sentences, reasons}: what ``rlhf.evaluation.verdict`` makes of all this
    curve         null, or [{step, n, proxy, gold, gold_low, gold_high, kl, <metric> ...}]: one point a rollout
    hacking       null, or what ``rlhf.evaluation.overoptimization`` found: {verdict, sentence, ...}
    samples       [{chosen_as, prompt_id, prompt, verdict, before, after}]; before and after are
                  {text, ended, score, proxy, metrics}
    per_prompt    quantity -> prompt -> [before, after], means over the prompt's samples, null where there is none: what paired tests
                  and gates read. Names as in changes, and those of metrics that are a mean over prompts
    metrics       null, or {settings, changes, about, groups, missing}: what ``evaluate_model`` found; changes as above
    missing       name -> why a part was not measured

An *estimate* is {value, low, high, n, confidence}; a number that could not be measured is null, and ``reason`` says
why. The unit behind every n is the prompt (or the pair). Other stages may keep parts of the same document: a
reward-model stage writes ``{"schema": 1, "reward_model": {...}}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlhf.data.message_text import counted
from rlhf.evaluation.gold_over_kl import GoldOverKL, fit_gold_over_kl
from rlhf.evaluation.intervals import Estimate, finite_or_none
from rlhf.evaluation.judges import Judged
from rlhf.evaluation.overoptimization import OveroptimizationFinding, overoptimization
from rlhf.evaluation.reward_quality import RewardQuality
from rlhf.evaluation.verdict import Verdict, verdict
from rlhf.evaluation.verdict_inputs import Evidence, Independence, Training
from rlhf.evaluation.winrate import WinRate
from rlhf.files import write_json

SCHEMA = 1
PerPrompt = Mapping[str, Mapping[str, tuple[float | None, float | None]]]
"""Quantity -> prompt -> values of the baseline and of the policy."""
SHARE = "share"
"""Unit of quantities between 0 and 1, which reports print as percentages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One quantity before and after, on the same prompts."""

    before: Estimate
    after: Estimate
    gain: Estimate
    """after - before, paired by prompt."""
    unit: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "gain": self.gain.to_dict(),
            "unit": self.unit,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One completion of a side-by-side sample."""

    text: str
    ended: bool
    score: float
    proxy: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "text": self.text,
            "ended": self.ended,
            "score": self.score,
            "proxy": self.proxy,
            "metrics": dict(self.metrics),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """A prompt with the completions of both policies."""

    chosen_as: str
    """``first``: among the first prompts of the file, whatever came out; ``regression``: among the worst losses."""
    prompt_id: str
    prompt: str
    before: Side
    after: Side
    verdict: str
    """``win``, ``loss`` or ``tie`` of after over before."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "chosen_as": self.chosen_as,
            "prompt_id": self.prompt_id,
            "prompt": self.prompt,
            "verdict": self.verdict,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KL:
    """KL(policy || baseline) from the policy's own samples."""

    k1: Estimate
    """Nats per sequence; unbiased, may come out below 0 where the policies are close."""
    k3: Estimate
    """Nats per sequence; unbiased, never below 0, narrower."""
    per_token: Estimate
    """Mean over prompts of k3 divided by the number of tokens."""

    @classmethod
    def missing(cls, reason: str) -> KL:
        """Not measured."""
        nothing = Estimate.missing(reason)
        return cls(k1=nothing, k3=nothing, per_token=nothing)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"k1": self.k1.to_dict(), "k3": self.k3.to_dict(), "per_token": self.per_token.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAgreement:
    """Agreement of the reward model and the judge on the completions of the two policies."""

    spearman: Estimate
    """Rank correlation of their scores over the policy's completions, one for each prompt."""
    agreement: Estimate
    """Among prompts on which the judge prefers one policy's completion: share on which the reward model does too."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"spearman": self.spearman.to_dict(), "agreement": self.agreement.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Everything that was found; see the top of this file."""

    settings: Mapping[str, Any]
    win_rate: WinRate
    changes: Mapping[str, Change]
    kl: KL
    samples: Sequence[SideBySide]
    reward_model: RewardQuality | None = None
    proxy: ProxyAgreement | None = None
    curve: Sequence[Mapping[str, Any]] | None = None
    hacking: OveroptimizationFinding | None = None
    gold_over_kl: GoldOverKL | None = None
    """The curve through the judge's scores of the run's rollouts."""
    training: Sequence[Training] = ()
    """How each stage between baseline and policy ended."""
    independence: Independence | None = None
    """What training saw of judge and prompts, in words."""
    missing: Mapping[str, str] = field(default_factory=dict)
    per_prompt: PerPrompt = field(default_factory=dict)
    metrics: Mapping[str, Any] | None = None
    """The part ``metrics`` of the document."""
    judged: Judged | None = field(default=None, repr=False, compare=False)
    """The judge's verdicts on the policy's completions, one by one; not part of the document."""

    def with_curve(self, curve: Sequence[Mapping[str, Any]]) -> Evaluation:
        """A copy with a training run's curve (``judge_rollouts``) and its finding about reward hacking."""
        missing = {name: why for name, why in self.missing.items() if name != "curve"}
        return replace(
            self,
            curve=[dict(point) for point in curve],
            hacking=overoptimization(curve),
            gold_over_kl=fit_gold_over_kl(curve),
            missing=missing,
        )

    @property
    def verdict(self) -> Verdict:
        """What to take away."""
        return verdict(Evidence.of(self._parts(), self.independence))

    def headline(self) -> str:
        """A one-line summary."""
        gold, kl, rate, settings = self.changes["gold"], self.kl.k1, self.win_rate, self.settings
        distance = (
            f"KL estimate {round(kl.value, 2) + 0.0:.2f} nats/sequence"
            if kl.measured
            else f"KL not measured ({kl.reason})"
        )
        more = f" (about {rate.more_prompts:,} more would tell)" if rate.more_prompts else ""
        return (
            f"{self.verdict.title}: {settings['policy']} against {settings['baseline']} by {settings['judge']}, win rate "
            f"{rate.rate:.3f} [{rate.low:.3f}, {rate.high:.3f}] on {counted(rate.num_prompts, 'prompt')}{more}, judge's score "
            f"{gold.before.value:+.2f} -> {gold.after.value:+.2f}, {distance}"
        )

    def summary(self) -> dict[str, Any]:
        """Its entry in ``summary.json``; None for values that were not measured."""
        gold, judgment = self.changes["gold"], self.verdict
        return {
            **{name: self.settings.get(name) for name in ("policy", "baseline", "judge")},
            "verdict": str(judgment.tone),
            "verdict_title": judgment.title,
            "verdict_reasons": list(judgment.reasons),
            "win_rate": finite_or_none(self.win_rate.rate),
            "win_rate_low": finite_or_none(self.win_rate.low),
            "win_rate_high": finite_or_none(self.win_rate.high),
            "gold_before": finite_or_none(gold.before.value),
            "gold_after": finite_or_none(gold.after.value),
            "kl": finite_or_none(self.kl.k1.value),
            "proxy_before": finite_or_none(self.changes["proxy"].before.value) if "proxy" in self.changes else None,
            "proxy_after": finite_or_none(self.changes["proxy"].after.value) if "proxy" in self.changes else None,
            "unended_frac": finite_or_none(self.changes["unended_frac"].after.value),
            "reward_accuracy": finite_or_none(self.reward_model.accuracy.value) if self.reward_model else None,
            "reward_accuracy_clean": finite_or_none(self.reward_model.accuracy_clean.value)
            if self.reward_model
            else None,
            "hacking": str(self.hacking.verdict) if self.hacking else None,
            **{
                f"{name.replace('/', '_')}_after": finite_or_none(change.after.value)
                for name, change in self.changes.items()
                if name.startswith("gold/")
            },
        }

    def to_dict(self) -> dict[str, Any]:
        """The document of ``evaluation.json``."""
        return self._parts() | {"verdict": self.verdict.to_dict()}

    def _parts(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "settings": dict(self.settings),
            "win_rate": self.win_rate.to_dict(),
            "changes": {name: change.to_dict() for name, change in self.changes.items()},
            "kl": self.kl.to_dict(),
            "reward_model": self.reward_model.to_dict() if self.reward_model else None,
            "proxy": self.proxy.to_dict() if self.proxy else None,
            "curve": None if self.curve is None else [dict(point) for point in self.curve],
            "hacking": self.hacking.to_dict() if self.hacking else None,
            "gold_over_kl": self.gold_over_kl.to_dict() if self.gold_over_kl else None,
            "training": [training.to_dict() for training in self.training],
            "samples": [sample.to_dict() for sample in self.samples],
            "metrics": None if self.metrics is None else dict(self.metrics),
            "per_prompt": {
                name: {prompt: list(pair) for prompt, pair in of.items()} for name, of in self.per_prompt.items()
            },
            "missing": dict(self.missing),
        }

    def write(self, path: Path | str) -> None:
        """Write ``evaluation.json``, in one step."""
        write_json(path, self.to_dict())
