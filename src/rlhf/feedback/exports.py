"""What leaves a store: which judgments, of whom, as they were made or brought together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.config.guidelines import AnnotationGuideline
from rlhf.data.message_text import counted
from rlhf.errors import ConfigError, DataError, look_up
from rlhf.feedback.classes import scale_of
from rlhf.feedback.quality import AnnotatorQualityControl, QualityRules
from rlhf.feedback.readings import verdicts_of
from rlhf.feedback.simulated import simulated_annotators, simulated_words
from rlhf.feedback.store_guidelines import guidelines_of
from rlhf.store.items import Item, items_of
from rlhf.store.values import TaskKind

if TYPE_CHECKING:
    from rlhf.store import PreferenceStore

EVENT_FILES = {TaskKind.PAIRWISE: "pairs", TaskKind.BINARY: "verdicts"}
"""What rows of events teach, as the kind of task that asks for it, and the name of their file where there are others."""


@dataclass(slots=True)
class Selection:
    """Items that leave, and what was left behind."""

    items: list[Item]
    guidelines: Sequence[AnnotationGuideline]
    classes: Sequence[str] | None = None
    """That labels of kind ``multiclass`` choose from; None where there is none."""
    unqualified: dict[str, str] = field(default_factory=dict)
    """Annotator to why; their judgments stay behind."""
    num_left_behind: int = 0
    """Judgments of theirs."""
    only_unqualified: frozenset[str] = frozenset()
    """Ids of tasks of which no other judgment is there."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Kinds of the items that leave."""
    simulated: str = ""
    """How many of the judgments that leave are simulated, in words; empty where none is."""

    @property
    def num_judgments(self) -> int:
        """Of all items that leave."""
        return sum(len(item.judgments) for item in self.items)

    def notes(self, *, with_unjudged: bool, aggregated: bool) -> list[str]:
        """What is left out because nobody judged it, or nobody who is qualified, in words.

        Args:
            with_unjudged: Tasks without a judgment are written, too.
            aggregated: Rows are one for each item, and gold items have none anyway.
        """
        bare = [i.task for i in self.items if not i.judgments and not (aggregated and i.task.gold is not None)]
        unqualified = sum(task.id in self.only_unqualified for task in bare)
        judged = f"{counted(unqualified, 'task')} that only annotators who are not qualified judged"
        notes = []
        if with_unjudged:
            if unqualified:
                notes.append(f"written without a judgment: {judged}.")
            empty = [task for task in bare if not task.prompt]
            why = "that nobody judged: their prompt is empty, and a row of it could not be imported again"
            if empty:
                notes.append(f"left out: {counted(len(empty), 'task')} {why} (the first: {empty[0].id!r}).")
            return notes
        if unqualified:
            notes.append(f"left out: {judged}.")
        if unjudged := len(bare) - unqualified:
            more = "" if aggregated else " (--unjudged writes them, too, to .jsonl or .json)"
            notes.append(f"left out: {counted(unjudged, 'task')} without a judgment{more}.")
        return notes


def select(
    store: PreferenceStore,
    *,
    kind: TaskKind | str | None = None,
    batch: str | None = None,
    only_qualified: bool = False,
    rules: QualityRules | None = None,
    classes: Sequence[str] | None = None,
    since: datetime | None = None,
) -> Selection:
    """Items of a store, in order.

    Args:
        store: Where they are.
        kind: Only tasks of this kind.
        batch: Only tasks of this batch.
        only_qualified: Only judgments of annotators whom the rules qualify; quality is measured over the whole store.
        rules: What qualifies.
        classes: That labels of kind ``multiclass`` choose from; see ``scale_of``.
        since: Only judgments that were made then or later, and only items that have one; quality is measured over the whole store.

    Raises:
        DataError: The store has no such task, or nobody is qualified.
        ConfigError: ``classes`` are given, and do not fit the labels.
    """
    items = items_of(store)
    wanted = None if kind is None else TaskKind(look_up({k.value: k for k in TaskKind}, str(kind), kind="kind of task"))
    chosen = [i for i in items if wanted in (None, i.task.kind) and batch in (None, i.task.batch)]
    if not chosen:
        kinds = ", ".join(sorted({str(item.task.kind) for item in items})) or "none"
        batches = ", ".join(sorted({item.task.batch or "(none)" for item in items})) or "none"
        raise DataError(f"The store has no task to export; its kinds are: {kinds}; its batches: {batches}.")
    if since is not None:
        newer = [
            replace(
                item, judgments=tuple(one for one in item.judgments if one.made_at is not None and one.made_at >= since)
            )
            for item in chosen
        ]
        chosen = [item for item in newer if item.judgments]
        if not chosen:
            raise DataError(f"The store has no judgment since {since.isoformat(timespec='minutes')}.")
    labels = (
        judgment.value["class"]
        for item in chosen
        if item.task.kind is TaskKind.MULTICLASS
        for judgment in item.judgments
    )
    selection = Selection(items=chosen, guidelines=guidelines_of(store), classes=scale_of(store, labels, classes))
    if only_qualified:
        _leave_unqualified(selection, store, rules)
    selection.kinds = Counter(str(item.task.kind) for item in selection.items)
    selection.simulated = simulated_words(
        (judgment.annotator for item in selection.items for judgment in item.judgments), simulated_annotators(store)
    )
    return selection


