"""Prompt rows of the tasks of a verifiers environment: what its harness asks first, and which task it is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlhf.config.environments import VerifiersEnvironmentConfig
from rlhf.errors import ConfigError, DataError
from rlhf.rollout.verifiers_environment import INDEX, KEY, TOOLS, plain_message, start_verifiers, text_of
from rlhf.rollout.verifiers_process import TABLE, VerifiersError, VerifiersProcess

PAGE = 500
"""Tasks that are asked for at a time."""


def read_tasks(
    settings: VerifiersEnvironmentConfig, *, skip: int = 0, limit: int | None = None, as_text: bool = False
) -> list[dict[str, Any]]:
    """A row for each task.

    An episode of the first task is played up to the harness's first request. Where that is what the task says, the others are taken to begin
    so, too, and with the same tools; else each is played up to there. Whatever a row says is compared again when its episodes begin.

    Args:
        settings: Of the environment.
        skip: Tasks to leave out, the first ones.
        limit: Rows at most; None for all.
        as_text: Prompts in plain text, for models without a chat template.

    Raises:
        ConfigError: The environment can't be opened, or its tasks never end and there is no limit.
        DataError: A task can't be a prompt; says why.
    """
    process, opened = start_verifiers(settings)
    try:
        if opened["is_endless"] and limit is None:
            raise ConfigError(
                f"The tasks of {settings.source!r} never end; say how many are wanted, as in --limit 1000."
            )
        tasks = list(_listed(process, settings, skip=skip, limit=limit))
        if not tasks:
            raise DataError(
                f"The taskset {settings.source!r} has no tasks{f' after the first {skip}' if skip else ''}."
            )
        name = settings.source.rpartition("/")[2].removesuffix(".py")
        return [_row(name, task, as_text=as_text) for task in _asked(process, settings, tasks)]
    except VerifiersError as err:
        raise DataError(f"The tasks of {settings.source!r} can't be read: {err}.") from None
    finally:
        process.close()


def _listed(
    process: VerifiersProcess, settings: VerifiersEnvironmentConfig, *, skip: int, limit: int | None
) -> Iterator[Mapping[str, Any]]:
    """Tasks, as the taskset has them."""
    end = None if limit is None else skip + limit
    for first in itertools.count(skip, PAGE):
        most = PAGE if end is None else min(PAGE, end - first)
        if most <= 0:
            return
        process.tell("tasks", first=first, most=most)
        page = process.hear(TABLE, timeout_seconds=settings.timeout_seconds)
        if "why" in page:
            raise VerifiersError(str(page["why"]))
        yield from page["tasks"]
        if page["is_last"]:
            return


def _asked(
    process: VerifiersProcess, settings: VerifiersEnvironmentConfig, tasks: Sequence[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """The tasks, with the messages and the tools of the first request."""
    first = _first_requests(process, settings, tasks[:1])[0]
    if tasks[0]["messages"] is not None and _same(first["messages"], tasks[0]["messages"]):
        yield from ({**task, "tools": first["tools"]} for task in tasks)
        return
    yield {**tasks[0], **first}
    for start in range(1, len(tasks), settings.max_sessions):
        some = tasks[start : start + settings.max_sessions]
        for task, request in zip(some, _first_requests(process, settings, some), strict=True):
            yield {**task, **request}


def _first_requests(
    process: VerifiersProcess, settings: VerifiersEnvironmentConfig, tasks: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    for task in tasks:
        process.start(task["index"], task=task["index"], key=task["key"])
    made = []
    for task in tasks:
        event = process.hear(task["index"], timeout_seconds=settings.timeout_seconds)
        process.discard(task["index"])
        if event["event"] == "ended":
            raise VerifiersError(
                f"task {task['index']}: {event.get('error', 'its episode is over before the policy was asked')}"
            )
        made.append({"messages": event["messages"], "tools": event["tools"]})
    return made


def _same(some: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]) -> bool:
    try:
        return [plain_message(one) for one in some] == [plain_message(one) for one in others]
    except ValueError:  # pictures
        return False


def _prompt(task: Mapping[str, Any], *, as_text: bool) -> str | list[dict[str, Any]]:
    """Messages with a text each, or the one text.

    Raises:
        DataError: The task holds something else.
    """
    try:
        messages = [{**message, "content": text_of(message)} for message in task["messages"]]
    except ValueError as err:
        raise DataError(f"Task {task['index']} can't be a prompt: {err}.") from None
    if not as_text:
        return messages
    if [message["role"] for message in messages] != ["user"]:
        roles = ", ".join(message["role"] for message in messages)
        raise DataError(
            f"Task {task['index']} can't be a plain text: it begins with messages of the roles {roles}, and a text stands for one message of "
            "the user. Leave --text out, for a model with a chat template."
        )
    return str(messages[0]["content"])


def _row(name: str, task: Mapping[str, Any], *, as_text: bool) -> dict[str, Any]:
    prompt = _prompt(task, as_text=as_text)
    row = {"id": f"{name}-{task['index']}", "prompt": prompt, INDEX: task["index"], KEY: task["key"]}
    return {**row, TOOLS: task["tools"]} if task["tools"] and not as_text else row
