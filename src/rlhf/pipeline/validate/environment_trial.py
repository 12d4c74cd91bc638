"""An environment tried before a run, in a process that can be killed: opened, reset with the first row, and given one turn.

A server is asked how many sessions it takes. What the turn holds is made up: a word, or for an action in fields values that fit their
schema; a class of TRL hears a turn without a call, and is then asked for its reward.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.config.base import Names, named_things
from rlhf.config.environments import ENVIRONMENT_KINDS, EnvironmentBase
from rlhf.config.recipe import STAGE
from rlhf.config.stage_inputs import PolicyStage
from rlhf.data.contracts import Prompt, PromptRow
from rlhf.data.expand import prompt_of
from rlhf.data.message_text import one_line
from rlhf.errors import ConfigError, RLHFError
from rlhf.pipeline.validate.inputs import rows_inputs
from rlhf.pipeline.validate.review import Review
from rlhf.pipeline.validate.row_cache import read_once

KEY = "environment"
IMPORT_SECONDS = 300.0
"""For the modules to be imported, in addition to the time of the calls."""
MOST_CALLS = 6
"""Calls of a trial, each of which may take as long as the recipe says."""


def check_environment_trial(review: Review, stage: PolicyStage) -> None:
    """Try a stage's environment; where its files or rows are made by an earlier stage, only what can be tried without them."""
    settings: EnvironmentBase | None = stage.environment
    if settings is None:
        return
    row = _first_row(review, stage)
    is_later = any(names is not Names.FUNCTION and STAGE.match(text) for _, text, names in named_things(settings))
    if is_later:
        review.leave("the environment, which needs files of an earlier stage")
        return
    asked = {
        "kind": settings.kind_name(),
        "settings": settings.model_dump(mode="json"),
        "row": None if row is None else {"id": row.id, "prompt": row.prompt, "columns": dict(row.columns)},
        "is_rewarded": bool(stage.reward),
    }
    try:
        text = json.dumps(asked)
    except (TypeError, ValueError):  # rows of Python may hold anything
        review.leave("the environment with a row that JSON can't hold")
        return
    place = ("environment", text)
    if place not in review.shared:
        review.shared[place] = _tried(text, settings)
    answer: Mapping[str, Any] = review.shared[place]
    for note in answer.get("notes", ()):
        review.note(f"environment: {note}")
    if "problem" in answer:
        review.error(KEY, str(answer["problem"]), ConfigError)
    elif row is None:
        review.leave("reset and a turn of the environment, without a row of the prompts")
    elif review.deep and "tools" in answer and not isinstance(row.prompt, str):
        _check_template(review, stage, row, answer["tools"])


def _check_template(review: Review, stage: PolicyStage, row: PromptRow, tools: Sequence[Mapping[str, Any]]) -> None:
    """Whether the policy's chat template holds the tools, and says how calls are written; for a tokenizer that is there already."""
    from rlhf.pipeline.stages.episode_setup import prompt_with_tools  # here: torch comes with these
    from rlhf.pipeline.validate.lengths import tokenizer_of
    from rlhf.rollout.tool_formats import choose_tool_format

    tokenizer = tokenizer_of(review, "model", stage.model)
    if tokenizer is None or tokenizer.chat_template is None:
        return
    with review.at("environment.tool_format"):
        choose_tool_format(getattr(stage.environment, "tool_format", "auto"), tokenizer, has_messages=True)
    with review.at("model.chat_template"):
        columns = {**row.columns, "tools": tools}
        messages = [] if isinstance(row.prompt, str) else list(row.prompt)
        prompt_with_tools(tokenizer, Prompt(row.id, [], "", columns, messages), allowed=stage.allow_lost_fields)


def check_ends_of_turns(review: Review, stage: PolicyStage) -> None:
    """Warn where no episode has a second turn, by the first row."""
    settings: EnvironmentBase | None = stage.environment
    why = settings.why_one_turn(stage.sampling.stop) if settings is not None else None
    if why is not None and (row := _first_row(review, stage)) is not None and isinstance(row.prompt, str):
        review.warn("sampling.stop", why)


def _first_row(review: Review, stage: PolicyStage) -> PromptRow | None:
    rows = read_once(review, rows_inputs(stage)[0])
    return prompt_of(rows.rows[0]) if rows is not None and rows.rows else None


def _tried(text: str, settings: EnvironmentBase) -> Mapping[str, Any]:
    limit = IMPORT_SECONDS + MOST_CALLS * settings.timeout_seconds
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            input=text,
            capture_output=True,
            text=True,
            timeout=limit,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"Trying the environment took more than {limit:.0f} seconds."}
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"problem": f"Trying the environment ended its process (exit code {done.returncode}): {one_line(last)}."}
    return answer


def main() -> None:
    """The other process: settings and a row from the standard input, the answer to the standard output."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an environment prints must not mix with the answer
    json.dump(try_environment(json.load(sys.stdin)), out)
    out.flush()
    os._exit(0)  # whatever threads the environment has started


def try_environment(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What is wrong with an environment, as ``problem``, ``notes``, and the ``tools`` of the row where it has some.

    Args:
        asked: ``kind``, ``settings``, ``row`` and ``is_rewarded``, as ``check_environment_trial`` writes them.
    """
    from rlhf.rewards.functions import load_function  # here: only the other process needs them
    from rlhf.rollout.environments import EnvironmentContext, EnvironmentFailedError, open_environment

    kinds = {kind.kind_name(): kind for kind in ENVIRONMENT_KINDS}
    settings = kinds[asked["kind"]].of(asked["settings"])
    context = EnvironmentContext(
        tokenizer=None,
        load=load_function,
        arguments=getattr(settings, "arguments", {}),
        is_rewarded=asked["is_rewarded"],
    )
    try:
        opened = open_environment(settings, context)
        answer: dict[str, Any] = {"notes": list(opened.trial_notes)}
        if asked["row"] is not None:
            row = asked["row"]
            messages = None if isinstance(row["prompt"], str) else row["prompt"]
            text = row["prompt"] if isinstance(row["prompt"], str) else ""
            tools = _play_once(opened, Prompt(row["id"], [0], text, row["columns"], messages), settings.timeout_seconds)
            answer |= {} if tools is None else {"tools": list(tools)}
    except (RLHFError, EnvironmentFailedError) as err:
        return {"problem": f"The environment can't be used: {str(err).rstrip('.')}."}
    return answer


def _play_once(opened: Any, prompt: Prompt, timeout_seconds: float) -> Sequence[Mapping[str, Any]] | None:
    """``reset``, the schemas of the tools, which it returns, a turn, and the last reward."""
    from rlhf.rollout.environments import EnvironmentSession, TimedCalls, checked_number, checked_turn

    with TimedCalls(timeout_seconds) as calls:
        environment = calls("making the environment", opened.make)
        where = f"with the first row ({prompt.id})"
        calls(f"reset {where}", lambda: environment.reset(prompt))
        tools: Sequence[Mapping[str, Any]] | None = None
        if opened.tools is not None:
            tools = calls("reading the tools", lambda: opened.tools(prompt.columns))
        what = f"a first turn {where}"
        checked_turn(what, calls(what, lambda: environment.step(opened.trial_turn)))
        if isinstance(environment, EnvironmentSession):
            reward = calls("the last reward", environment.finish)
            if reward is not None:
                checked_number("the last reward", "number", reward)
            calls("closing the environment", environment.close)
    return tools
