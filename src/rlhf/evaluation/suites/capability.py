"""Capabilities before and after training: the same items, paired, with a bound on what may be lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlhf.config.suites import SuiteConfig
from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.decision import Decision, Ruling, combined
from rlhf.evaluation.intervals import CONFIDENCE, Estimate, mean_interval, paired_difference
from rlhf.evaluation.noninferiority import no_room_to_lose, noninferiority, noninferiority_of_tasks
from rlhf.evaluation.suites.suite import Suite, load_suite
from rlhf.evaluation.suites.suite_run import SuiteRun, run_suite
from rlhf.evaluation.suites.swaps import GroupDifference
from rlhf.files import write_json
from rlhf.formatting import percentage
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import RolloutEngine

MIN_SCORED_FRAC = 0.95
"""With fewer of the completions scored, a suite decides nothing: what could not be scored is rarely a random part."""
REPEAT_CONFIDENCE = 0.99
"""Of the interval by which a model is found to differ from itself."""


class AskedSuite(Protocol):
    """A suite by its name and content: a ``Suite``, or the record of one."""

    @property
    def name(self) -> str:
        """What results call it."""
        ...

    @property
    def fingerprint(self) -> str:
        """As of ``Suite.fingerprint``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteComparison:
    """One suite, before and after."""

    suite: str
    fingerprint: str
    margin: float
    before: Estimate
    after: Estimate
    gain: Estimate
    """Mean of after - before over units."""
    ruling: Ruling
    """Whether a loss of ``margin`` or more is ruled out, or shown. A failure is corrected for the number of suites."""
    repeat: Mapping[str, Any]
    """The model before, asked twice: ``flipped_frac``, units whose score changed, and ``difference``, the mean change. Empty where it was
    not asked twice."""
    per_unit: Mapping[str, tuple[float, float]]
    """Unit -> score before, score after."""
    group_differences: Sequence[GroupDifference] = ()
    """Of the model after, where the suite swaps groups in its items."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "suite": self.suite,
            "fingerprint": self.fingerprint,
            "margin": self.margin,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "gain": self.gain.to_dict(),
            "ruling": self.ruling.to_dict(),
            "repeat": dict(self.repeat),
            "per_unit": {unit: list(both) for unit, both in self.per_unit.items()},
            "group_differences": [each.to_dict() for each in self.group_differences],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityReport:
    """All suites, and what they say together."""

    suites: Mapping[str, SuiteComparison]
    decision: Decision
    """Pass only if every suite passes; fail if one fails."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "decision": str(self.decision),
            "suites": {name: suite.to_dict() for name, suite in self.suites.items()},
        }

    def write(self, path: Path | str) -> None:
        """To JSON, in one step."""
        write_json(path, self.to_dict())

    def __str__(self) -> str:
        lines = [f"{name}: {each.ruling.decision}. {each.ruling.reason}" for name, each in self.suites.items()]
        lines += [f"{name}: {pair}" for name, each in self.suites.items() for pair in each.group_differences]
        return "\n".join([*lines, f"Together: {self.decision}."])


