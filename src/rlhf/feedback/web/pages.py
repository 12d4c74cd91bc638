"""The labeling page and the calls it makes.

    GET  /                 the labeling page for an annotator, the dashboard for an owner
    GET  /label            the task in hand, or that nothing is left; an owner may judge, too
    GET  /guidelines       what to look for, with examples
    POST /api/next         a task as HTML; with ``beside``, the one after it, so that nobody waits
    POST /api/judgments   keep an answer: when this returns it is on disk
    POST /api/leave        give back what was handed to this page first and not begun, when the page is left
    POST /api/skip, /api/undo, /api/diff

The page knows completions by their places on the screen, A first; only here are they put into the order of the task. What
a template gets is a ``TaskView``, which holds no model's name, no column and no id: nothing to be biased by can leak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rlhf.config.guidelines import AnnotationGuideline
from rlhf.data.message_text import counted
from rlhf.errors import DataError
from rlhf.feedback.human_evaluation.criteria import OVERALL
from rlhf.feedback.store_guidelines import guidelines_of
from rlhf.feedback.web.differences import marked_turns
from rlhf.feedback.web.text import Turn, turns_of
from rlhf.store import Assignment, PreferenceStore, Submission, Task, TaskKind, check_value
from rlhf.store.table_rows import FLAGS, MAX_NUMBER, OPPOSITES
from rlhf.store.values import MAX_TEXT, label_probability_of
from rlhf.web.auth import Visitor, counted_apart, signed_in, the_store, the_visitor

HERE = Path(__file__).parent
LETTERS = "ABCDEF"
THEMES = ("light", "dark")
MAX_SPANS = 100
"""Highlights in one judgment."""
MAX_SECONDS = 7 * 86_400.0
"""A page in sight for longer than a week says nothing of how long somebody thought; ours sends no more (`task.js`)."""
MAX_HELD = 2
"""Tasks that a page holds: the one on the screen and the one that follows."""
GRADES: Mapping[TaskKind, Sequence[tuple[int, str]]] = {
    TaskKind.GRADED5: (
        (2, "A much better"), (1, "A better"), (0, "About the same"), (-1, "B better"), (-2, "B much better"),
    ),
    TaskKind.GRADED7: (
        (3, "A far better"), (2, "A better"), (1, "A slightly better"), (0, "About the same"),
        (-1, "B slightly better"), (-2, "B better"), (-3, "B far better"),
    ),
}  # fmt: skip
"""Left to right, as the completions stand."""
FLAG_LABELS = {
    "unsafe": "Unsafe", "unclear": "Unclear", "broken": "Broken", "personal_data": "Personal data",
    "all_good": "All good", "all_bad": "All bad",
}  # fmt: skip
"""Of two completions the last two say "both"; of one there is nothing that they would add."""
QUESTIONS = {
    TaskKind.PAIRWISE: "Which is better", TaskKind.GRADED5: "Which is better, and by how much",
    TaskKind.GRADED7: "Which is better, and by how much", TaskKind.RANKING: "In which order, best first",
    TaskKind.RATING: "How good, from 1 (worst) to 5 (best)", TaskKind.BINARY: "Is it good",
}  # fmt: skip
"""What is above the answers."""
LABEL_PROBABILITIES = ((0.5, "A guess"), (0.75, "Fairly sure"), (1.0, "Certain"))

templates = Environment(
    loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
templates.globals.update(label_probabilities=LABEL_PROBABILITIES, counted=counted, letters=LETTERS)
router = APIRouter()
Annotator = Annotated[str, Depends(signed_in)]
Store = Annotated[PreferenceStore, Depends(the_store)]
Whoever = Annotated[Visitor, Depends(the_visitor)]
Number = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
"""Of an assignment that need not be there any more; a larger one no database could look for."""


@dataclass(frozen=True, slots=True)
class TaskView:
    """All that a browser may know of an assignment."""

    assignment: int
    until: str
    """Until when it is theirs; tells one handing out from the next."""
    fresh: bool
    """Whether this page is the first to show it, and so the one that may give it back."""
    kind: str
    question: str
    prompt: Sequence[Turn]
    completions: Sequence[Sequence[Turn]]
    """As they stand on the screen."""
    grades: Sequence[tuple[int, str]]
    guidelines: Sequence[AnnotationGuideline]
    flags: Sequence[tuple[str, str]]


class Body(BaseModel):
    """What a page sends; a key that is not known is an error."""

    model_config = ConfigDict(extra="forbid")


class NextBody(Body):
    """``beside``: the assignment on the screen."""

    beside: Number | None = None


class SpanBody(Body):
    """A highlight. Places count the characters of one turn, with every line break as one."""

    completion: int = Field(ge=0)
    turn: int = Field(0, ge=0)
    start: int = Field(ge=0)
    end: int = Field(ge=1)
    text: str = Field(max_length=MAX_TEXT)
    reason: str = Field("", max_length=MAX_TEXT)


class JudgmentBody(Body):
    """An answer, in the order of the screen."""

    assignment: int
    key: str = Field(min_length=16, max_length=64, pattern=r"^[A-Za-z0-9-]+$")
    answer: dict[str, Any]
    comment: str = Field("", max_length=MAX_TEXT)
    flags: list[str] = Field(default_factory=list, max_length=len(FLAGS))
    spans: list[SpanBody] = Field(default_factory=list, max_length=MAX_SPANS)
    label_probability: float | None = Field(None, ge=0, le=1)
    seconds: float | None = Field(None, ge=0, le=MAX_SECONDS, allow_inf_nan=False)
    diff_viewed: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_an_older_page(cls, given: Any) -> Any:
        """A page that was open before the update still sends ``confidence``; its judgments are not lost."""
        if isinstance(given, dict) and "confidence" in given and "label_probability" not in given:
            old = given["confidence"]
            kept = {name: value for name, value in given.items() if name != "confidence"}
            is_number = isinstance(old, int | float) and not isinstance(old, bool)
            return kept | {"label_probability": label_probability_of(old) if is_number else old}
        return given


class AssignmentBody(Body):
    """Which one."""

    assignment: int


class HeldBody(Body):
    """An assignment, and until when the page was promised it."""

    assignment: Number
    until: AwareDatetime


class LeaveBody(Body):
    """What a page held when it was left."""

    held: list[HeldBody] = Field(max_length=MAX_HELD)


class UndoBody(Body):
    """``skipped``: the assignment whose skip is to be taken back; without it, the last judgment is.

    ``key`` is made once for each undo, so that one that is sent again takes back one judgment.
    """

    key: str = Field(min_length=16, max_length=59, pattern=r"^[A-Za-z0-9-]+$")
    skipped: int | None = None


@router.get("/")
def home(request: Request, visitor: Whoever, store: Store) -> Response:
    """Where people belong. An owner who comes to look takes no task out of anybody's hands."""
    if visitor.role == "owner":
        return RedirectResponse(f"{request.scope.get('root_path', '')}/dashboard", 303)
    return labeling_page(request, visitor, store)


