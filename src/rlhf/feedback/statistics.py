"""What is found in a store: coverage, annotators, agreement, and what divides them. ``rlhf.feedback.report`` says it.

Agreement leaves gold items out: they are chosen to be clear,
and would flatter it. Intervals draw tasks again, since the answers about one task belong together. What could not be
measured is said with its reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlhf.data.message_text import counted, listed
from rlhf.evaluation.intervals import Estimate, share_interval, unit_means
from rlhf.feedback.agreement import (
    Labels,
    agreement_estimate,
    cohen_kappa,
    coincidences,
    contingencies,
    fleiss_kappa,
    krippendorff_alpha,
    observed_agreement,
)
from rlhf.feedback.classes import scale_of
from rlhf.feedback.quality import AnnotatorQuality, AnnotatorQualityControl, QualityRules, Verdict
from rlhf.feedback.readings import Answer, Question, answers_of, classes_of, verdicts_of
from rlhf.feedback.simulated import simulated_annotators, simulated_words
from rlhf.seeds import derive_seed

if TYPE_CHECKING:
    from rlhf.store import Judgment, PreferenceStore

Array = NDArray[np.float64]
RESAMPLES = 1000
"""Of each interval: its ends then lie within a twentieth of its width of their limit, and a page stays quick."""
MIN_SHARED = 10
"""Tasks that two annotators must share before they are compared by themselves."""
MAX_PAIRS = 45
"""Pairs of annotators compared, those with most in common first: all of ten."""
MAX_DIVIDED = 10
"""Items shown that divide annotators most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How far the work has come."""

    num_tasks: int
    """Gold items apart."""
    num_gold: int
    gold_frac: float
    """Share of an annotator's tasks that are to be gold items."""
    overlap: int
    """Judgments wanted of each task."""
    num_complete: int
    """Tasks with as many."""
    num_started: int
    """Tasks with some, but fewer."""
    num_untouched: int
    num_skipped: int
    """Tasks that somebody skipped and that still want judgments."""
    num_left_to_newcomers: int
    """Of those: everybody who works here has skipped or judged them, and somebody who was invited has not begun."""
    num_left_to_nobody: int
    """Of those: the same, and nobody else was invited, so they are asked of nobody any more."""
    newcomers: tuple[str, ...]
    """Who was invited and has not begun."""
    num_judgments: int
    """That count: neither replaced nor taken back."""
    num_simulated: int
    """Of those judgments, what simulated annotators said."""
    num_annotators: int
    """Who judged anything."""
    num_comments: int
    flags: dict[str, int]
    """Flag -> judgments that carry it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairAgreement:
    """Cohen's kappa of two annotators; weighted by the squared distance where answers have an order."""

    first: str
    second: str
    kappa: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedItem:
    """An item on which people differ."""

    task: str
    part: tuple[Hashable, ...]
    answers: dict[str, Any]
    """Annotator -> answer."""
    disagreement: float
    """Mean over pairs of answers of 1 where they differ; on an ordered scale, of the squared share of its length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAgreement:
    """How far annotators agree on one question, gold items apart."""

    question: Question
    num_items: int
    num_compared: int
    """Items with two answers or more."""
    same: Estimate
    """Share of pairs of answers that are equal; chance included."""
    alpha: Estimate
    """Krippendorff's, ordinal where answers have an order, nominal else."""
    fleiss: Estimate
    pairs: list[PairAgreement]
    divided: list[DividedItem]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All of it."""

    coverage: Coverage
    annotators: list[AnnotatorQuality]
    agreement: list[QuestionAgreement]
    first_frac: Estimate
    """Share of decided comparisons won by what stood first, over all annotators; one half without a leaning."""
    rules: QualityRules
    notes: list[str]
    """What keeps numbers from being measured, and what to do."""

    @property
    def qualified(self) -> list[str]:
        """Names of those who meet every rule."""
        return [str(quality.annotator) for quality in self.annotators if quality.qualified]


def findings_of(
    store: PreferenceStore,
    *,
    rules: QualityRules | None = None,
    classes: Sequence[str] | None = None,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Findings:
    """Measure everything.

    Args:
        store: Read once; not changed.
        rules: What qualifies an annotator.
        classes: That labels of kind ``multiclass`` choose from; see ``scale_of``.
        seed: Of the bootstrap.
        resamples: Draws of tasks behind each interval.
    """
    rules = rules or QualityRules()
    judgments = store.judgments()
    verdicts = list(verdicts_of(judgments))
    by_question: dict[Question, list[Answer]] = defaultdict(list)
    known = scale_of(store, classes_of(judgments), classes)
    for answer in answers_of((j for j in judgments if j.task.gold is None), known):
        by_question[answer.question].append(answer)
    agreement = [
        question_agreement(question, answers, seed=derive_seed(seed, "agreement", question.name), resamples=resamples)
        for question, answers in by_question.items()
    ]
    simulated = simulated_annotators(store)
    coverage = _coverage(store, judgments, simulated)
    made_up = simulated_words((judgment.annotator for judgment in judgments), simulated)
    return Findings(
        coverage=coverage,
        annotators=AnnotatorQualityControl(rules).review(verdicts),
        agreement=agreement,
        first_frac=_first_frac(verdicts),
        rules=rules,
        notes=[*([made_up] if made_up else []), *_notes(coverage, agreement, verdicts)],
    )


def question_agreement(
    question: Question, answers: Sequence[Answer], *, seed: int, resamples: int = RESAMPLES
) -> QuestionAgreement:
    """Every coefficient that the answers to one question allow."""
    labels = Labels.of([(a.item, a.annotator, a.value) for a in answers], scale=question.scale)
    counts = labels.counts().sum(1)
    compared = np.flatnonzero(counts >= 2)
    tables = _by_task(coincidences(labels), [labels.item_names[item] for item in compared])
    metric = "ordinal" if question.is_ordered else "nominal"

    def estimate(coefficient: Callable[[Array], Array]) -> Estimate:
        return agreement_estimate(tables, coefficient, seed=seed, resamples=resamples)

    return QuestionAgreement(
        question=question,
        num_items=len(labels.item_names),
        num_compared=len(compared),
        same=estimate(observed_agreement),
        alpha=estimate(partial(krippendorff_alpha, metric=metric)),
        fleiss=_why_no_fleiss(question, counts[compared]) or estimate(fleiss_kappa),
        pairs=_pairs(labels, question, seed=seed, resamples=resamples),
        divided=_divided(question, answers),
    )


def _coverage(store: PreferenceStore, judgments: Sequence[Judgment], simulated: Collection[str]) -> Coverage:
    overlap = store.rules.overlap
    far, skipped = store.progress(), store.skipped()
    given = Counter(judgment.task.id for judgment in judgments if judgment.task.gold is None)
    complete = sum(count >= overlap for count in given.values())
    return Coverage(
        num_tasks=far.num_tasks,
        num_gold=far.num_gold,
        gold_frac=store.rules.gold_frac,
        overlap=overlap,
        num_complete=complete,
        num_started=len(given) - complete,
        num_untouched=far.num_tasks - len(given),
        num_skipped=skipped.num_waiting,
        num_left_to_newcomers=skipped.num_left_to_newcomers,
        num_left_to_nobody=skipped.num_left_to_nobody,
        newcomers=skipped.newcomers,
        num_judgments=len(judgments),
        num_simulated=sum(judgment.annotator in simulated for judgment in judgments),
        num_annotators=len({judgment.annotator for judgment in judgments}),
        num_comments=sum(bool(judgment.comment) for judgment in judgments),
        flags=dict(Counter(flag for judgment in judgments for flag in judgment.flags)),
    )


def _task_of(item: Hashable) -> Hashable:
    assert isinstance(item, tuple), f"items are named (task, part ...), got {item!r}"
    return item[0]


def _by_task(tables: Array, items: Sequence[Hashable]) -> Array:
    """[tasks, k, k]: sums of the tables of each task's items."""
    number: dict[Hashable, int] = {}
    places = [number.setdefault(_task_of(item), len(number)) for item in items]
    sums = np.zeros((len(number), *tables.shape[1:]))
    np.add.at(sums, places, tables)
    return sums