class CapabilityTester:
    """Asks two models the same suites, and says of each suite whether something was lost.

        report = CapabilityTester(["general", "my_suite.yaml"]).test(before, after)
        report.decision     # pass, fail or undecided

    The difference is paired by item. PASS: the lower end of the one-sided interval of after - before is above -margin. FAIL: the upper
    end is below -margin, after Holm's correction for the number of suites: of 20 unchanged suites at 5 % each, 64 % of runs would
    otherwise show a loss (research/evaluation.md, section 4). Otherwise UNDECIDED, which is no pass: also where the model before scores
    no more than the margin, as a suite on which there is nothing to lose shows no loss; and where a pass would not be one with the worst
    score for every completion after that has none.

    Args:
        suites: Names of bundled suites, YAML files, settings or suites.
        seed: The same seed gives the same samples.
        confidence: Of the one-sided intervals.
        repeat: Also ask the model before a second time with other seeds. Where it differs from itself, the suite decides nothing;
            by default only suites that sample at a temperature above 0 are repeated.
        build_engine: What samples from a policy.
    """

    def __init__(
        self,
        suites: Sequence[Suite | SuiteConfig | Mapping[str, Any] | str | Path],
        *,
        seed: int = 0,
        confidence: float = CONFIDENCE,
        repeat: bool | None = None,
        build_engine: Callable[[PolicyModel], RolloutEngine] = LocalEngine,
    ) -> None:
        self.suites = [load_suite(suite) for suite in suites]
        names = [suite.name for suite in self.suites]
        if not names:
            raise ConfigError("There is no suite to test with; name at least one, such as 'general'.")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"Two suites are called {twice[0]!r}; give each its own name.")
        self.seed = seed
        self.confidence = confidence
        self.repeat = repeat
        self.build_engine = build_engine

    def run(
        self, policy: PolicyModel | str | Path, *, name: str = "policy", progress: Callable[..., None] | None = None
    ) -> dict[str, SuiteRun]:
        """One model's scores, by suite; see ``run_suite``."""
        policy = policy if isinstance(policy, PolicyModel) else PolicyModel.from_pretrained(str(policy))
        return {suite.name: self._ask(policy, suite, name, self.seed, progress) for suite in self.suites}

    def test(
        self,
        before: PolicyModel | str | Path,
        after: PolicyModel | str | Path,
        *,
        names: tuple[str, str] = ("before", "after"),
        progress: Callable[..., None] | None = None,
    ) -> CapabilityReport:
        """Ask both, and compare.

        Args:
            before: A policy or its folder.
            after: The same.
            names: What reports call them.
            progress: Called as ``progress(name, by=how_many)`` for items that are done.
        """
        first = before if isinstance(before, PolicyModel) else PolicyModel.from_pretrained(str(before))
        old = self.run(first, name=names[0], progress=progress)
        again = {
            suite.name: self._ask(first, suite, names[0], self.seed + 1, progress)
            for suite in self.suites
            if (suite.config.sampling.temperature > 0 if self.repeat is None else self.repeat)
        }
        new = self.run(after, name=names[1], progress=progress)
        return self.compare(old, new, again=again)

    def compare(
        self,
        before: Mapping[str, SuiteRun],
        after: Mapping[str, SuiteRun],
        *,
        again: Mapping[str, SuiteRun] | None = None,
    ) -> CapabilityReport:
        """Compare results that are there already; ``again`` holds those of the model before, asked a second time.

        Raises:
            DataError: There is no result of a suite; names it.
        """
        for suite in self.suites:
            for when, results in (("before", before), ("after", after)):
                if suite.name not in results:
                    raise DataError(
                        f"There is no result of the suite {suite.name!r} of the model {when}, only of {', '.join(results) or 'none'}; ask it "
                        "the suite with run()."
                    )
        shared = {suite.name: shared_units(before[suite.name], after[suite.name]) for suite in self.suites}
        rulings = self._rulings(before, after, again or {}, shared)
        comparisons = {}
        for suite in self.suites:
            old, new, both = before[suite.name], after[suite.name], shared[suite.name]
            comparisons[suite.name] = SuiteComparison(
                suite=suite.name,
                fingerprint=suite.fingerprint,
                margin=suite.config.margin,
                before=old.estimate(),
                after=new.estimate(),
                gain=paired_difference(
                    [a for a, _ in both.values()], [b for _, b in both.values()], shares=is_bounded(suite, both)
                ),
                ruling=rulings[suite.name],
                repeat=_repeat(old, (again or {}).get(suite.name)),
                per_unit=both,
                group_differences=new.group_differences(),
            )
        return CapabilityReport(suites=comparisons, decision=combined(rulings))

    def _rulings(
        self,
        before: Mapping[str, SuiteRun],
        after: Mapping[str, SuiteRun],
        again: Mapping[str, SuiteRun],
        shared: Mapping[str, Mapping[str, tuple[float, float]]],
    ) -> dict[str, Ruling]:
        """Of each suite; those that can't be compared are undecided and count as no test."""
        undecided: dict[str, Ruling] = {}
        for suite in self.suites:
            name = suite.name
            if (why := obstacles(suite, before[name], after[name], again.get(name))) is not None:
                undecided[name] = Ruling(decision=Decision.UNDECIDED, reason=why)
            elif is_bounded(suite, shared[name]):
                blind = no_room_to_lose([old for old, _ in shared[name].values()], suite.config.margin)
                if blind is not None:
                    undecided[name] = blind
        tested = [suite for suite in self.suites if suite.name not in undecided]
        differences = {suite.name: np.array([b - a for a, b in shared[suite.name].values()]) for suite in tested}
        margins = {suite.name: suite.config.margin for suite in tested}
        largest = {suite.name: 1.0 if is_bounded(suite, shared[suite.name]) else None for suite in tested}
        rulings = noninferiority_of_tasks(differences, margins, confidence=self.confidence, largest=largest)
        for suite in tested:
            rulings[suite.name] = self._also_with_missing_as_worst(
                rulings[suite.name], suite, before[suite.name], after[suite.name]
            )
        return undecided | rulings

    def _also_with_missing_as_worst(self, ruling: Ruling, suite: Suite, before: SuiteRun, after: SuiteRun) -> Ruling:
        """A pass holds only if it also does with the worst score for each completion of the model after that has none: what a model got worse
        at is often what can't be scored."""
        missing = sum(score is None for scores in after.scores.values() for score in scores)
        if ruling.decision is not Decision.PASS or not missing:
            return ruling
        old = before.unit_scores()
        known = shared_units(before, after)
        is_share = is_bounded(suite, known)
        worst = 0.0 if is_share else min(min(both) for both in known.values())
        new = after.unit_scores(in_place_of_missing=worst)
        differences = [new[unit] - score for unit, score in old.items() if unit in new]
        harsh = noninferiority(
            differences, suite.config.margin, confidence=self.confidence, largest=1.0 if is_share else None
        )
        evidence = {**ruling.evidence, "num_missing": missing, "with_missing_as_worst": dict(harsh.evidence)}
        if harsh.decision is Decision.PASS:
            return replace(ruling, evidence=evidence)
        return Ruling(
            decision=Decision.UNDECIDED,
            reason=f"{ruling.reason} But {missing} completions of {after.model} have no score, and with {worst:g} for each of them it is not: "
            f"{harsh.reason}",
            evidence=evidence,
        )

    def _ask(
        self, policy: PolicyModel, suite: Suite, name: str, seed: int, progress: Callable[..., None] | None
    ) -> SuiteRun:
        return run_suite(policy, suite, name=name, seed=seed, build_engine=self.build_engine, progress=progress)


