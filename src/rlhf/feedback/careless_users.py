"""Users of a served model who click without reading: always the same answer, or always what stands in one place.

There are no gold items among what users say, and hardly two of them say something of one completion, so that the rules for annotators
(``rlhf.feedback.quality``) would qualify nobody. What can be seen is somebody who never says anything else. Saying the same is named
only where others say it much more seldom:

    P(X >= k),  X ~ Binomial(n, (s + 1) / (m + 2)),  at most FALSE_ALARM / users

for an answer that the user gave k times of n and the others s times of m. A place is compared with one half: the page draws which
answer stands first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scipy.stats import binom

from rlhf.data.message_text import counted
from rlhf.feedback.quality import AnnotatorQualityControl, QualityRules, Verdict
from rlhf.feedback.training_overlap import normalized
from rlhf.formatting import percentage

MIN_VERDICTS = 20
"""Fewer say nothing of somebody."""
ALWAYS = 0.95
"""Share of verdicts that counts as always."""
FALSE_ALARM = 0.01
"""Chance, at most, that anybody is named who answers as the others do."""
WORDS: Mapping[Any, str] = {True: "good", False: "bad", "tie": "same", "a": "the first", "b": "the second"}


def careless_users(rows: Iterable[Mapping[str, Any]], *, min_verdicts: int = MIN_VERDICTS) -> dict[str, str]:
    """Who clicks without reading, and why it is thought so.

    Args:
        rows: Of ``rows_of_events``; those without a user say nothing of anybody.
        min_verdicts: Verdicts of one kind, thumbs or votes, that somebody must have given.
    """
    by_kind: dict[str, list[Verdict]] = defaultdict(list)
    for kind, verdict in _verdicts(rows):
        by_kind[kind].append(verdict)
    reasons: dict[str, list[str]] = defaultdict(list)
    for kind, verdicts in by_kind.items():
        for user, why in (
            *_always_the_same(kind, verdicts, min_verdicts),
            *_always_in_one_place(verdicts, min_verdicts),
        ):
            reasons[user].append(why)
    return {user: "; ".join(why) for user, why in reasons.items()}


def _verdicts(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Verdict]]:
    for row in rows:
        user = row.get("annotator_id")
        if user is None:
            continue
        if "label" in row:
            item: Any = (normalized(row["prompt"]), normalized(row["completion"]))
            yield "thumbs", Verdict(item=item, annotator=user, value=row["label"])
        elif "preference" in row:
            item = (normalized(row["prompt"]), normalized(row["completion_a"]), normalized(row["completion_b"]))
            yield (
                "votes",
                Verdict(item=item, annotator=user, value=row["preference"], shown_first=row.get("shown_first")),
            )


def _always_the_same(kind: str, verdicts: Sequence[Verdict], least: int) -> Iterator[tuple[str, str]]:
    """By the answers of each user and of all others. Of votes only ties are asked: sides mean nothing by themselves."""
    answers: dict[Any, Counter[Any]] = defaultdict(Counter)
    for verdict in verdicts:
        answers[verdict.annotator][verdict.value] += 1
    together: Counter[Any] = sum(answers.values(), Counter())
    for user, given in answers.items():
        (value, k), n = given.most_common(1)[0], given.total()
        others = together.total() - n
        if n < least or k < ALWAYS * n or not others or (kind == "votes" and value != "tie"):
            continue
        same = together[value] - k
        if binom.sf(k - 1, n, (same + 1) / (others + 2)) <= FALSE_ALARM / len(answers):
            yield str(user), f"{k:,} of {n:,} {kind} say {WORDS[value]}; of the others' {percentage(same / others)}"


def _always_in_one_place(verdicts: Sequence[Verdict], least: int) -> Iterator[tuple[str, str]]:
    if not any(verdict.shown_first for verdict in verdicts):
        return
    for review in AnnotatorQualityControl(QualityRules(min_judgments=least)).review(verdicts):
        share = review.first_frac
        if share.measured and share.n >= least and review.leans_to_position and not 1 - ALWAYS < share.value < ALWAYS:
            place = "first" if share.value > 0.5 else "second"
            chosen = share.value if place == "first" else 1 - share.value
            yield str(review.annotator), f"{percentage(chosen)} of {counted(share.n, 'vote')} for what stood {place}"