@router.get("/label", response_class=HTMLResponse)
def labeling_page(request: Request, visitor: Whoever, store: Store) -> HTMLResponse:
    """The task in hand; its successor is asked for by the page.

    Raises:
        HTTPException: 503, for a browser that only guesses that somebody will open the page.
    """
    if "prefetch" in request.headers.get("sec-purpose", request.headers.get("purpose", "")):
        raise HTTPException(503, "A task is handed out to anyone who opens the page, not before.")
    assignment = store.next_task(visitor.name)
    return page(
        request, visitor, "label.html", store_name=store.own_id, guidelines=guidelines_of(store),
        task=None if assignment is None else task_html(store, assignment), progress=_progress(store, visitor.name),
    )  # fmt: skip


@router.get("/guidelines", response_class=HTMLResponse)
def guidelines_page(request: Request, visitor: Whoever, store: Store) -> HTMLResponse:
    """The guidelines alone, to print or to keep open next to the tasks."""
    return page(request, visitor, "guidelines.html", guidelines=guidelines_of(store))


@router.post("/api/next")
@counted_apart
async def next_task(request: Request, store: Store, annotator: Annotator, body: NextBody) -> dict[str, Any]:
    """The next task, or the one that follows ``beside``; None where there is none.

    A page that was left meanwhile can't give back what it never got, so that is done for it.
    """
    assignment = await run_in_threadpool(store.next_task, annotator, beside=body.beside)
    answer = await run_in_threadpool(_task_and_progress, store, annotator, assignment)
    if assignment is not None and assignment.fresh and await request.is_disconnected():
        await run_in_threadpool(store.leave, annotator, {assignment.number: assignment.expires_at})
    return answer


