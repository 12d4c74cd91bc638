"""The owner's page: how far the work has come, whom to trust, what divides people.

    GET  /dashboard      as a page
    GET  /api/report     the same findings as JSON

Both are the owner's alone. What is shown is measured again when something was judged since, but not all the time: with
ten thousand tasks it takes seconds, in which annotators would wait.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, JSONResponse

from rlhf.feedback.quality import AnnotatorQuality
from rlhf.feedback.report import alpha_words, estimate_words, leaning_words, to_dict
from rlhf.feedback.statistics import Findings, findings_of
from rlhf.feedback.web.pages import page
from rlhf.formatting import percentage
from rlhf.store import Judgment, PreferenceStore, Task, TaskKind
from rlhf.store.assign import Skipped
from rlhf.store.database import reading
from rlhf.store.tables import SKIPPED, AnnotatorRow, AssignmentRow, JudgmentRow, TaskRow
from rlhf.web.auth import Visitor, owner, the_store, the_visitor

MIN_AGE_SECONDS = 5.0
"""Younger findings are shown again though something was judged since."""
REST = 10.0
"""And those younger than so many times what measuring them took: it may use a tenth of the server's time."""
MAX_REMARKS = 30
"""Comments and flags shown, newest first."""
MAX_SNIPPET = 160
"""Characters of a prompt or a completion that divides people."""

router = APIRouter(dependencies=[Depends(owner)])
Store = Annotated[PreferenceStore, Depends(the_store)]
Whoever = Annotated[Visitor, Depends(the_visitor)]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What was found, and when."""

    findings: Findings
    skipped: Skipped
    remarks: Sequence[Judgment]
    """Judgments with a comment or a flag."""
    tasks: dict[str, Task]
    """By id, of those that divide people."""
    at: datetime


class Desk:
    """Keeps the last view; one request measures, the others wait for it.

    Args:
        store: What is measured.
        clock: Seconds.
    """

    def __init__(self, store: PreferenceStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._view: View | None = None
        self._stamp: tuple[Any, ...] = ()
        self._fresh_until = 0.0

    def view(self) -> View:
        """The last view where it is true or young, a new one else."""
        with self._lock:
            stamp = _stamp(self._store)
            if self._view is None or (stamp != self._stamp and self._clock() >= self._fresh_until):
                began = self._clock()
                self._view, self._stamp = _look(self._store), stamp
                self._fresh_until = self._clock() + max(MIN_AGE_SECONDS, REST * (self._clock() - began))
            return self._view


def the_desk(request: Request, store: Store) -> Desk:
    """Of this app."""
    state = request.app.state
    if not hasattr(state, "desk"):
        state.desk = Desk(store)
    desk: Desk = state.desk
    return desk


@router.get("/dashboard", response_class=HTMLResponse)
def dashboard(request: Request, visitor: Whoever, desk: Annotated[Desk, Depends(the_desk)]) -> HTMLResponse:
    """For people."""
    view = desk.view()
    return page(
        request, visitor, "dashboard.html", view=view, findings=view.findings, words=estimate_words,
        alpha_words=alpha_words, leaning_words=leaning_words, percent=percent, declines=declines, snippet=snippet, judged=judged,
    )  # fmt: skip


@router.get("/api/report")
def report(desk: Annotated[Desk, Depends(the_desk)]) -> JSONResponse:
    """For programs."""
    view = desk.view()
    answer = {"at": view.at.isoformat(), "skipped": asdict(view.skipped), **to_dict(view.findings)}
    return JSONResponse(answer, headers={"Cache-Control": "no-store"})


def percent(share: float) -> str:
    """``12 %``, or a dash for what was not measured."""
    return percentage(share, 0) if math.isfinite(share) else "–"


def declines(annotator_quality: AnnotatorQuality) -> bool:
    """Whether somebody agrees with the others less than they did. Like a leaning to a position it is not a rule of qualification."""
    return annotator_quality.drift.measured and annotator_quality.drift.high < 0


def _stamp(store: PreferenceStore) -> tuple[Any, ...]:
    """Differs once anything was judged, skipped, taken back or added, or somebody was invited, began or was shut out."""
    with reading(store.engine) as session:
        newest = session.scalar(sa.select(sa.func.max(JudgmentRow.number)))
        tasks = session.scalar(sa.select(sa.func.count()).select_from(TaskRow))
        skips = session.scalar(sa.select(sa.func.count()).where(AssignmentRow.state == SKIPPED))
        people = sa.select(sa.func.sum(AnnotatorRow.invitations), sa.func.count().filter(AnnotatorRow.active))
        invited, active = session.execute(people).one()
        begun = session.scalar(sa.select(sa.func.count(AssignmentRow.annotator.distinct())))
    return newest, tasks, skips, invited, active, begun


def _look(store: PreferenceStore) -> View:
    findings = findings_of(store)
    shown = {item.task for question in findings.agreement for item in question.divided}
    judgments = store.judgments()
    remarks = [judgment for judgment in reversed(judgments) if judgment.comment or judgment.flags][:MAX_REMARKS]
    tasks = {judgment.task.id: judgment.task for judgment in judgments if judgment.task.id in shown}
    return View(findings=findings, skipped=store.skipped(), remarks=remarks, tasks=tasks, at=datetime.now(UTC))


def judged(task: Task, part: Sequence[Hashable]) -> list[tuple[str, str]]:
    """What the answers to a part of a task are about: what they call a completion, and how it begins.

    Of a comparison ``a`` and ``b``, which of a ranking are two of several; what is judged by itself has no name.
    """
    texts = [snippet(response.text) for response in task.responses]
    match task.kind:
        case TaskKind.RATING | TaskKind.BINARY | TaskKind.MULTICLASS:
            return [("", texts[int(str(part[1])) if part else 0])]
        case TaskKind.GRADED5 | TaskKind.GRADED7:
            return [("above 0", texts[0]), ("below 0", texts[1])]
    first, second = (int(str(place)) for place in part) if part else (0, 1)
    return [("a", texts[first]), ("b", texts[second])]


def snippet(said: Any) -> str:
    """How a text begins, on one line; of a conversation, its last turn."""
    text = " ".join(str(said if isinstance(said, str) else said[-1].get("content")).split())
    return text if len(text) <= MAX_SNIPPET else f"{text[: MAX_SNIPPET - 1]}…"