def _leave_unqualified(selection: Selection, store: PreferenceStore, rules: QualityRules | None) -> None:
    reviews = AnnotatorQualityControl(rules).review(verdicts_of(store.judgments()))
    qualified = {str(review.annotator) for review in reviews if review.qualified}
    selection.unqualified = {
        str(review.annotator): "; ".join(review.unqualified_because) for review in reviews if not review.qualified
    }
    before = selection.num_judgments
    selection.only_unqualified = frozenset(
        item.task.id
        for item in selection.items
        if item.judgments and not any(s.annotator in qualified for s in item.judgments)
    )
    selection.items = [
        Item(
            task=item.task, judgments=tuple(judgment for judgment in item.judgments if judgment.annotator in qualified)
        )
        for item in selection.items
    ]
    selection.num_left_behind = before - selection.num_judgments
    if before and not selection.num_judgments:
        first = next(f"{name}: {why}" for name, why in selection.unqualified.items())
        raise DataError(
            f"Of {counted(len(reviews), 'annotator')} none is qualified, so nothing would be left ({first}). See `rlhf feedback report`, "
            "or lower the bar (--min-agreement, --min-gold-accuracy, --min-items)."
        )


def files_of_events(
    output: Path, rows: Sequence[dict[str, Any]], *, kind: str | None = None
) -> dict[Path, list[dict[str, Any]]]:
    """Where rows of events go: a file of training data holds one kind of row, and thumbs are another kind than edits and votes.

    Where both are there and none was chosen, each kind has a file of its own next to the name that was given:
    ``votes.jsonl`` becomes ``votes.pairs.jsonl`` and ``votes.verdicts.jsonl``. Edits in addition to votes become comparisons, as
    votes are, which may be ties.

    Args:
        output: As it was asked for.
        rows: Of ``rows_of_events``.
        kind: ``pairwise`` or ``binary``: only rows of this kind, under the name as it was given.

    Raises:
        ConfigError: Events teach nothing of this kind.
        DataError: There are events, and none of this kind.
    """
    groups: dict[TaskKind, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(TaskKind.BINARY if "label" in row else TaskKind.PAIRWISE, []).append(row)
    if kind is not None:
        if kind not in EVENT_FILES:
            raise ConfigError(
                f"--kind is {kind!r}; events become pairwise rows (edits, votes) or binary ones (thumbs up and down)."
            )
        if rows and TaskKind(kind) not in groups:
            there = ", ".join(f"{counted(len(group), 'row')} of kind {name}" for name, group in groups.items())
            raise DataError(
                f"No event became a row of kind {kind}, so {output} was not written; what there is: {there}."
            )
        groups = {TaskKind(kind): groups.get(TaskKind(kind), [])}
    if any("preference" in row for row in groups.get(TaskKind.PAIRWISE, ())):
        groups[TaskKind.PAIRWISE] = [_as_comparison(row) for row in groups[TaskKind.PAIRWISE]]
    if len(groups) == 1:
        return {output: next(iter(groups.values()))}
    return {with_kind(output, EVENT_FILES[name]): group for name, group in groups.items()}


def _as_comparison(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with a chosen completion as a comparison that the first one won; others as they are."""
    if "chosen" not in row:
        return dict(row)
    new = {"chosen": "completion_a", "rejected": "completion_b"}
    for name in ("model", "weights", "version", "answered_at"):
        new |= {f"chosen_{name}": f"{name}_a", f"rejected_{name}": f"{name}_b"}
    return {**{new.get(name, name): value for name, value in row.items()}, "preference": "a"}


def with_kind(output: Path, what: str) -> Path:
    """``votes.jsonl.gz`` as ``votes.pairs.jsonl.gz``."""
    ending = "".join(output.suffixes[-2:]) if output.suffix == ".gz" else output.suffix
    return output.with_name(f"{output.name.removesuffix(ending)}.{what}{ending}")