@router.post("/api/judgments")
def judge(store: Store, annotator: Annotator, body: JudgmentBody) -> dict[str, Any]:
    """Keep an answer. The same answer under its key is kept once, however often it is sent; another one under it is a 409."""
    assignment = store.assignment(body.assignment, annotator=annotator)
    sent = Submission(
        assignment=body.assignment, key=body.key,
        value=in_task_order(assignment.task.kind, body.answer, assignment.order), comment=body.comment.strip(),
        flags=body.flags, spans=[_span(assignment, span) for span in body.spans], label_probability=body.label_probability,
        seconds=body.seconds, diff_viewed=body.diff_viewed,
    )  # fmt: skip
    return {"judgment": store.submit(annotator, sent), "progress": _progress(store, annotator)}


@router.post("/api/leave")
def leave(store: Store, annotator: Annotator, body: LeaveBody) -> dict[str, int]:
    """Give back what a page held and nobody began. What was handed out again since stays."""
    return {"left": store.leave(annotator, {held.assignment: held.until for held in body.held})}


@router.post("/api/skip")
def skip(store: Store, annotator: Annotator, body: AssignmentBody) -> dict[str, Any]:
    """Leave a task to others."""
    store.skip(annotator, body.assignment)
    return {"progress": _progress(store, annotator)}


@router.post("/api/undo")
def undo(store: Store, annotator: Annotator, body: UndoBody) -> dict[str, Any]:
    """Take back a skip, or the last judgment, and show its task again; None where there is nothing to take back.

    Sent again with the same key it takes back nothing more.
    """
    back = store.undo(annotator, key=body.key) if body.skipped is None else store.unskip(annotator, body.skipped)
    return _task_and_progress(store, annotator, back)


@router.post("/api/diff")
def diff(store: Store, annotator: Annotator, body: AssignmentBody) -> dict[str, Any]:
    """The completions with the words and lines of code marked in which they differ: A from B, and each later one from A."""
    assignment = store.assignment(body.assignment, annotator=annotator)
    first, *others = _completions(assignment)
    if not others:
        raise DataError("This task has one completion; there is nothing to compare it with.")
    pairs = [marked_turns(first, other) for other in others]
    turns = templates.get_template("turns.html").module.turns  # type: ignore[attr-defined]
    return {"html": [str(turns(marked)) for marked in (pairs[0][0], *(right for _, right in pairs))]}


def page(request: Request, visitor: Visitor, template: str, **names: Any) -> HTMLResponse:
    """A template as a page, with what every page of somebody signed in needs."""
    theme = request.cookies.get("theme")
    html = templates.get_template(template).render(
        visitor=visitor, root=request.scope.get("root_path", ""), theme=theme if theme in THEMES else "", **names
    )
    return HTMLResponse(html, headers={"Cache-Control": "no-store"})


def in_task_order(kind: TaskKind, answer: Mapping[str, Any], order: Sequence[int]) -> dict[str, Any]:
    """A judgment's value in the order of the task.

    Args:
        kind: Of the task.
        answer: The same shape as the value, with completions as they stood on the screen.
        order: Place in the task of each completion on the screen.

    Raises:
        DataError: It is not an answer of this kind.
    """
    seen = check_value(kind, answer, num_responses=len(order), where="The answer")
    match kind:
        case TaskKind.PAIRWISE:
            flipped = {"a": "b", "b": "a", "tie": "tie"}
            return {"preference": seen["preference"] if order[0] == 0 else flipped[seen["preference"]]}
        case TaskKind.GRADED5 | TaskKind.GRADED7:
            return {"grade": seen["grade"] if order[0] == 0 else -seen["grade"]}
        case TaskKind.RANKING:
            return {"ranks": _unshuffled(seen["ranks"], order)}
        case TaskKind.RATING:
            return {"ratings": {name: _unshuffled(numbers, order) for name, numbers in seen["ratings"].items()}}
        case TaskKind.BINARY | TaskKind.MULTICLASS:
            return seen


