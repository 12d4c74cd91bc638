"""What a server of ours answered, kept by the completion's id, so that feedback which names only the id has its texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from rlhf.store.database import reading, write
from rlhf.store.pseudonyms import Pseudonym
from rlhf.store.table_rows import as_json
from rlhf.store.tables import ServedCompletionRow

OWN_PROGRAM = "serve"
"""Who sends feedback to a server that asks for no keys; with keys it is the program that a key belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCompletion:
    """A completion as it was sent."""

    completion_id: str
    """Of the request; its completions have one each in ``index``."""
    index: int
    program: str
    """Whose key asked for it."""
    user: str
    """A pseudonym (``served_user``)."""
    model: str
    """The name that answered."""
    weights: str
    """Their fingerprint."""
    version: int | None
    """Of the weights in the registry; None for weights that are in none."""
    prompt: Any
    """A text or a list of messages, as the model was given it."""
    completion: str
    finish_reason: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """With the seed."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template was given besides the messages."""
    answered_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    consent: bool | None = None
    """Whether its user agreed that it is kept and trained on; None where the request did not say."""


def served_user(pseudonym: Pseudonym, program: str, user: str) -> str:
    """What a store calls a user of a program that asks a server of ours; `rlhf feedback forget` finds them by it."""
    return pseudonym(f"{OWN_PROGRAM}:{program}", user)


def keep_completions(engine: Engine, completions: Sequence[ServedCompletion]) -> None:
    """Keep completions, all or none; when this returns, they are on disk.

    Raises:
        DataError: A text can't be kept.
        StorageError: The store can't be written to.
    """
    rows = [
        {
            "completion_id": one.completion_id, "place": one.index, "program": one.program, "user": one.user, "model": one.model,
            "weights": one.weights, "version": one.version, "prompt": as_json(one.prompt, what="The prompt"),
            "completion": as_json(one.completion, what="The completion"), "finish_reason": one.finish_reason,
            "sampling": as_json(dict(one.sampling), what="The sampling"), "answered_at": one.answered_at,
            "template_kwargs": as_json(dict(one.template_kwargs), what="chat_template_kwargs"), "consent": one.consent,
        }
        for one in completions
    ]  # fmt: skip
    write(engine, lambda session: session.add_all(ServedCompletionRow(**row) for row in rows))


def served_completion(engine: Engine, completion_id: str, index: int, *, program: str) -> ServedCompletion | None:
    """One that this program asked for; None where it is not known, or another's."""
    query = sa.select(ServedCompletionRow).where(
        ServedCompletionRow.completion_id == completion_id,
        ServedCompletionRow.place == index,
        ServedCompletionRow.program == program,
    )
    with reading(engine) as session:
        row = session.scalar(query)
        return None if row is None else _served(row)


def _served(row: ServedCompletionRow) -> ServedCompletion:
    return ServedCompletion(
        completion_id=row.completion_id, index=row.place, program=row.program, user=row.user, model=row.model, weights=row.weights,
        version=row.version, prompt=row.prompt, completion=row.completion, finish_reason=row.finish_reason, sampling=row.sampling,
        template_kwargs=row.template_kwargs, answered_at=row.answered_at, consent=row.consent,
    )  # fmt: skip


def programs_served(engine: Engine) -> set[str]:
    """Whose keys asked for completions that are kept."""
    with reading(engine) as session:
        return set(session.scalars(sa.select(ServedCompletionRow.program).distinct()))


def drop_old(engine: Engine, *, days: float, now: datetime | None = None) -> int:
    """Delete completions that were answered longer ago; events that were sent of them keep their own copy of the texts.

    Returns:
        How many there were.
    """
    before = (now or datetime.now(UTC)) - timedelta(days=days)

    def drop(session: Session) -> int:
        done = session.execute(sa.delete(ServedCompletionRow).where(ServedCompletionRow.answered_at < before))
        return int(done.rowcount)  # type: ignore[attr-defined]

    return write(engine, drop)
