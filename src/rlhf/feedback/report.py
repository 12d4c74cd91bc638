"""What ``rlhf feedback report`` says: the findings of a store as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

from rlhf.data.message_text import counted, printable
from rlhf.evaluation.intervals import Estimate, finite_or_none
from rlhf.feedback.classes import scale_of
from rlhf.feedback.consensus import Belief, Learned, dawid_skene_of
from rlhf.feedback.quality import AnnotatorQuality, QualityRules
from rlhf.feedback.statistics import MIN_SHARED, Coverage, DividedItem, Findings, QuestionAgreement, findings_of
from rlhf.feedback.store_guidelines import guidelines_of
from rlhf.formatting import percentage
from rlhf.store.items import items_of

if TYPE_CHECKING:
    from rlhf.store import PreferenceStore

SCHEMA = 1
MAX_PAIRS_SHOWN = 10
"""Annotators, and pairs of them, on a terminal; JSON has more."""
MAX_CLASSES_SHOWN = 8
"""Classes of a table of confusion on a terminal."""
LEVELS = ((0.8, "reliable"), (0.667, "enough for tentative conclusions"))
"""Krippendorff's own reading of alpha, where the whole interval lies above (2004, "Content analysis", sections 11.3 and 11.4)."""


def report_text(
    store: PreferenceStore, *, rules: QualityRules | None = None, classes: Sequence[str] | None = None,
    belief: Belief | None = None, seed: int = 0,
) -> str:  # fmt: skip
    """For a terminal; ``classes`` and ``belief`` as of ``consensus_rows``."""
    learned = _learned(store, classes, belief)
    return in_words(findings_of(store, rules=rules, classes=classes, seed=seed)) + "".join(
        f"{printable(line)}\n" for each in learned for line in _consensus_lines(each)
    )