def _unshuffled(numbers: Sequence[int], order: Sequence[int]) -> list[int]:
    return [number for _, number in sorted(zip(order, numbers, strict=True))]


def _span(assignment: Assignment, span: SpanBody) -> dict[str, Any]:
    """A highlight with its places in the text as it is kept, where a line break may be two characters."""
    completions = _completions(assignment)
    if span.completion >= len(completions) or span.turn >= len(completions[span.completion]):
        raise DataError(f"A highlight is in completion {span.completion}, turn {span.turn}; there is no such turn.")
    source = completions[span.completion][span.turn].source
    starts = [
        place for place, letter in enumerate(source) if not (letter == "\n" and source[place - 1 : place] == "\r")
    ]
    starts.append(len(source))
    if not span.start < span.end < len(starts):
        raise DataError(f"A highlight goes from {span.start} to {span.end}; the text has {len(starts) - 1} characters.")
    start, end = starts[span.start], starts[span.end]
    quote = source[start:end]
    if quote.replace("\r\n", "\n").replace("\r", "\n") != span.text:
        raise DataError(f"A highlight says {span.text[:40]!r}, and {quote[:40]!r} is written there; mark it again.")
    return {
        "completion": assignment.order[span.completion], "turn": span.turn, "start": start, "end": end, "text": quote,
        "reason": span.reason.strip(),
    }  # fmt: skip


def _completions(assignment: Assignment) -> list[list[Turn]]:
    return [turns_of(assignment.task.responses[place].text) for place in assignment.order]


def task_html(store: PreferenceStore, assignment: Assignment) -> str:
    """A task as a part of a page."""
    view = TaskView(
        assignment=assignment.number, until=assignment.expires_at.isoformat(), fresh=assignment.fresh,
        kind=str(assignment.task.kind), question=question_of(assignment.task),
        prompt=turns_of(assignment.task.prompt),
        completions=_completions(assignment), grades=GRADES.get(assignment.task.kind, ()),
        guidelines=guidelines_of(store), flags=flags_of(assignment.task.kind, len(assignment.order)),
    )  # fmt: skip
    return templates.get_template("task.html").render(task=view)


def question_of(task: Task) -> str:
    """What is asked; in a comparison of models by one criterion, with that criterion, which is asked alone."""
    criterion = task.columns.get("criterion") if "evaluation" in task.columns else None
    alone = f", by {criterion} alone" if isinstance(criterion, str) and criterion != OVERALL else ""
    return f"{QUESTIONS[task.kind]}{alone}?"


def flags_of(kind: TaskKind, num_completions: int) -> list[tuple[str, str]]:
    """Flags with their labels. Where every completion is rated by itself, nobody is asked whether all are good."""
    is_compared = num_completions > 1 and kind is not TaskKind.RATING
    labels = [(flag, FLAG_LABELS[flag]) for flag in FLAGS if is_compared or flag not in OPPOSITES]
    return [(flag, label.replace("All", "Both") if num_completions == 2 else label) for flag, label in labels]


def _task_and_progress(store: PreferenceStore, annotator: str, assignment: Assignment | None) -> dict[str, Any]:
    task = None
    if assignment is not None:
        task = {
            "assignment": assignment.number, "until": assignment.expires_at.isoformat(), "fresh": assignment.fresh,
            "html": task_html(store, assignment),
        }  # fmt: skip
    return {"task": task, "progress": _progress(store, annotator)}


def _progress(store: PreferenceStore, annotator: str) -> dict[str, int]:
    """In numbers that grow alike with every judgment: one that stays behind would tell which task was a gold item."""
    progress = store.progress(annotator)
    return {
        "num_mine": progress.num_mine, "num_done": progress.num_done_with_gold, "num_wanted": progress.num_wanted_with_gold,
    }  # fmt: skip
