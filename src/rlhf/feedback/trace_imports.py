"""Conversations of other tools on their way into a store: consent, personal data, whose they are, and then tasks and judgments.

Nothing of a user is stored under the name the tool has for them: a keyed hash stands in its place, with a key that each store
makes for itself, so that the same user is the same annotator in every import, and can be found again to be forgotten.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rlhf.data.contracts import BadRow
from rlhf.data.message_text import counted
from rlhf.data.read import OnBadRow
from rlhf.errors import ConfigError, DataError, look_up
from rlhf.feedback.exchange.conversations import Answer, Opinion, Reading, pairs_of_thumbs, value_at
from rlhf.feedback.exchange.formats import FORMATS
from rlhf.feedback.exchange.lines import lines_of
from rlhf.feedback.identity import content_id, merged
from rlhf.feedback.imports import FORGOTTEN
from rlhf.feedback.judgment_origin import TRACE
from rlhf.feedback.personal_data import Findings, PersonalData
from rlhf.feedback.tasks import STDIN, SourceItems
from rlhf.store.deletion import TEXT_OF, TRACE_USER
from rlhf.store.items import Item, ItemJudgment, check_item
from rlhf.store.pseudonyms import Pseudonym, pseudonyms
from rlhf.store.values import MAX_NAME, MAX_TEXT, Response, Task

NO_CONSENT = "the consent field is not true"
NO_CONSENT_FIELD = "there is no consent field"
ALIKE = "both answers say the same once secrets and personal data are masked"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRules:
    """What an import of conversations takes."""

    personal_data: str = "refuse"
    """refuse, mask or keep."""
    consent_field: str = ""
    """Dotted path of a field that must be true."""
    label_field: str = ""
    """Dotted path of a field that says good or bad, of formats without feedback."""
    with_unjudged: bool = False
    """Take answers of which nobody said anything, as tasks to judge."""


@dataclass(slots=True)
class TraceItems(SourceItems):
    """What conversations gave."""

    no_rows: list[BadRow] = field(default_factory=list)
    """What is sound and can't become a row, with the reason."""
    findings: Findings = field(default_factory=Findings)
    num_pairs_of_thumbs: int = 0
    """Pairs that two thumbs of one user on two answers to one question made."""
    num_cut_comments: int = 0
    """Comments of which only the beginning is kept."""

    def lines(self) -> list[str]:
        """What an import says of them, besides how many there are."""
        lines = []
        if self.num_pairs_of_thumbs:
            lines.append(
                f"{counted(self.num_pairs_of_thumbs, 'pair')} made of two thumbs of one user on two answers to one question."
            )
        if self.num_cut_comments:
            lines.append(f"{counted(self.num_cut_comments, 'comment')} cut after {MAX_TEXT:,} characters.")
        lines += [f"personal data, {line}" for line in self.findings.lines()]
        return lines


def passing_pseudonyms() -> Pseudonym:
    """Of a conversion that leaves no store behind: the same user has one name in it, and nobody can tell whose it is."""
    return pseudonyms(secrets.token_bytes(32))


def read_traces(
    name: str,
    *sources: str | Path,
    rules: TraceRules,
    pseudonym: Pseudonym,
    forgotten: Mapping[str, datetime] | None = None,
    batch: str = "",
    on_bad_row: OnBadRow = "error",
) -> TraceItems:
    """Tasks and judgments of conversations.

    Args:
        name: Of a format in ``FORMATS`` that tells of conversations.
        sources: Files, read together: a score may be in another file than what it is of.
        rules: What is taken.
        pseudonym: Names of users in the store.
        forgotten: Names of those who were forgotten, and when; what is older, or has no time, is left out and counted.
        batch: Of the tasks.
        on_bad_row: ``error`` stops at the first bad row; ``skip`` lists them.

    Raises:
        DataError: A bad row; nothing that can become a row; secrets or personal data that are to be refused.
        ConfigError: The rules don't fit.
    """
    reader = look_up(FORMATS, name, kind="format").read_traces
    if reader is None:
        raise ConfigError(f"{name!r} does not tell of conversations; leave the options for those out.")
    if STDIN in map(str, sources):
        raise DataError(f"Rows of the format {name!r} are read from a file, not from standard input.")
    guard = PersonalData(rules.personal_data)
    reading = Reading(on_bad_row=on_bad_row, with_unjudged=rules.with_unjudged, label_field=rules.label_field)
    reader([line for source in sources for line in lines_of(source)], reading)
    opinions = _with_consent(reading, rules.consent_field)
    opinions = _not_forgotten(opinions, reading, name, pseudonym, forgotten or {})
    pairs = pairs_of_thumbs(opinions)
    made: list[tuple[str, Item]] = []
    for one in [*opinions, *pairs]:
        with reading.one(one.where, f"a record of {name!r}"):
            clean = _guarded(one, guard)
            if len(clean.answers) == 2 and clean.answers[0].messages == clean.answers[1].messages:
                reading.no_row(one.where, ALIKE)
                continue
            made.append((one.where, _item(clean, name, pseudonym, batch)))
    guard.check()
    trace_items = TraceItems(merged(made), reading.bad_rows, reading.no_rows, guard.findings, len(pairs))
    trace_items.num_cut_comments = sum(len(one.comment) > MAX_TEXT for one in opinions)
    if not trace_items.items:
        raise DataError(_nothing(sources, name, trace_items))
    return trace_items