def shared_units(before: SuiteRun, after: SuiteRun) -> dict[str, tuple[float, float]]:
    """Unit -> both scores, of those units that have both."""
    old, new = before.unit_scores(), after.unit_scores()
    return {unit: (score, new[unit]) for unit, score in old.items() if unit in new}


def obstacles(suite: AskedSuite, before: SuiteRun, after: SuiteRun, again: SuiteRun | None = None) -> str | None:
    """Why two results can't be compared; None where they can."""
    for run in (before, after):
        if run.fingerprint != suite.fingerprint:
            return (
                f"The result of {run.model} is of another version of the suite {suite.name} (items, wording, scorer or sampling changed); "
                "ask again."
            )
        if not run.scores:
            return f"The result of {run.model} has no items of the suite {suite.name}; ask again."
        if run.scored_frac < MIN_SCORED_FRAC:
            item, why = next(iter(run.missing.items()), ("", "the scorer gave none"))
            return (
                f"Only {percentage(run.scored_frac, 0)} of the completions of {run.model} have a score, fewer than "
                f"{percentage(MIN_SCORED_FRAC, 0)}; item {item}: {why}."
            )
    if again is not None:
        if again.fingerprint != suite.fingerprint or again.scores.keys() != before.scores.keys():
            return (
                f"The second result of {before.model} is of other items of the suite {suite.name} than the first, so it does not say whether "
                "the model agrees with itself; ask again."
            )
        if again.scored_frac < MIN_SCORED_FRAC:
            return (
                f"Asked a second time, only {percentage(again.scored_frac, 0)} of the completions of {before.model} have a score, fewer "
                f"than {percentage(MIN_SCORED_FRAC, 0)}, so it is not known whether the model agrees with itself."
            )
        difference = mean_interval(
            [b - a for a, b in shared_units(before, again).values()], confidence=REPEAT_CONFIDENCE
        )
        if difference.measured and (difference.low > 0 or difference.high < 0):
            return (
                f"{before.model} differs from itself: asked twice, its mean score changed by {difference.value:+.3g} "
                f"({percentage(REPEAT_CONFIDENCE, 0)} interval {difference.low:+.3g} to {difference.high:+.3g}); "
                "find out why before comparing others."
            )
    return None


def is_bounded(suite: Suite, scores: Mapping[str, tuple[float, float]]) -> bool:
    """Whether all scores are from 0 to 1 and the scorer is not one without bounds, so that no difference is larger than 1."""
    return not suite.config.unbounded and all(0 <= score <= 1 for both in scores.values() for score in both)


def _repeat(before: SuiteRun, again: SuiteRun | None) -> dict[str, Any]:
    if again is None:
        return {}
    both = list(shared_units(before, again).values())
    return {
        "flipped_frac": sum(a != b for a, b in both) / len(both) if both else None,
        "difference": mean_interval([b - a for a, b in both], confidence=REPEAT_CONFIDENCE).to_dict(),
    }