def _why_no_fleiss(question: Question, counts: Array) -> Estimate | None:
    if question.is_ordered:
        return Estimate.missing("answers have an order, which Fleiss' kappa ignores; see alpha")
    if len(counts) and counts.min() != counts.max():
        return Estimate.missing(f"items have {counts.min():.0f} to {counts.max():.0f} judgments; alpha allows for that")
    return None


def _pairs(labels: Labels, question: Question, *, seed: int, resamples: int) -> list[PairAgreement]:
    items = {
        name: set(labels.items[labels.annotators == number].tolist())
        for number, name in enumerate(labels.annotator_names)
    }
    shared = {
        pair: len({_task_of(labels.item_names[item]) for item in items[pair[0]] & items[pair[1]]})
        for pair in combinations(labels.annotator_names, 2)
    }
    most = sorted((pair for pair, count in shared.items() if count >= MIN_SHARED), key=lambda pair: -shared[pair])
    kappa = partial(cohen_kappa, weights="quadratic" if question.is_ordered else "none")
    pairs = []
    for first, second in most[:MAX_PAIRS]:
        mine = labels.items[labels.annotators == labels.annotator_names.index(first)].tolist()
        both = [labels.item_names[item] for item in mine if item in items[second]]
        tables = _by_task(contingencies(labels, first, second), both)
        own = derive_seed(seed, "cohen", str(first), str(second))
        estimate = agreement_estimate(tables, kappa, seed=own, resamples=resamples)
        pairs.append(PairAgreement(first=str(first), second=str(second), kappa=estimate))
    return pairs