def _nothing(sources: Sequence[str | Path], name: str, trace_items: TraceItems) -> str:
    rows = [*trace_items.no_rows, *trace_items.left_out]
    first = f" The first: {rows[0].where}: {rows[0].reason}." if rows else ""
    label = " --label-field PATH names a field that says good or bad." if name in ("hf-traces", "atif") else ""
    return (
        f"{', '.join(map(str, sources))}: nothing becomes a row as {name!r}; {counted(len(trace_items.left_out), 'bad row')}, "
        f"{counted(len(trace_items.no_rows), 'record')} without one.{first.replace('..', '.')}{label}"
    )


def _with_consent(reading: Reading, path: str) -> list[Opinion]:
    if not path:
        return reading.opinions
    kept = []
    for one in reading.opinions:
        value = value_at(one.record, path)
        if value is True or value == "true":
            kept.append(one)
        else:
            reading.no_row(one.where, f"{NO_CONSENT_FIELD if value is None else NO_CONSENT} ({path})")
    return kept


def _not_forgotten(
    opinions: Sequence[Opinion], reading: Reading, tool: str, pseudonym: Pseudonym, forgotten: Mapping[str, datetime]
) -> list[Opinion]:
    kept = []
    for one in opinions:
        people = [user for user in (one.user, one.trace.get(TEXT_OF)) if user]
        since = [forgotten[name] for user in people if (name := pseudonym(tool, user)) in forgotten]
        if since and (one.made_at is None or one.made_at <= max(since)):
            reading.no_row(one.where, FORGOTTEN)
        else:
            kept.append(one)
    return kept


def _guarded(one: Opinion, guard: PersonalData) -> Opinion:
    """The same with its texts looked through; ids, models and times are the tool's, and stay."""
    where = one.where
    answers = [replace(answer, messages=guard.value(answer.messages, where)) for answer in one.answers]
    trace = {
        name: guard.text(value, where) if name == "reason" and isinstance(value, str) else value
        for name, value in one.trace.items()
    }
    return replace(
        one, prompt=guard.value(one.prompt, where), answers=answers, comment=guard.text(one.comment, where), trace=trace,
        columns=guard.value(one.columns, where),
    )  # fmt: skip


def _item(one: Opinion, tool: str, pseudonym: Pseudonym, batch: str) -> Item:
    trace: dict[str, Any] = {"tool": tool, **one.trace}
    if trace.get(TEXT_OF):
        trace[TEXT_OF] = pseudonym(tool, trace[TEXT_OF])
    texts = [answer.messages for answer in one.answers]
    columns = dict(one.columns)
    if one.value is None:
        columns[TRACE] = {**trace, **({TRACE_USER: pseudonym(tool, one.user)} if one.user else {})}
    task = Task(
        id=content_id(one.kind, one.prompt, texts), kind=one.kind, prompt=one.prompt, responses=[_response(answer) for answer in one.answers],
        batch=batch, columns=columns,
    )  # fmt: skip
    if one.value is None:
        return Item(task=task, where=one.where)
    who = pseudonym(tool, one.user) if one.user else f"{tool}:{one.said_by}"[:MAX_NAME] if one.said_by else tool
    judgment = ItemJudgment(
        annotator=who,
        value=one.value,
        order=one.order,
        comment=one.comment[:MAX_TEXT],
        made_at=one.made_at,
        trace=trace,
        where=one.where,
    )
    return check_item(Item(task=task, judgments=(judgment,), where=one.where), one.where)


def _response(answer: Answer) -> Response:
    return Response(text=answer.messages, model=answer.model, columns=answer.columns)
