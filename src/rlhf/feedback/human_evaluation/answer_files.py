"""Files of a human evaluation: completions of several models in, and what another tool gave back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.data.contracts import OLD_LABEL_PROBABILITY, RENAMED_LABEL_PROBABILITY, CompletionRow, RowError, Text
from rlhf.data.expand import prompt_names, text_key
from rlhf.data.json_rows import read_jsonl
from rlhf.data.message_text import counted, describe
from rlhf.data.raw import Unreadable
from rlhf.data.read import open_rows
from rlhf.errors import ConfigError, DataError
from rlhf.store.items import ItemJudgment
from rlhf.store.record import Recorded, record_judgments
from rlhf.store.store import PreferenceStore
from rlhf.store.values import SHAPES, Task, TaskKind, check_value

EXTRAS: Mapping[str, tuple[type, ...]] = {"comment": (str,), "seconds": (int, float), "label_probability": (int, float)}
"""What a row that comes back may say next to its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Completions of the same prompts by several models."""

    prompts: Sequence[Text]
    ids: Sequence[str]
    """Names of the prompts: those of the rows where each prompt has one of its own, else made of their texts."""
    completions: Mapping[str, Sequence[Text]]
    """Model -> [prompts]."""


def read_answers(files: Sequence[str]) -> Answers:
    """Completions from files, one row each, brought together by their prompts.

    Args:
        files: Each a file of rows with ``prompt`` and ``completion``, or ``NAME=FILE``. A model is called by that name, by
            the row's column ``model``, or by the file's name.

    Raises:
        DataError: A row is none, a model answered a prompt twice or not at all.
        ConfigError: Two files hold one model.
    """
    rows: dict[str, list[CompletionRow]] = {}
    file_of: dict[str, str] = {}
    for given in files:
        name, path = _named(given)
        for row in open_rows(path):
            if not isinstance(row, CompletionRow):
                raise RowError(
                    row.where, f"a row of kind {row.kind}; wanted `prompt` and `completion`, as `rlhf generate` writes."
                )
            model = name or str(row.columns.get("model") or Path(path).stem)
            if (other := file_of.setdefault(model, given)) != given:
                raise ConfigError(
                    f"{other} and {given} both hold the model {model!r}; name them apart: "
                    f"first={_named(other)[1]} second={path}"
                )
            rows.setdefault(model, []).append(row)
    return _together(rows)


def record_returned(
    store: PreferenceStore, tasks: Sequence[Task], path: Path | str, dimensions: Sequence[str] | None
) -> Recorded:
    """Put judgments that another tool gave back into a store, all or none; bringing them again changes nothing.

    Args:
        store: That holds the tasks.
        tasks: That were exported.
        path: Of the file; see ``returned_rows``.
        dimensions: What a rating may name; None for anything.

    Raises:
        DataError: A line can't be read, names another task, or holds no value of its kind.
    """
    known = {task.id: task for task in tasks}
    made = []
    for where, row in returned_rows(path):
        if (task := known.get(row["id"])) is None:
            raise RowError(where, f"there is no task {row['id']!r} in this evaluation; is it another one's?")
        value = check_value(
            task.kind, row["value"], num_responses=len(task.responses), dimensions=dimensions, where=where
        )
        if OLD_LABEL_PROBABILITY in row:
            raise RowError(where, f"{RENAMED_LABEL_PROBABILITY}.")
        extras = {name: row[name] for name in EXTRAS if row.get(name) is not None}
        for name, given in extras.items():
            if isinstance(given, bool) or not isinstance(given, EXTRAS[name]):
                raise RowError(
                    where, f"{name} is {describe(given)}; wanted {'a text' if name == 'comment' else 'a number'}."
                )
        made.append((task.id, ItemJudgment(annotator=str(row["annotator"]), value=value, where=where, **extras)))
    return record_judgments(store, made)


def returned_rows(path: Path | str) -> list[tuple[str, dict[str, Any]]]:
    """Lines ``{"id", "annotator", "value"}`` as (where, object); one for each task and annotator.

    Raises:
        DataError: A line can't be read, or repeats a judgment.
    """
    seen: dict[tuple[str, str], str] = {}
    rows = keyed_rows(path, ("id", "annotator", "value"))
    for where, row in rows:
        if not isinstance(row["id"], str):
            raise RowError(where, f"id is {describe(row['id'])}; wanted the text that was exported.")
        who = str(row["annotator"])
        if (earlier := seen.setdefault((row["id"], who), where)) != where:
            raise RowError(where, f"{who!r} judged task {row['id']!r} before, at {earlier}; keep the one that counts.")
        if not isinstance(row["value"], dict):
            raise RowError(
                where,
                f"value is {json.dumps(row['value'])[:80]}; wanted an object, such as {SHAPES[TaskKind.PAIRWISE]} "
                "(`rlhf feedback compare import --help` shows one of each kind).",
            )
    return rows


def keyed_rows(path: Path | str, wanted: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Lines of a file as (where, object), each with the columns that are wanted.

    Raises:
        DataError: The file or a line of it can't be read, or lacks a column.
    """
    keyed = []
    for raw in read_jsonl(Path(path), 0):
        where = f"{path}:{raw.place}"
        if isinstance(raw.value, Unreadable):
            raise RowError(where, raw.value.reason)
        if not isinstance(raw.value, dict) or (missing := [name for name in wanted if name not in raw.value]):
            problem = f"has no {', '.join(missing)}" if isinstance(raw.value, dict) else "is no object"
            raise RowError(where, f"the line {problem}; wanted {', '.join(wanted)}.")
        keyed.append((where, raw.value))
    return keyed


def _named(given: str) -> tuple[str | None, str]:
    """``NAME=FILE`` or a file, whose name may hold an equals sign."""
    name, equals, path = given.partition("=")
    return (name, path) if equals and name and path and not Path(given).exists() else (None, given)


def _together(rows: Mapping[str, Sequence[CompletionRow]]) -> Answers:
    keys = {model: [text_key(row.prompt) for row in own] for model, own in rows.items()}
    if any(len(set(own)) < len(own) for own in keys.values()):  # one text may be asked under two names
        keys = {
            model: [f"{row.columns.get('id')} {text_key(row.prompt)}" for row in own] for model, own in rows.items()
        }
    tables: dict[str, dict[str, CompletionRow]] = {}
    for model, own in rows.items():
        table = tables[model] = {}
        for key, row in zip(keys[model], own, strict=True):
            if (earlier := table.setdefault(key, row)) is not row:
                raise RowError(
                    row.where,
                    f"{model!r} answered this prompt at {earlier.where} already; keep one completion of each prompt.",
                )
    everywhere: dict[str, CompletionRow] = {}
    for table in tables.values():
        everywhere = {**table, **everywhere}  # the first file names a prompt
    for model, table in tables.items():
        if missing := [row.where for key, row in everywhere.items() if key not in table]:
            raise DataError(
                f"{model!r} has no completion for {counted(len(missing), 'prompt')} that others answered ({', '.join(missing[:3])}"
                f"{' ...' if len(missing) > 3 else ''}); compare models on the same prompts."
            )
    order = list(next(iter(tables.values()), {}))
    names = [str(everywhere[key].columns.get("id") or "") for key in order]
    prompts = [everywhere[key].prompt for key in order]
    return Answers(
        prompts=prompts,
        ids=names if all(names) and len(set(names)) == len(names) else prompt_names(prompts),
        completions={model: [table[key].completion for key in order] for model, table in tables.items()},
    )
