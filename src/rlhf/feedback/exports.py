"""What leaves a store: which judgements, of whom, as they were made or brought together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlhf.data.words import counted
from rlhf.errors import DataError, look_up
from rlhf.feedback.guidelines import AnnotationGuideline, guidelines_of
from rlhf.feedback.items import Item, items_of
from rlhf.feedback.quality import AnnotatorQualityControl, QualityRules
from rlhf.feedback.readings import verdicts_of
from rlhf.feedback.store.values import TaskKind

if TYPE_CHECKING:
    from rlhf.feedback.store import PreferenceStore


@dataclass(slots=True)
class Selection:
    """Items that leave, and what was left behind."""

    items: list[Item]
    guidelines: Sequence[AnnotationGuideline]
    unqualified: dict[str, str] = field(default_factory=dict)
    """Annotator to why; their judgements stay behind."""
    num_left_behind: int = 0
    """Judgements of theirs."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Kinds of the items that leave."""

    @property
    def num_judgements(self) -> int:
        """Of all items that leave."""
        return sum(len(item.said) for item in self.items)


def select(
    store: PreferenceStore,
    *,
    kind: TaskKind | str | None = None,
    batch: str | None = None,
    only_qualified: bool = False,
    rules: QualityRules | None = None,
) -> Selection:
    """Items of a store, in order.

    Args:
        store: Where they are.
        kind: Only tasks of this kind.
        batch: Only tasks of this batch.
        only_qualified: Only judgements of annotators whom the rules qualify; quality is measured over the whole store.
        rules: What qualifies.

    Raises:
        DataError: The store has no such task, or nobody is qualified.
    """
    items = items_of(store)
    wanted = None if kind is None else TaskKind(look_up({k.value: k for k in TaskKind}, str(kind), kind="kind of task"))
    chosen = [i for i in items if wanted in (None, i.task.kind) and batch in (None, i.task.batch)]
    if not chosen:
        kinds = ", ".join(sorted({str(item.task.kind) for item in items})) or "none"
        batches = ", ".join(sorted({item.task.batch or "(none)" for item in items})) or "none"
        raise DataError(f"The store has no task to export; its kinds are: {kinds}; its batches: {batches}.")
    selection = Selection(items=chosen, guidelines=guidelines_of(store))
    if only_qualified:
        _leave_unqualified(selection, store, rules)
    selection.kinds = Counter(str(item.task.kind) for item in selection.items)
    return selection


def _leave_unqualified(selection: Selection, store: PreferenceStore, rules: QualityRules | None) -> None:
    reviews = AnnotatorQualityControl(rules).review(verdicts_of(store.judgements()))
    qualified = {str(review.annotator) for review in reviews if review.qualified}
    selection.unqualified = {
        str(review.annotator): "; ".join(review.unqualified_because) for review in reviews if not review.qualified
    }
    before = selection.num_judgements
    selection.items = [
        Item(task=item.task, said=tuple(said for said in item.said if said.annotator in qualified))
        for item in selection.items
    ]
    selection.num_left_behind = before - selection.num_judgements
    if before and not selection.num_judgements:
        first = next(f"{name}: {why}" for name, why in selection.unqualified.items())
        raise DataError(
            f"Of {counted(len(reviews), 'annotator')} none is qualified, so nothing would be left ({first}). See `rlhf feedback report`, "
            "or lower the bar (--min-agreement, --min-gold-accuracy, --min-items)."
        )