def report_json(
    store: PreferenceStore, *, rules: QualityRules | None = None, classes: Sequence[str] | None = None,
    belief: Belief | None = None, seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """For programs; a number that was not measured is null, next to the reason."""
    findings = to_dict(findings_of(store, rules=rules, classes=classes, seed=seed))
    return findings | {"dawid_skene": [_consensus_dict(learned) for learned in _learned(store, classes, belief)]}


def _learned(store: PreferenceStore, classes: Sequence[str] | None, belief: Belief | None) -> Sequence[Learned]:
    items = items_of(store)
    labels = (
        judgment.value["class"] for item in items if item.task.kind == "multiclass" for judgment in item.judgments
    )
    known = scale_of(store, labels, classes)
    return dawid_skene_of(items, guidelines=guidelines_of(store), classes=known, belief=belief)


def _consensus_lines(learned: Learned) -> Iterator[str]:
    """How far Dawid-Skene's probabilities carry, and what it takes each annotator for."""
    yield ""
    yield f"Dawid-Skene on {learned.what}, by which `rlhf feedback export --aggregate dawid-skene` brings judgments together"
    yield f"  {learned.tempering}"
    names, scale = learned.consensus.annotators, [str(value) for value in learned.consensus.scale]
    if learned.what == "pairs":
        return  # which completion is called the first is drawn for each pair: a table of that says nothing
    if len(scale) > MAX_CLASSES_SHOWN:
        yield f"  {len(scale)} classes are too many for tables of confusion here (--json has them)."
        return
    yield "  Confusion: share of answers (columns) where the likeliest truth is the row's."
    rows = []
    for name, table in list(zip(names, learned.consensus.confusion.tolist(), strict=True))[:MAX_PAIRS_SHOWN]:
        right = f"right {learned.consensus.reliability[name]:.2f}"
        for number, (truth, shares) in enumerate(zip(scale, table, strict=True)):
            rows.append(["" if number else str(name), "" if number else right, truth, *(f"{s:.2f}" for s in shares)])
    yield from _table(["", "", "truth", *scale], rows)
    if len(names) > MAX_PAIRS_SHOWN:
        yield f"  and {len(names) - MAX_PAIRS_SHOWN} more annotators (--json has them)"


def _consensus_dict(learned: Learned) -> dict[str, Any]:
    tables = zip(learned.consensus.annotators, learned.consensus.confusion.tolist(), strict=True)
    return {
        "what": learned.what,
        "scale": list(learned.consensus.scale),
        "prior": learned.consensus.prior.tolist(),
        "tempering": learned.tempering.to_dict(),
        "annotators": [
            {"annotator": str(name), "right": learned.consensus.reliability[name], "confusion": table}
            for name, table in tables
        ],
    }


def in_words(findings: Findings) -> str:
    """All of it, most important first; names come from files, and what would steer a terminal in them is escaped."""
    return "".join(f"{printable(line)}\n" for line in _lines(findings))


def estimate_words(estimate: Estimate, *, digits: int = 2) -> str:
    """Value with interval, or a dash."""
    if not estimate.measured:
        return "-"
    if not math.isfinite(estimate.low):
        return f"{estimate.value:.{digits}f}"
    return f"{estimate.value:.{digits}f} [{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def coverage_words(coverage: Coverage) -> list[str]:
    """How far the work has come, in two to four sentences."""
    lines = [
        f"{counted(coverage.num_tasks, 'task')} and {counted(coverage.num_gold, 'gold item')}; "
        f"{counted(coverage.num_judgments, 'judgment')} by {counted(coverage.num_annotators, 'annotator')}.",
        f"{coverage.num_complete:,} {'has' if coverage.num_complete == 1 else 'have'} the {counted(coverage.overlap, 'judgment')} wanted, "
        f"{coverage.num_started} some, {coverage.num_untouched} none.",
    ]
    if coverage.num_skipped:
        left = coverage.num_left_to_newcomers + coverage.num_left_to_nobody
        who = "everybody who has begun" if coverage.newcomers else "everybody here"
        lines.append(f"Skipped and still wanting judgments: {coverage.num_skipped}, of which {left} by {who}.")
    if coverage.flags or coverage.num_comments:
        flags = ", ".join(f"{name} {count}" for name, count in sorted(coverage.flags.items())) or "none"
        lines.append(f"Flags: {flags}. Comments: {coverage.num_comments}.")
    return lines


def leaning_words(first_frac: Estimate) -> str:
    """What the share of wins of the first position says."""
    if not first_frac.measured:
        return f"not measured: {first_frac.reason}."
    leans = not first_frac.low <= 0.5 <= first_frac.high
    verdict = "annotators lean to a position" if leans else "no leaning is visible"
    return f"what stood first won {estimate_words(first_frac)} of decided comparisons; {verdict}."


def alpha_words(question_agreement: QuestionAgreement) -> str:
    """How far alpha carries, by Krippendorff's own thresholds: what its lower end can be relied on for."""
    alpha, tentative = question_agreement.alpha, LEVELS[-1][0]
    if not alpha.measured:
        return f"not measured: {alpha.reason}"
    if not math.isfinite(alpha.low):
        return f"not judged: {alpha.reason}"
    too_low = (
        "too low to build on one judgment"
        if alpha.high < tentative
        else f"not shown to be enough: it may lie under {tentative:g}"
    )
    return next((words for least, words in LEVELS if alpha.low >= least), too_low)


def divided_words(item: DividedItem) -> str:
    """Who said what."""
    where = item.task + (f" ({', '.join(map(str, item.part))})" if item.part else "")
    return f"{where}: {', '.join(f'{name} {value}' for name, value in item.answers.items())}"


def to_dict(findings: Findings) -> dict[str, Any]:
    """What JSON can hold."""
    return {
        "schema": SCHEMA,
        "coverage": asdict(findings.coverage),
        "annotators": [_annotator_dict(quality) for quality in findings.annotators],
        "agreement": [
            {
                "question": agreement.question.name,
                "scale": list(agreement.question.scale),
                "metric": "ordinal" if agreement.question.is_ordered else "nominal",
                "num_items": agreement.num_items,
                "num_compared": agreement.num_compared,
                "same": agreement.same.to_dict(),
                "krippendorff_alpha": agreement.alpha.to_dict(),
                "fleiss_kappa": agreement.fleiss.to_dict(),
                "cohen_kappa": [
                    {"annotators": [pair.first, pair.second], **pair.kappa.to_dict()} for pair in agreement.pairs
                ],
                "divided": [{**asdict(item), "part": list(item.part)} for item in agreement.divided],
            }
            for agreement in findings.agreement
        ],
        "first_frac": findings.first_frac.to_dict(),
        "rules": asdict(findings.rules),
        "notes": list(findings.notes),
    }


def _lines(findings: Findings) -> Iterator[str]:
    yield from coverage_words(findings.coverage)
    yield from (f"! {note}" for note in findings.notes)
    if not findings.annotators:
        return
    yield ""
    yield "Annotators"
    yield from _table(
        ["", "judged", "agreement", "gold", "s/task", "quick", "first", "longer", "drift", "qualified"],
        [_annotator_cells(quality) for quality in findings.annotators],
    )
    for quality in findings.annotators:
        if quality.unqualified_because:
            yield f"  {quality.annotator}: {'; '.join(quality.unqualified_because)}."
        if quality.leans_to_position:
            yield f"  {quality.annotator} leans to a position: the first won {estimate_words(quality.first_frac)}."
    yield (
        "  agreement: with the majority of the others; quick: share under "
        f"{findings.rules.too_quick_seconds:g} s; first, longer: share won by what stood first, by the longer text; drift: "
        "agreement later less earlier. Brackets: 95 %."
    )
    yield ""
    yield f"Position: {leaning_words(findings.first_frac)}"
    for question in findings.agreement:
        yield ""
        yield from _question_lines(question)


def _question_lines(agreement: QuestionAgreement) -> Iterator[str]:
    yield f"Agreement on {agreement.question.name}: {agreement.num_compared} of {counted(agreement.num_items, 'item')} judged by two or more"
    if not agreement.num_compared:
        return
    metric = "ordinal" if agreement.question.is_ordered else "nominal"
    yield f"  Krippendorff's alpha ({metric})  {estimate_words(agreement.alpha)}  {alpha_words(agreement)}"
    fleiss = (
        estimate_words(agreement.fleiss) if agreement.fleiss.measured else f"not measured: {agreement.fleiss.reason}"
    )
    yield f"  Fleiss' kappa  {fleiss}"
    yield f"  equal answers  {estimate_words(agreement.same)}"
    weighted = ", weighted" if agreement.question.is_ordered else ""
    for pair in islice(agreement.pairs, MAX_PAIRS_SHOWN):
        words = estimate_words(pair.kappa) if pair.kappa.measured else "not measured"
        words += f" ({pair.kappa.reason})" if pair.kappa.reason else ""
        yield f"  Cohen's kappa{weighted}, {pair.first} and {pair.second}  {words}  on {counted(pair.kappa.n, 'task')}"
    if len(agreement.pairs) > MAX_PAIRS_SHOWN:
        yield f"  and {len(agreement.pairs) - MAX_PAIRS_SHOWN} more pairs (--json has them)"
    if not agreement.pairs:
        yield f"  Cohen's kappa  not measured: no two annotators share {MIN_SHARED} tasks"
    if agreement.divided:
        yield "  Most divided:"
        yield from (f"    {divided_words(item)}" for item in agreement.divided)


def _annotator_cells(annotator_quality: AnnotatorQuality) -> list[str]:
    return [
        str(annotator_quality.annotator),
        str(annotator_quality.num_judgments),
        estimate_words(annotator_quality.agreement),
        estimate_words(annotator_quality.gold_accuracy),
        f"{annotator_quality.seconds:.0f}" if math.isfinite(annotator_quality.seconds) else "-",
        f"{percentage(annotator_quality.too_quick_frac, 0)}"
        if math.isfinite(annotator_quality.too_quick_frac)
        else "-",
        estimate_words(annotator_quality.first_frac),
        estimate_words(annotator_quality.longer_frac),
        estimate_words(annotator_quality.drift),
        "yes" if annotator_quality.qualified else "no",
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [
            cell.ljust(w) if n == 0 else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def _annotator_dict(quality: AnnotatorQuality) -> dict[str, Any]:
    return {
        "annotator": str(quality.annotator),
        "num_judgments": quality.num_judgments,
        "agreement": quality.agreement.to_dict(),
        "gold_accuracy": quality.gold_accuracy.to_dict(),
        "median_seconds": finite_or_none(quality.seconds),
        "too_quick_frac": finite_or_none(quality.too_quick_frac),
        "first_frac": quality.first_frac.to_dict(),
        "longer_frac": quality.longer_frac.to_dict(),
        "drift": quality.drift.to_dict(),
        "qualified": quality.qualified,
        "unqualified_because": list(quality.unqualified_because),
    }
