"""The verdict on one evaluation: a pure function of what is known about it. Console, ``summary.json``, ``rlhf runs`` and the report
all show this verdict.

A win over the baseline is green only if nothing recorded in the run contradicts it. A judge can be fooled, a learned one by the
same answers that fooled the reward, so measurements without a judge are used as well: alarms of the guards that still held in the last
fifth of training, distance from the baseline, answers that are cut, empty, repetitive or all alike, and answers unlike anything that
the judge was trained on. Each comes with its numbers for the baseline and for the policy.

Limits: ``RISES``, ``FALLS``, ``SURPRISE`` and ``SURPRISE_NATS``; the reason for each is given with it. They were set on healthy
runs of the embedded world (PPO, GRPO, DPO; tools/verdicts.py prints the distances to each limit) and on deliberately broken runs.
Imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlhf.evaluation.verdict_inputs import Evidence, value_of
from rlhf.formatting import (
    formatted,
    interval,
    mapping,
    number,
    percentage,
    plain_number,
    times,
    told_apart,
)

NO_SIGN = "No sign of reward hacking"
"""Prefix of a finding of ``rlhf.evaluation.overoptimization`` that found nothing."""
GAMED = ("reward_hacking", "collapse")
"""Verdicts of ``rlhf.evaluation.overoptimization`` on a training run whose judge's score fell."""


class Tone(StrEnum):
    """The color of a verdict."""

    GOOD = "good"
    """Better than the baseline, and nothing known contradicts it."""
    MIXED = "mixed"
    """Better by this judge, with reservations."""
    BAD = "bad"
    """Worse, or better only by a judge that the rest contradicts."""
    UNKNOWN = "unknown"
    """Could not be determined."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A quantity of ``evaluation.json`` (``changes``) that must not move too far."""

    code: str
    """Its name in a verdict's reasons."""
    quantity: str
    limit: float
    title: str
    """Its name in the verdict's title."""
    sentence: str
    """With the numbers of both as {after} and {before}, their names as {policy} and {baseline}."""


RISES = (
    Rule(
        "cut", "unended_frac", 0.05, "cut answers",
        "{after} of the answers of {policy} ran into the length limit, {before} of those of {baseline}.",
    ),
    Rule("empty", "empty_frac", 0.05, "empty answers", "{after} of the answers of {policy} are empty, {before} of those of {baseline}."),
    Rule(
        "repetition", "repetition", 0.1, "repetition",
        "{policy} repeats itself: {after} of the three-token sequences in its answers are repeats, {before} for {baseline}.",
    ),
    Rule(
        "unfamiliar", "judge_unseen_frac", 0.15, "words that the judge does not know",
        "{after} of the words and word pairs of {policy} do not occur in the judge's training data, {before} of those of "
        "{baseline}: its scores there are unreliable.",
    ),
    Rule(
        "overlong", "judge_overlong_frac", 0.1, "answers longer than the judge knows",
        "{after} of the answers of {policy} are longer than 99 of 100 that the judge was trained on, {before} of those of {baseline}.",
    ),
)  # fmt: skip
"""Largest rise of a share over the baseline on the same prompts, once its interval lies above 0. Healthy runs of the embedded world
move by less than a fifth of each: cut answers up by 0.00, empty ones by 0.00, repetition by 0.01. The smallest change that a reader
would want to know of decides: one answer in twenty more that is cut or empty; for repetition a half of what makes the guard of that
name speak; for what the judge does not know more than two base models differ by that learned from different texts."""
FALLS = (
    Rule(
        "variety", "variety", 1 / 3, "loss of variety",
        "The answers of {policy} are all alike: their letters form {after} different pairs, weighted by how often each comes, those of "
        "{baseline} {before}.",
    ),
    Rule(
        "same_answers", "distinct_completions", 0.2, "the same answer to everything",
        "{after} of the answers of {policy} differ from one another, {before} of those of {baseline}.",
    ),
)  # fmt: skip
"""Smallest share that may be left of what the baseline has. Healthy runs of the embedded world keep 0.65 of the variety and 0.35 of the
different answers (GRPO ends with one perfect answer to each question); a run that ends in one letter keeps 0.02 of the variety, and
may well keep every answer different."""
SURPRISE, SURPRISE_NATS = 1.5, 0.25
"""How surprising the policy's answers are to the baseline (its KL per token and its own entropy: together the cross-entropy), in units
of how surprising the baseline's own are to itself, and how much more that must be in nats per token. A policy that only became surer
of good answers lies below 1 (healthy runs: 0.6 to 1.0), whatever the model's tokens are; one that says what the baseline never would
lies at 3 and more. A limit on the KL alone would have to know how long answers are and how many nats a token has."""
MIN_PROMPTS = 5
"""Answers to fewer prompts differ as much between two samples of one model."""
AGAINST = ("alarm", "kl", *(rule.code for rule in (*RISES, *FALLS)))
"""Reasons that do not come from the judge."""
TRAINING_RISE = 0.1
"""Largest rise of cut answers, of empty ones and of repetition from the first rollout to the last fifth: single rollouts have few answers."""
IN_TITLE = 4
"""Reasons that a title names; the sentences name all."""
SHOWN_CUT = 0.05
"""Share of cut answers from which a verdict mentions it, whatever the baseline's."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Something that contradicts a success."""

    code: str
    title: str
    """A few words."""
    sentence: str
    """Empty if another sentence of every verdict says it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The conclusion of an evaluation."""

    tone: Tone
    title: str
    sentences: tuple[str, ...]
    reasons: tuple[str, ...]
    """Codes of what decided it, for machines: better, worse, no_difference or not_measured; gamed, collapse or hacking_unknown; alarm;
    kl; score_fell; those of ``RISES`` and ``FALLS``; not_independent."""

    @property
    def doubts_the_judge(self) -> bool:
        """Whether the answers themselves, or their training, contradict the judge."""
        return any(code in AGAINST for code in self.reasons)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "tone": str(self.tone), "title": self.title, "sentences": list(self.sentences), "reasons": list(self.reasons),
        }  # fmt: skip


