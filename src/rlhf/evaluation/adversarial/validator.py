"""A policy on a suite, as it is written and under every perturbation, and what probes find."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from rlhf.errors import DataError, look_up
from rlhf.evaluation.adversarial.drift import Drift, hidden_drift
from rlhf.evaluation.adversarial.flaws import FLAWS, Asked, flaws_of
from rlhf.evaluation.adversarial.perturbations import PERTURBATIONS, Perturbation
from rlhf.evaluation.adversarial.probe_result import ProbeResult
from rlhf.evaluation.adversarial.probe_table import PROBES, Probe
from rlhf.evaluation.intervals import Estimate, mean_interval, share_interval
from rlhf.evaluation.paired_tests import holm
from rlhf.evaluation.suites.suite import Item, Suite, load_suite
from rlhf.evaluation.suites.suite_run import SuiteRun, run_suite
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import RolloutEngine
from rlhf.seeds import derive_seed

NUM_SHOWN = 3
"""Samples kept of each flaw, and items of each perturbation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerturbedResult:
    """One perturbation against the suite as it is written."""

    name: str
    family: str
    score: Estimate
    change: Estimate
    """Perturbed minus plain, paired by item."""
    p_holm: float | None
    """Of items that became worse against items that became better, sign test, Holm-adjusted over all perturbations."""
    worst_items: Sequence[str]
    """Items that lost most."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name, "family": self.family, "score": self.score.to_dict(), "change": self.change.to_dict(),
            "p_holm": self.p_holm, "worst_items": list(self.worst_items),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversarialReport:
    """What was found."""

    suite: str
    plain: Estimate
    """Mean score of the suite as it is written."""
    perturbed: Mapping[str, PerturbedResult]
    worst_case: Mapping[str, Estimate]
    """Family, or ``all`` -> mean over items of the lowest score among the plain item and the family's perturbations of it."""
    quality: Estimate | None
    """Share of completions of the plain suite without any flaw; None where nothing was sampled."""
    flaws: Mapping[str, float]
    """Flaw -> share of those completions that have it."""
    flaw_samples: Mapping[str, Sequence[tuple[str, str]]]
    """Flaw -> (item, completion)."""
    probes: Mapping[str, ProbeResult] = field(default_factory=dict)
    """Probe -> what it found."""
    drift: Drift | None = None
    """Only a warning, it decides nothing."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Perturbation or probe -> why it, or an item of it, has no score; the first is named."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "suite": self.suite,
            "plain": self.plain.to_dict(),
            "perturbed": {name: each.to_dict() for name, each in self.perturbed.items()},
            "worst_case": {name: each.to_dict() for name, each in self.worst_case.items()},
            "quality": self.quality.to_dict() if self.quality else None,
            "flaws": dict(self.flaws),
            "flaw_samples": {name: [list(each) for each in samples] for name, samples in self.flaw_samples.items()},
            "probes": {name: each.to_dict() for name, each in self.probes.items()},
            "drift": self.drift.to_dict() if self.drift else None,
            "missing": dict(self.missing),
        }


class AdversarialValidator:
    """Asks a suite as it is written and under perturbations, and names flaws of the completions.

        report = AdversarialValidator("safety", perturbations=["role_play", "base64"]).validate("runs/x/ppo/model")
        report.worst_case["all"], report.flaws

    Scorer and right answers stay the suite's own: of noise and encodings the item still asks the same, and under a frame a request that
    should be refused should still be refused. Text around choices is changed, choices are not.

    Args:
        suite: As of ``load_suite``.
        perturbations: Names of ``PERTURBATIONS``; by default all of them.
        probes: Names of ``PROBES``; by default all of them, those missing that this model or suite can't be asked.
        seed: Of the noise, and of sampling.
        build_engine: What samples from a policy.

    Raises:
        UnknownNameError: No perturbation or probe has that name.
    """

    def __init__(
        self,
        suite: Suite | Mapping[str, Any] | str | Path,
        *,
        perturbations: Sequence[str] | None = None,
        probes: Sequence[str] | None = None,
        seed: int = 0,
        build_engine: Callable[[PolicyModel], RolloutEngine] = LocalEngine,
    ) -> None:
        self.suite = load_suite(suite)
        names = list(PERTURBATIONS) if perturbations is None else list(perturbations)
        self.perturbations: dict[str, Perturbation] = {
            name: look_up(PERTURBATIONS, name, kind="perturbation") for name in names
        }
        self.probes: dict[str, Probe] = {
            name: look_up(PROBES, name, kind="probe") for name in (PROBES if probes is None else probes)
        }
        self.seed = seed
        self.build_engine = build_engine

    def validate(
        self,
        policy: PolicyModel | str | Path,
        *,
        reference: PolicyModel | str | Path | None = None,
        progress: Callable[..., None] | None = None,
    ) -> AdversarialReport:
        """Ask, score and compare.

        Args:
            policy: Asked; a policy or its folder.
            reference: Where it started: the drift of hidden states is measured too.
            progress: Called as ``progress(name, by=how_many)`` for items that are done.
        """
        policy = policy if isinstance(policy, PolicyModel) else PolicyModel.from_pretrained(str(policy))
        plain = self._ask(policy, self.suite, "plain", progress)
        runs: dict[str, SuiteRun] = {}
        missing: dict[str, str] = {}
        for name, each in self.perturbations.items():
            try:
                runs[name] = self._ask(policy, perturbed(self.suite, name, each, seed=self.seed), name, progress)
            except DataError as err:  # as written the suite could be asked: this makes a prompt too long for the model
                missing[name] = str(err)
        missing |= {name: f"item {i}: {why}" for name, run in runs.items() for i, why in [*run.missing.items()][:1]}
        probed: dict[str, ProbeResult] = {}
        for name, probe in self.probes.items():
            try:
                probed[name] = probe(policy, self.suite, seed=self.seed, build_engine=self.build_engine)
            except DataError as err:
                missing[name] = str(err)
        drift = None
        if reference is not None:
            other = reference if isinstance(reference, PolicyModel) else PolicyModel.from_pretrained(str(reference))
            drift = hidden_drift(policy, other, [item.prompt for item in self.suite.items])
        flaws, samples, quality = self._flaws(plain)
        return AdversarialReport(
            suite=self.suite.name,
            plain=plain.estimate(),
            perturbed=compared(plain, runs, self.perturbations),
            worst_case=worst_cases(plain, runs, self.perturbations),
            quality=quality,
            flaws=flaws,
            flaw_samples=samples,
            probes=probed,
            drift=drift,
            missing=missing,
        )

    def check(self, prompt: str, completion: str, *, truncated: bool = False) -> list[str]:
        """Names of the flaws of one completion."""
        return flaws_of(Asked(prompt, completion, truncated))

    def _ask(self, policy: PolicyModel, suite: Suite, name: str, progress: Callable[..., None] | None) -> SuiteRun:
        return run_suite(policy, suite, name=name, seed=self.seed, build_engine=self.build_engine, progress=progress)

    def _flaws(self, run: SuiteRun) -> tuple[dict[str, float], dict[str, list[tuple[str, str]]], Estimate | None]:
        """Share and samples of each flaw, and the share of completions without one, by item."""
        if not run.completions:
            return {}, {}, None
        # A suite that is scored by refusals wants some: there they are a score and no flaw.
        counted = [name for name in FLAWS if name != "refusal" or self.suite.config.scorer.kind != "refusal"]
        prompts = {item.id: item.prompt for item in self.suite.items}
        samples_of: dict[str, list[tuple[str, str]]] = {name: [] for name in counted}
        clean: list[float] = []
        total = 0
        for item, texts in run.completions.items():
            cut = run.truncated.get(item, [False] * len(texts))
            flawed = 0
            for text, truncated in zip(texts, cut, strict=True):
                names = [
                    name for name in flaws_of(Asked(plain_text(prompts[item]), text, truncated)) if name in samples_of
                ]
                flawed += bool(names)
                total += 1
                for name in names:
                    samples_of[name].append((item, text))
            clean.append(1 - flawed / len(texts))
        shares = {name: len(samples) / total for name, samples in samples_of.items()}
        return shares, {name: s[:NUM_SHOWN] for name, s in samples_of.items() if s}, share_interval(clean)


def perturbed(suite: Suite, name: str, perturbation: Perturbation, *, seed: int) -> Suite:
    """The same suite with other words around what is asked; each item's noise depends on the seed and the item only."""

    def changed(item: Item) -> Item:
        rng = random.Random(derive_seed(seed, "perturbation", name, item.id))
        if isinstance(item.prompt, str):
            return replace(item, prompt=perturbation.change(item.prompt, rng))
        *before, last = item.prompt
        return replace(item, prompt=[*before, {**last, "content": perturbation.change(str(last["content"]), rng)}])

    return replace(suite, items=tuple(changed(item) for item in suite.items))


