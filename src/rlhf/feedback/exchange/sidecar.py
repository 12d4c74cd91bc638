"""What another tool has no place for, carried through it next to the task and taken back on import.

The tool's own fields always win: answers that somebody changed or added there count, and only what the tool can't say (ties
in a ranking, the order on the screen, model names) comes from here. A text that went out as a string and came back changed
is the changed one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.data.contracts import OLD_LABEL_PROBABILITY, Text
from rlhf.errors import DataError
from rlhf.store.items import ItemJudgment, moment_of
from rlhf.store.values import Response, Task, TaskKind, label_probability_of

NAME = "rlhf"
"""The key it travels under."""


def task_to_dict(task: Task) -> dict[str, Any]:
    """All of a task but its texts, and those too that are dialogues."""
    full: dict[str, Any] = {
        "id": task.id, "kind": str(task.kind), "gold": task.gold, "priority": task.priority, "batch": task.batch,
        "columns": dict(task.columns),
        "responses": [
            {"model": r.model, "sampling": dict(r.sampling), "columns": dict(r.columns)} for r in task.responses
        ],
        "prompt": task.prompt if isinstance(task.prompt, list) else None,
        "texts": [r.text if isinstance(r.text, list) else None for r in task.responses],
    }  # fmt: skip
    return full


def task_from_dict(kept: Mapping[str, Any], prompt: Text, texts: Sequence[Text]) -> Task:
    """The task again.

    Args:
        kept: What ``task_to_dict`` made.
        prompt: As the tool has it; where a dialogue went out as its rendering, the dialogue is taken from ``kept``.
        texts: The same of the completions.

    Raises:
        DataError: It was changed into something else.
    """
    try:
        lineage = kept["responses"]
        dialogues = kept["texts"]
        if not len(lineage) == len(dialogues) == len(texts):
            raise DataError(
                f"Task {kept['id']!r} came back with {len(texts)} completions, and {len(lineage)} went out."
            )
        return Task(
            id=str(kept["id"]), kind=TaskKind(kept["kind"]), prompt=_back(prompt, kept["prompt"]), gold=kept["gold"],
            priority=float(kept["priority"]), batch=str(kept["batch"]), columns=dict(kept["columns"]),
            responses=[
                Response(text=_back(text, dialogue), model=one["model"], sampling=one["sampling"], columns=one["columns"])
                for text, dialogue, one in zip(texts, dialogues, lineage, strict=True)
            ],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as err:
        if isinstance(err, DataError):
            raise
        raise DataError(
            f"What was kept under {NAME!r} has been changed ({type(err).__name__}: {err}); export it again."
        ) from None


def _back(text: Text, dialogue: Any) -> Text:
    return dialogue if isinstance(dialogue, list) and text in (rendered(dialogue), dialogue) else text


def rendered(text: Text) -> str:
    """A dialogue as one text, for tools that show nothing else."""
    if isinstance(text, str):
        return text
    return "\n\n".join(f"{turn.get('role')}: {turn.get('content') or ''}" for turn in text)


def judgment_to_dict(judgment: ItemJudgment) -> dict[str, Any]:
    """All of a judgment."""
    return {
        "annotator": judgment.annotator, "value": dict(judgment.value), "order": None if judgment.order is None else list(judgment.order),
        "comment": judgment.comment, "flags": list(judgment.flags), "spans": [dict(span) for span in judgment.spans],
        "label_probability": judgment.label_probability, "seconds": judgment.seconds, "diff_viewed": judgment.diff_viewed,
        "trace": None if judgment.trace is None else dict(judgment.trace),
        "made_at": None if judgment.made_at is None else judgment.made_at.isoformat(),
    }  # fmt: skip


def judgment_from_dict(
    kept: Mapping[str, Any], *, annotator: str, value: Mapping[str, Any], comment: str, where: str
) -> ItemJudgment:
    """A judgment again, with the value and the comment that the tool holds now.

    A ranking that a tool made strict keeps its ties, as long as the strict order is one of those that the ties allow.
    """
    if "ranks" in value and (old := kept.get("value", {}).get("ranks")) and _allows(old, value["ranks"]):
        value = {"ranks": list(old)}
    order = kept.get("order")
    return ItemJudgment(
        annotator=str(kept.get("annotator") or annotator), value=value, comment=comment,
        order=None if order is None else tuple(order), flags=tuple(kept.get("flags") or ()),
        spans=tuple(kept.get("spans") or ()), label_probability=_label_probability(kept), seconds=kept.get("seconds"),
        made_at=moment_of(kept.get("made_at"), where), diff_viewed=kept.get("diff_viewed"), trace=kept.get("trace"),
    )  # fmt: skip


def _label_probability(kept: Mapping[str, Any]) -> float | None:
    """As kept today, or as files kept it that went out before it was a probability."""
    old = kept.get(OLD_LABEL_PROBABILITY)
    return kept.get("label_probability") if old is None else label_probability_of(old)


def strict_order(ranks: Sequence[int]) -> list[int]:
    """Places from best to worst; tied ones in the task's order."""
    return sorted(range(len(ranks)), key=lambda place: ranks[place])


def ranks_of_order(places: Sequence[int]) -> list[int]:
    """The other way round: each place's rank."""
    ranks = [0] * len(places)
    for rank, place in enumerate(places, 1):
        ranks[place] = rank
    return ranks


def _allows(tied: Sequence[int], strict: Sequence[int]) -> bool:
    """Whether a strict ranking is a tied one with its ties broken in the task's order, as ``strict_order`` breaks them."""
    return len(tied) == len(strict) and ranks_of_order(strict_order(tied)) == list(strict)