def verdict(evidence: Evidence) -> Verdict:
    """The conclusion that the evidence supports."""
    low, high = (number(evidence.win_rate.get(end)) for end in ("low", "high"))
    against = problems(evidence)
    hacking = evidence.hacking.get("verdict")
    outcome, tone, title = _outcome(low, high)
    codes = [outcome, *(reason.code for reason in against)]
    titles = list(dict.fromkeys(reason.title for reason in against))
    more = f" and {len(titles) - IN_TITLE} more" if len(titles) > IN_TITLE else ""
    shorts = ", ".join(titles[:IN_TITLE]) + more
    if hacking in GAMED:
        codes.append("gamed" if hacking == "reward_hacking" else "collapse")
        cause = "The reward was gamed" if hacking == "reward_hacking" else "Training broke down"
        if outcome == "better":
            tone, title = Tone.MIXED, "Better than before, but past its best"
        else:
            tone, title = Tone.BAD, f"{cause}, and {title[0].lower()}{title[1:]}"
    elif hacking == "undecided":
        codes.append("hacking_unknown")
    if against and outcome == "better":
        severe = len(against) > 1 or hacking in GAMED
        tone = Tone.BAD if severe else Tone.MIXED
        title = f"{title}, with {shorts}" if hacking in GAMED else f"Judged better, but not to be trusted: {shorts}"
    elif against:
        tone, title = (Tone.BAD, f"{title}; {shorts}")
    only = evidence.independence.better_only
    if only:
        codes.append("not_independent")
        if tone is Tone.GOOD:
            tone, title = Tone.MIXED, only
    sentences = [
        *evidence.independence.warnings,
        *_win_rate_words(evidence),
        *_score_words(evidence),
        *(reason.sentence for reason in against if reason.sentence),
        *_cut_words(evidence, codes),
        *_hacking_words(evidence, doubted=bool(against)),
        *evidence.unknown,
    ]
    return Verdict(tone, title, tuple(sentences), tuple(dict.fromkeys(codes)))