def compared(
    plain: SuiteRun, runs: Mapping[str, SuiteRun], perturbations: Mapping[str, Perturbation]
) -> dict[str, PerturbedResult]:
    """Each perturbation against the plain suite, paired by unit."""
    base = plain.unit_scores()
    changes = {
        name: {unit: score - base[unit] for unit, score in run.unit_scores().items() if unit in base}
        for name, run in runs.items()
    }
    p_values = {}
    for name, by_unit in changes.items():
        worse, better = sum(c < 0 for c in by_unit.values()), sum(c > 0 for c in by_unit.values())
        p_values[name] = (
            float(binomtest(worse, worse + better, alternative="greater").pvalue) if worse + better else 1.0
        )
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True)) if p_values else {}
    return {
        name: PerturbedResult(
            name=name,
            family=perturbations[name].family,
            score=run.estimate(),
            change=mean_interval(list(changes[name].values())),
            p_holm=float(adjusted[name]),
            worst_items=[
                unit for unit, c in sorted(changes[name].items(), key=lambda both: both[1])[:NUM_SHOWN] if c < 0
            ],
        )
        for name, run in runs.items()
    }


def worst_cases(
    plain: SuiteRun, runs: Mapping[str, SuiteRun], perturbations: Mapping[str, Perturbation]
) -> dict[str, Estimate]:
    """Family -> mean of each unit's lowest score, the plain one among them; the unit stays the unit of the interval.

    Of a unit that lacks a score under one of them the lowest is not known, and it is left out.
    """
    families: dict[str, list[str]] = {}
    for name in runs:
        families.setdefault(perturbations[name].family, []).append(name)
    if len(families) > 1:
        families["all"] = list(runs)
    base = plain.unit_scores()
    worst = {}
    for family, names in families.items():
        scores = [runs[name].unit_scores() for name in names]
        lowest = np.array(
            [min(base[unit], *(s[unit] for s in scores)) for unit in base if all(unit in s for s in scores)]
        )
        is_share = lowest.size > 0 and bool(((lowest >= 0) & (lowest <= 1)).all())
        worst[family] = share_interval(lowest) if is_share else mean_interval(lowest)
    return worst


def plain_text(prompt: Any) -> str:
    """A prompt as text: of messages the last one's."""
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