def _divided(question: Question, answers: Sequence[Answer]) -> list[DividedItem]:
    by_item: dict[tuple[Hashable, ...], list[Answer]] = defaultdict(list)
    for answer in answers:
        by_item[answer.item].append(answer)
    place = {value: number for number, value in enumerate(question.scale)}
    longest = len(question.scale) - 1

    def distance(one: Answer, other: Answer) -> float:
        if question.is_ordered:
            return ((place[one.value] - place[other.value]) / longest) ** 2
        return float(one.value != other.value)

    divided = []
    for given in by_item.values():
        distances = [distance(*pair) for pair in combinations(given, 2)]
        if any(distances):
            divided.append(
                DividedItem(
                    task=given[0].task, part=given[0].part, answers={a.annotator: a.value for a in given},
                    disagreement=sum(distances) / len(distances),
                )
            )  # fmt: skip
    return sorted(divided, key=lambda item: (-item.disagreement, -len(item.answers)))[:MAX_DIVIDED]


def _first_frac(verdicts: Sequence[Verdict]) -> Estimate:
    decided = [v for v in verdicts if v.value in ("a", "b") and v.shown_first is not None]
    if not decided:
        return Estimate.missing("no comparison was decided of which it is known what stood first")
    units = [_task_of(v.item) for v in decided]
    return share_interval(unit_means([float(v.value == v.shown_first) for v in decided], units))


def _notes(coverage: Coverage, agreement: Sequence[QuestionAgreement], verdicts: Sequence[Verdict]) -> list[str]:
    notes = []
    if coverage.num_left_to_nobody:
        notes.append(
            f"{counted(coverage.num_left_to_nobody, 'task')} will not be finished: everybody here has skipped or judged them, and they "
            "still want judgments. Invite somebody else, or look whether they can be judged at all."
        )
    if coverage.num_left_to_newcomers:
        notes.append(
            f"Left to those who were invited and have not begun ({listed(coverage.newcomers)}): "
            f"{counted(coverage.num_left_to_newcomers, 'task')}, skipped or judged by everybody else here. If they don't come, invite "
            "somebody else."
        )
    if not coverage.num_judgments:
        return [*notes, "Nothing was judged yet."]
    if not any(question.num_compared for question in agreement):
        notes.append(f"No task was judged by two people, so agreement can't be measured; {_why_alone(coverage)}.")
    if not any(verdict.gold is not None for verdict in verdicts):
        notes.append(_why_no_gold(coverage))
    if all(verdict.seconds is None for verdict in verdicts):
        notes.append("No times were kept: judgments that came from a file have none unless the file says them.")
    return notes


def _why_no_gold(coverage: Coverage) -> str:
    """What keeps gold items from having been judged, and what to do about it."""
    if not coverage.num_gold:
        return "No gold item was judged, so nobody can be qualified; mix in items whose right answer is known."
    there = counted(coverage.num_gold, "gold item")
    if not coverage.gold_frac:
        return (
            f"No gold item was judged, so nobody can be qualified: there {'is' if coverage.num_gold == 1 else 'are'} {there}, but none is "
            "handed out. Start `rlhf annotate` with --gold-frac 0.1."
        )
    return (
        f"Of {there} none was judged yet, so nobody can be qualified yet; they are mixed in at a share of {coverage.gold_frac:g} "
        "(--gold-frac)."
    )


def _why_alone(coverage: Coverage) -> str:
    """What keeps two people from having judged the same, and what to do about it."""
    if coverage.overlap < 2:
        return "ask for an overlap of 2 or more"
    wanted = f"{counted(coverage.overlap, 'judgment')} of each are wanted"
    if coverage.num_annotators == 1:
        return f"{wanted}, and one person has judged so far: invite others, or wait for them"
    return f"{wanted}, and those who judged had different tasks so far: let them go on"