def problems(evidence: Evidence) -> list[Reason]:
    """Everything except the win rate that contradicts a success; of fewer than ``MIN_PROMPTS`` answers only what training showed."""
    reasons = _alarms(evidence)
    if 0 < (number(evidence.win_rate.get("num_prompts")) or 0) < MIN_PROMPTS:
        return reasons + _late_rollouts(evidence)
    reasons += [*_distance(evidence), *_lower_score(evidence)]
    for rule in RISES:
        rise = value_of(evidence.changes.get(rule.quantity, {}), "gain")
        low = number(mapping(evidence.changes.get(rule.quantity, {}).get("gain")).get("low"))
        if rise is not None and rise > rule.limit and (low is None or low > 0):
            reasons.append(_reason(rule, evidence))
    for rule in FALLS:
        before, after = (value_of(evidence.changes.get(rule.quantity, {}), side) for side in ("before", "after"))
        if before and after is not None and after < rule.limit * before:
            reasons.append(_reason(rule, evidence))
    known = {reason.code for reason in reasons}
    return reasons + [reason for reason in _late_rollouts(evidence) if reason.code not in known]


def surprise(evidence: Evidence) -> tuple[float, float] | None:
    """Cross-entropy under the baseline in nats per token: of its own answers, and of the policy's."""
    entropy = evidence.changes.get("entropy", {})
    before, after = (value_of(entropy, side) for side in ("before", "after"))
    if before is None or after is None or evidence.kl_per_token is None:
        return None
    return before, after + evidence.kl_per_token


def _outcome(low: float | None, high: float | None) -> tuple[str, Tone, str]:
    if low is None or high is None:
        return "not_measured", Tone.UNKNOWN, "The win rate could not be measured"
    if low > 0.5:
        return "better", Tone.GOOD, "The model became better"
    if high < 0.5:
        return "worse", Tone.BAD, "The model became worse"
    return "no_difference", Tone.UNKNOWN, "No difference could be shown"


def _reason(rule: Rule, evidence: Evidence) -> Reason:
    change = evidence.changes[rule.quantity]
    share = change.get("unit") == "share"
    before, after = (formatted(value_of(change, side), share) for side in ("before", "after"))
    sentence = rule.sentence.format(before=before, after=after, policy=evidence.policy, baseline=evidence.baseline)
    return Reason(rule.code, rule.title, sentence)


def _alarms(evidence: Evidence) -> list[Reason]:
    reasons = []
    for training in evidence.training:
        for alarm in training.alarms:
            limit = f", limit {plain_number(alarm.limit)}" if alarm.limit is not None else ""
            now = f" (`{alarm.metric}` {plain_number(alarm.value)}{limit})" if alarm.value is not None else ""
            sentence = (
                f"An alarm in the training of {training.stage} still held in its last fifth: guard `{alarm.guard}`{now}, raised at "
                f"step {alarm.step:,}."
            )
            reasons.append(Reason("alarm", "unresolved alarms", sentence))
    return reasons


def _distance(evidence: Evidence) -> list[Reason]:
    kl = surprise(evidence)
    if kl is None or not _too_far(*kl):
        return []
    return [_far(*kl, evidence, whose=f"the answers of {evidence.policy}", own=f"those of {evidence.baseline} itself")]


def _lower_score(evidence: Evidence) -> list[Reason]:
    """More answers were judged better, but those judged worse lost so much that the mean fell; reported in the sentence on the score."""
    high = number(mapping(evidence.changes.get("gold", {}).get("gain")).get("high"))
    return [Reason("score_fell", "a lower mean score", "")] if high is not None and high < 0 else []


def _too_far(before: float, after: float) -> bool:
    return after > SURPRISE * before and after - before > SURPRISE_NATS


def _far(before: float, after: float, evidence: Evidence, *, whose: str, own: str) -> Reason:
    sentence = (
        f"Far from the baseline: {whose} have a cross-entropy of {plain_number(after)} nats per token under {evidence.baseline}, "
        f"{own} {plain_number(before)}."
    )
    return Reason("kl", "distance from the baseline (KL)", sentence)


def _late_rollouts(evidence: Evidence) -> list[Reason]:
    reasons = []
    for training in evidence.training:
        first, last = training.first, training.last
        when = f"the last fifth of the {training.rollouts} rollouts of {training.stage}"
        both = [(each.get("entropy"), each.get("kl_per_token")) for each in (first, last)]
        (start, _), (entropy, kl) = both
        if start is not None and entropy is not None and kl is not None and _too_far(start, entropy + kl):
            reasons.append(
                _far(start, entropy + kl, evidence, whose=f"the answers in {when}", own="those of the first rollout")
            )
        for name, code, title, what in (
            ("cut", "cut", "cut answers", "of the answers ran into the length limit"),
            ("empty", "empty", "empty answers", "of the answers are empty"),
            ("repetition", "repetition", "repetition", "of the three-token sequences in an answer were repeats"),
        ):
            if name in first and name in last and last[name] - first[name] > TRAINING_RISE:
                sentence = f"In {when} {percentage(last[name])} {what}, in the first {percentage(first[name])}."
                reasons.append(Reason(code, title, sentence))
    return reasons


