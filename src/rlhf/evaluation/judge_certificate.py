"""Whether a judge has earned its certificate, and the certificate.

A judge is certified unless one of these is so; each refusal has a name:

    labels       labels on fewer than 50 prompts prefer a completion: at 70 % agreement the interval of 50 is 13 points wide to each side
    unparsed     more than 5 % of verdicts can't be read: those that can may be a selection
    chance       the interval of its agreement with people reaches down to 1/2
    agreement    it does not keep more than half of a person's signal (``rlhf.evaluation.judge_measurement``), so that it would want more
                 than four times as many prompts as single votes of people do
    position     the interval of how often the first place wins leaves 35 % to 65 %: then places decide up to three verdicts in ten

Half of a person's signal is measured on the pairs that two people judged: the interval of (agreement - 1/2) - (people's - 1/2) / 2 must lie
above 0. With fewer than 20 such prompts what people agree in is not known; then the interval of the agreement must lie above 60 %, which is
half of the signal of people who agree in 70 % of cases. Annotators of open-ended answers do about that: 63 % (Bai et al. 2022,
arXiv:2204.05862), 73 % (Ouyang et al. 2022, section 3.4, arXiv:2203.02155). ``min_agreement`` takes the place of both.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf.config.judge_base import JudgeBase
from rlhf.data.message_text import counted
from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import CONFIDENCE, Estimate
from rlhf.evaluation.judge_measurement import HALF_SIGNAL, JudgeMeasurement, measure_judge
from rlhf.evaluation.labeled_pairs import LabeledPairs
from rlhf.evaluation.sample_size import check_shares, prompts_for_difference
from rlhf.formatting import percentage, percentage_points
from rlhf.rewards.pairwise.certificate import CERTIFIED, REFUSED, SCHEMA, bindings, bound_source, judge_called, sealed
from rlhf.rewards.pairwise.votes import PairwiseJudge, judge_hash
from rlhf.version import __version__

MIN_SHARED = 20
"""Prompts with two people's votes from which on people's agreement is known; as ``rlhf.feedback.agreement.MIN_ITEMS``."""
ASSUMED_PEOPLE = 0.7
"""People's agreement with each other where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRule:
    """What a judge must meet; see the top of this file."""

    min_agreement: float | None = None
    """The interval of its agreement must lie above it; None for half of a person's signal."""
    min_labels: int = 50
    """Prompts with a vote that prefers one and a verdict."""
    max_unparsed: float = 0.05
    max_position_bias: float = 0.15
    """How far from 1/2 the first place may win, interval included."""

    def __post_init__(self) -> None:
        check_shares(
            max_unparsed=(self.max_unparsed, -1e-12, 1), max_position_bias=(self.max_position_bias, 0, 0.5 + 1e-12)
        )
        if self.min_agreement is not None and not 0.5 <= self.min_agreement < 1:
            raise ConfigError(
                f"min_agreement is {self.min_agreement:g}; it lies between 0.5, which knowing nothing gives, and 1."
            )
        if self.min_labels < 2:
            raise ConfigError(f"min_labels is {self.min_labels}; an interval takes 2 prompts or more.")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One reason against a judge."""

    name: str
    """``labels``, ``unparsed``, ``chance``, ``agreement`` or ``position``."""
    text: str
    more_labels: int | None = None
    """Further labeled prompts that would probably settle it, if what was seen is true; None where none would."""


def refusals(measurement: JudgeMeasurement, rule: CertificateRule) -> list[Refusal]:
    """Every reason against a judge; empty for one that is certified."""
    reasons = []
    if measurement.num_prompts < rule.min_labels:
        more = rule.min_labels - measurement.num_prompts
        reasons.append(
            Refusal(
                "labels",
                f"Labels on {counted(measurement.num_prompts, 'prompt')} prefer a completion and have a verdict, and it takes "
                f"{rule.min_labels}.",
                more,
            )
        )
    if measurement.asked and measurement.num_unparsed > rule.max_unparsed * measurement.asked:
        why = f" ({max(measurement.unparsed_reasons, key=lambda one: measurement.unparsed_reasons[one])})"
        reasons.append(
            Refusal(
                "unparsed",
                f"{measurement.num_unparsed:,} of {measurement.asked:,} verdicts can't be read{why}, and at most "
                f"{percentage(rule.max_unparsed, 0)} may be unreadable.",
            )
        )
    reasons += _on_agreement(measurement, rule)
    bias = measurement.position.first_rate if measurement.position is not None else None
    limits = 0.5 - rule.max_position_bias, 0.5 + rule.max_position_bias
    if bias is not None and bias.measured and (bias.low < limits[0] or bias.high > limits[1]):
        reasons.append(
            Refusal(
                "position",
                f"The first place wins {shown(bias)} of verdicts whichever completion it is, and that must lie within "
                f"{percentage(limits[0], 0)} to {percentage(limits[1], 0)}, interval included.",
            )
        )
    return reasons


def _on_agreement(measurement: JudgeMeasurement, rule: CertificateRule) -> list[Refusal]:
    rate = measurement.agreement
    if not rate.measured:
        return [Refusal("agreement", f"Its agreement with people was not measured: {rate.reason}.")]
    if not rate.low > 0.5:
        more = _more(rate.value - 0.5, measurement.agreement_variance, rate)
        text = f"It is not shown to be better than chance: it agrees with people in {shown(rate)} of cases, and knowing nothing gives 50 %."
        return [Refusal("chance", text, more)]
    if rule.min_agreement is None and measurement.num_shared >= MIN_SHARED:
        beyond = measurement.beyond_people
        if beyond.low > 0:
            return []
        least = 0.5 + HALF_SIGNAL * (measurement.people.value - 0.5)
        text = (
            f"Where people agree with each other in {shown(measurement.people)} of cases, it agrees with them in "
            f"{shown(measurement.agreement_where_shared)}; that it keeps more than half of a person's signal (above "
            f"{percentage(least)}) is not shown: {percentage_points(beyond.value)} [{percentage_points(beyond.low)}, "
            f"{percentage_points(beyond.high)}] beyond it."
        )
        return [Refusal("agreement", text, _more(beyond.value, measurement.shared_variance, beyond))]
    least = 0.5 + HALF_SIGNAL * (ASSUMED_PEOPLE - 0.5) if rule.min_agreement is None else rule.min_agreement
    if rate.low > least:
        return []
    why = "" if rule.min_agreement is not None else (
        f" (people's own agreement is not known: {counted(measurement.num_shared, 'prompt')} with votes of two people, and it takes "
        f"{MIN_SHARED})"
    )  # fmt: skip
    text = f"It agrees with people in {shown(rate)} of cases, and the interval must lie above {percentage(least)}{why}."
    return [Refusal("agreement", text, _more(rate.value - least, measurement.agreement_variance, rate))]


def _more(distance: float, variance: float, rate: Estimate) -> int | None:
    """Prompts beyond those that there are, for a distance to be told from 0; None where what was seen is on the wrong side of it."""
    if not distance > 0 or not math.isfinite(variance):
        return None
    needed = prompts_for_difference(distance, variance=max(variance, 1 / rate.n), confidence=rate.confidence)
    return max(1, needed - rate.n)


def shown(estimate: Estimate) -> str:
    """``72.0 % [65.1 %, 78.0 %]``."""
    return f"{percentage(estimate.value)} [{percentage(estimate.low)}, {percentage(estimate.high)}]"


def certify(
    judge: PairwiseJudge,
    settings: JudgeBase,
    labels: LabeledPairs,
    *,
    folder: Path | str,
    labels_source: tuple[str, str],
    guidelines: tuple[str, str] | None = None,
    rule: CertificateRule | None = None,
    limit: int | None = None,
    seed: int = 0,
    own_models: Collection[str] = (),
    confidence: float = CONFIDENCE,
    notes: Collection[str] = (),
) -> dict[str, Any]:
    """Measure a judge and decide; gives its certificate, to be written into ``folder``.

    Args:
        judge: Built of ``settings``.
        settings: Of the judge, as it will be used.
        labels: What people said.
        folder: Where the certificate will lie.
        labels_source: A file or store, and which it is: ``file`` or ``store``.
        guidelines: What people were asked to look at, and whether it is a ``file`` or a store's own (``store guidelines``).
        rule: By default as it stands at the top of this file.
        limit: Ask about pairs of so many prompts only, drawn at random.
        seed: Of that draw.
        own_models: See ``measure_judge``.
        confidence: Of all intervals.
        notes: What a reader must know of the labels.

    Raises:
        RewardError: The judge does not answer.
    """
    rule = rule or CertificateRule()
    bound = bindings(settings)  # before anything is asked: what is measured must be what is bound
    sources = {
        "labels": bound_source(labels_source[0], kind=labels_source[1], folder=folder),
        "guidelines": bound_source(guidelines[0], kind=guidelines[1], folder=folder)
        if guidelines is not None
        else None,
    }
    own = set(own_models) or _own_names(settings)
    measurement = measure_judge(judge, labels.sampled(limit, seed=seed), own_models=own, confidence=confidence)
    reasons = refusals(measurement, rule)
    return sealed(
        {
            "schema": SCHEMA,
            "verdict": REFUSED if reasons else CERTIFIED,
            "reasons": [asdict(reason) for reason in reasons],
            "judge": {
                "name": judge_called(settings), "hash": judge_hash(judge), "identity": dict(judge.identity), "bindings": bound,
                "own_models": sorted(own),
            },
            **sources,
            "measured": measurement.to_dict(),
            "rule": asdict(rule),
            "limit": limit,
            "seed": seed,
            "confidence": confidence,
            "notes": [*notes, *_notes(labels)],
            "version": __version__,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
    )  # fmt: skip


def _own_names(settings: JudgeBase) -> set[str]:
    return {str(value) for key in ("model", "path") if (value := getattr(settings, key, None)) is not None}


def _notes(labels: LabeledPairs) -> list[str]:
    notes = []
    if labels.num_equal:
        notes.append(f"{counted(labels.num_equal, 'vote')} on two equal texts left out: nothing is to be judged there.")
    if labels.unnamed:
        notes.append(
            f"{counted(labels.unnamed, 'vote')} without annotator_id: each is taken for another person's, and people's agreement may be "
            "that of one person with himself."
        )
    return notes


def table(certificate: Mapping[str, Any]) -> str:
    """A certificate for people: the judge beside people, the verdict and its reasons."""
    measured = certificate["measured"]
    rows = [
        ("", "judge", "people", "prompts"),
        _row("agreement with a person's preference", measured["agreement"], None),
        _row("  where two people judged", measured["agreement_where_shared"], measured["people"]),
        _row("same verdict, a tie its own", measured["same_verdict"], measured["people_same_verdict"]),
        *_on_position(measured["position"]),
        _row("longer completion wins", measured["longer"], measured["people_longer"]),
        _row("own model's completion wins", measured["own"], measured["people_own"]),
        _row("ties", measured["ties"], measured["people_ties"]),
        _row("unparsed", measured["unparsed"], None),
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(4)]
    lines = [
        f"{certificate['judge']['name']}: {certificate['verdict']}. {counted(measured['num_votes'], 'vote')} of "
        f"{counted(measured['num_people'], 'annotator')} on {counted(measured['num_pairs'], 'pair')}; "
        f"{counted(measured['asked'], 'verdict')}, {measured['cost']:.4f} dollars.",
        "",
        *("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows),
        "",
    ]
    for reason in certificate["reasons"]:
        more = reason["more_labels"]
        hint = f" About {counted(more, 'more labeled prompt')} would tell, if what was seen is true." if more else ""
        lines.append(f"- {reason['name']}: {reason['text']}{hint}")
    lines += [f"- {note}" for note in (*_findings(measured), *certificate["notes"])]
    return "\n".join(lines).rstrip()


def _on_position(position: Mapping[str, Any] | None) -> list[tuple[str, str, str, str]]:
    if position is None:
        return [("first place wins", "sees no order", "", "")]
    return [
        _row("first place wins", position["first_rate"], None),
        _row("same verdict in both orders", position["consistent"], None),
    ]


def _row(name: str, judge: Mapping[str, Any] | None, people: Mapping[str, Any] | None) -> tuple[str, str, str, str]:
    n = str(judge["n"]) if judge is not None and judge.get("value") is not None else ""
    return name, _cell(judge), _cell(people) if people is not None else "", n


def _cell(estimate: Mapping[str, Any] | None) -> str:
    if estimate is None or estimate.get("value") is None:
        return "not measured"
    ends = (
        f" [{percentage(estimate['low'])}, {percentage(estimate['high'])}]" if estimate.get("low") is not None else ""
    )
    return f"{percentage(estimate['value'])}{ends}"


def _findings(measured: Mapping[str, Any]) -> list[str]:
    """Preferences that the judge has and people have not, and what was not measured and why."""
    said = []
    for key, what in (("longer", "the longer completion"), ("own", "what its own model wrote")):
        beyond = measured[f"{key}_beyond_people"]
        if beyond["value"] is None:
            said.append(f"Whether it prefers {what} was not measured: {beyond.get('reason', '')}.")
        elif beyond["low"] is not None and (beyond["low"] > 0 or beyond["high"] < 0):
            more = "more" if beyond["low"] > 0 else "less"
            ends = f"[{percentage_points(beyond['low'])}, {percentage_points(beyond['high'])}]"
            said.append(
                f"It prefers {what} {more} often than people do on the same pairs: {percentage_points(beyond['value'])} {ends}."
            )
    if measured["people"]["value"] is None:
        said.append(f"How far people agree with each other was not measured: {measured['people'].get('reason', '')}.")
    for name, position in measured["member_positions"].items():
        if position["is_biased"]:
            said.append(f"Of the jury, {name} lets the first place win {_cell(position['first_rate'])}.")
    return said