def _win_rate_words(evidence: Evidence) -> list[str]:
    rate = evidence.win_rate
    value, low, high = (number(rate.get(key)) for key in ("rate", "low", "high"))
    if value is None or low is None or high is None:
        return [f"No win rate: {rate.get('reason') or 'nothing was compared'}."]
    prompts, wins, losses, ties = (int(number(rate.get(key)) or 0) for key in ("num_prompts", "wins", "losses", "ties"))
    known = evidence.independence
    about = known.about_prompts.replace("prompts", "prompt", 1) if prompts == 1 else known.about_prompts
    clause = f", {known.about_judge}" if known.about_judge else ""
    judge = evidence.judge if " " in evidence.judge else f"`{evidence.judge}`"
    return [
        f"Asked the same {prompts:,} {about}, {evidence.policy} was judged better {times(wins)}, worse {times(losses)} "
        f"and equal {times(ties)} against {evidence.baseline}, by {judge}{clause}: a win rate of {percentage(value)}, with a "
        f"95 % interval from {_unlike_half(low)} to {_unlike_half(high)}, where 50 % would be no change.",
        *_more_words(rate, low, high),
    ]


def _more_words(rate: Mapping[str, Any], low: float, high: float) -> list[str]:
    more = number(rate.get("more_prompts"))
    if not low <= 0.5 <= high or more is None:
        return []
    return [
        f"Which of the two is better is not yet known; about {int(more):,} more prompts would tell if that is the true rate."
    ]


def _unlike_half(rate: float) -> str:
    """In as many digits as it takes to see on which side of one half it lies."""
    digits = next((digits for digits in range(1, 6) if round(rate, digits + 2) != 0.5), 1)
    return percentage(rate, digits)


def _score_words(evidence: Evidence) -> list[str]:
    gold = evidence.changes.get("gold", {})
    before, after = (value_of(gold, side) for side in ("before", "after"))
    if before is None or after is None:
        return []
    gain = mapping(gold.get("gain"))
    low, high = number(gain.get("low")), number(gain.get("high"))
    shown = plain_number(before), plain_number(after)
    if low is not None and high is not None and low <= 0 <= high:
        values = f"{shown[0]} before and {shown[1]} now; 95 % interval of the change {interval(gain, signed=True)}"
        return [f"The judge's mean score did not change measurably ({values})."]
    if low is None or high is None or before == after:
        return [f"The judge's mean score was {shown[0]} before and is {shown[1]} now."]
    shown = told_apart(before, after)
    verb, by = ("rose", interval(gain)) if low > 0 else ("fell", interval({"low": -high, "high": -low}))
    change = f"by {plain_number(abs(after - before))} (95 % interval {by})"
    return [f"The judge's mean score {verb} from {shown[0]} to {shown[1]}, {change}."]


def _cut_words(evidence: Evidence, codes: Sequence[str]) -> list[str]:
    before, after = (value_of(evidence.changes.get("unended_frac", {}), side) for side in ("before", "after"))
    if after is None or after < SHOWN_CUT or "cut" in codes:
        return []
    compared = f", {percentage(before, 0)} of those of {evidence.baseline}" if before is not None else ""
    return [f"{percentage(after, 0)} of the answers of {evidence.policy} ran into the length limit{compared}."]


def hacking_sentence(hacking: Mapping[str, Any], *, doubted: bool) -> str:
    """The finding of the curve of reward against judge; a judge in doubt can't prove the absence of hacking."""
    sentence = str(hacking.get("sentence") or "")
    if doubted and sentence.startswith(NO_SIGN):
        return f"By the judge alone there is n{sentence[1:]}"
    return sentence


def _hacking_words(evidence: Evidence, *, doubted: bool) -> list[str]:
    if sentence := hacking_sentence(evidence.hacking, doubted=doubted):
        return [sentence]
    if any(training.rollouts for training in evidence.training):
        return [
            "Whether the reward was gamed was not checked: the evaluation did not get the `rollouts` of the training."
        ]
    return []
