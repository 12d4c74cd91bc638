"""Reward functions and annotators imported, and their arguments compared with what they will be given; none is called.

A user's are imported in another process: such a module may hang, print, or end the interpreter. A JSON schema is checked here.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf.config.environments import PythonEnvironmentConfig
from rlhf.config.file_stages import PreferencesStage
from rlhf.config.function_reward import FunctionRewardConfig
from rlhf.config.reasoning_stages import StepLabelsStage
from rlhf.config.rewards import rewards_of
from rlhf.config.stage_inputs import PolicyStage
from rlhf.config.stage_union import Stage
from rlhf.config.verifier_rewards import JSONRewardConfig
from rlhf.data.expand import prompt_of
from rlhf.errors import ConfigError, RewardError, did_you_mean
from rlhf.pipeline.validate.inputs import functions, rows_inputs
from rlhf.pipeline.validate.review import Review
from rlhf.pipeline.validate.row_cache import read_once

IMPORT_SECONDS = 300.0
ENVIRONMENT = "environment.source"
GIVEN_TO_ANNOTATORS = ("ended", "noise", "seed")
"""By keyword, behind the prompts and their completions."""
GIVEN_TO_LABELERS = ("prompts", "completions", "seed")
LOOK = """\
import json, os, sys
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the module prints must not mix with the answer
from rlhf.rewards.signature import signature_of
json.dump(signature_of(sys.argv[1]), out)
out.flush()
os._exit(0)  # whatever threads the module has started
"""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a function takes."""

    required: tuple[str, ...]
    """Names without a default."""
    names: frozenset[str]
    takes_any: bool
    """It has ``**``, or its signature is unknown."""
    lacks: tuple[str, ...] = ()
    """Of what an environment has, the methods that a class does not have."""


def check_functions(review: Review) -> None:
    """Import every function that the recipe names; check the schema of rewards that have one."""
    for _, stage in review.each_stage():
        for key, spec in rewards_of(stage):
            if isinstance(spec, JSONRewardConfig) and not review.is_wrong(f"{key}.json_schema"):
                from rlhf.rewards.verifiers.scorer import (
                    VerifierReward,
                )  # here: asyncio and multiprocessing come with it

                with review.at(f"{key}.json_schema"):
                    VerifierReward(spec.kind, column=spec.column, options={"schema": spec.json_schema}, name=spec.name)
        specs = {f"{key}.function": spec for key, spec in rewards_of(stage) if isinstance(spec, FunctionRewardConfig)}
        for key, name in functions(stage):
            if review.is_wrong(key):
                continue  # reported with its file
            with review.at(key, otherwise=ConfigError):
                parameters = _look_once(review, name)
                if isinstance(stage, PreferencesStage) and key == "annotator":
                    _check_annotator(review, key, name, parameters)
                elif isinstance(stage, StepLabelsStage) and key == "labeler":
                    _check_labeler(review, stage, parameters)
                elif key in specs:
                    _check_reward(review, stage, key, specs[key], parameters)
                elif isinstance(stage, PolicyStage) and key.startswith(ENVIRONMENT):
                    if isinstance(stage.environment, PythonEnvironmentConfig):
                        _check_environment(review, stage.environment, parameters)
                elif parameters.required and any(name in rows.sources for rows in rows_inputs(stage)):
                    review.error(
                        key, f"{name} is called without arguments, and needs {parameters.required[0]!r}.", ConfigError
                    )
        if isinstance(stage, PolicyStage) and stage.environment is not None:
            _try_environment(review, stage)


def _try_environment(review: Review, stage: PolicyStage) -> None:
    """Unless something is known to be wrong with it; a class of our own is looked at above, and tried where there is time."""
    is_ours = isinstance(stage.environment, PythonEnvironmentConfig)
    named = [key for key, _ in functions(stage) if key.startswith(ENVIRONMENT)]
    if any(
        map(
            review.is_wrong,
            ("environment", "environment.arguments", "environment.python", "environment.transport", *named),
        )
    ):
        return
    from rlhf.pipeline.validate.environment_trial import (  # here: few recipes have one
        check_ends_of_turns,
        check_environment_trial,
    )

    check_ends_of_turns(review, stage)
    if review.deep or not is_ours:
        check_environment_trial(review, stage)


def look_at(function: str) -> Parameters:
    """Import a function in another process and ask what it takes.

    Raises:
        ConfigError: It can't be imported, or not within `IMPORT_SECONDS`.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", LOOK, function],
            capture_output=True,
            text=True,
            timeout=IMPORT_SECONDS,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"Importing the module of {function!r} took more than {IMPORT_SECONDS:.0f} seconds; move work out of its top level."
        ) from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(
            f"Importing the module of {function!r} ended the process (exit code {done.returncode}): {last}."
        ) from None
    return _parameters(function, answer)


@functools.cache
def _look_at_ours(function: str) -> Parameters:
    """The same of a function of this package, in this process: it neither hangs nor changes, whatever recipes name it."""
    from rlhf.rewards.signature import signature_of  # here: asyncio and multiprocessing come with it

    return _parameters(function, signature_of(function))


def _parameters(function: str, answer: Mapping[str, Any]) -> Parameters:
    """Of what ``signature_of`` says.

    Raises:
        ConfigError: The function can't be imported.
    """
    if "error" in answer:
        raise ConfigError(f"The function {function!r} can't be used: {answer['error'].rstrip('.')}.")
    if answer["parameters"] is None:
        return Parameters((), frozenset(), takes_any=True, lacks=tuple(answer["lacks"]))
    plain = [
        (name, has) for name, kind, has in answer["parameters"] if kind in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")
    ]
    return Parameters(
        required=tuple(name for name, has_default in plain if not has_default),
        names=frozenset(name for name, _ in plain),
        takes_any=any(kind == "VAR_KEYWORD" for _, kind, _ in answer["parameters"]),
        lacks=tuple(answer["lacks"]),
    )


def _look_once(review: Review, function: str) -> Parameters:
    place = ("function", function)
    if place not in review.shared:
        try:
            review.shared[place] = (_look_at_ours if function.startswith("rlhf.") else look_at)(function)
        except ConfigError as err:
            review.shared[place] = err
    parameters = review.shared[place]
    if isinstance(parameters, ConfigError):
        raise parameters
    result: Parameters = parameters
    return result


def _check_reward(review: Review, stage: Stage, key: str, spec: FunctionRewardConfig, parameters: Parameters) -> None:
    from rlhf.rewards.worker import RESERVED  # here: asyncio and multiprocessing come with it

    place = key.removesuffix(".function")
    taken = sorted(spec.arguments.keys() & {*RESERVED})
    if taken:
        review.error(
            f"{place}.arguments",
            f"{taken[0]!r} is reserved: every reward function gets something else under this name.",
        )
    unknown = sorted(spec.arguments.keys() - parameters.names)
    if unknown and not parameters.takes_any:
        review.warn(f"{place}.arguments", f"{spec.function} has no parameter {unknown[0]!r}, so it will not be given.")
    wanted = [name for name in parameters.required if name not in {*RESERVED, *spec.arguments}]
    prompts = rows_inputs(stage)[0]
    rows = read_once(review, prompts)
    own = (
        sorted({*RESERVED} & {name for row in rows.rows for name in prompt_of(row).columns}) if rows is not None else []
    )
    if own:
        review.error(
            prompts.key,
            f"The column {own[0]!r} can't be given to {spec.function}: every reward function gets something else under that name; "
            "rename it.",
            RewardError,
        )
    if not wanted:
        return
    if rows is None:
        review.leave(f"columns that {spec.function} wants ({', '.join(wanted)})")
        return
    columns = {name for row in rows.rows for name in prompt_of(row).columns}
    missing = [name for name in wanted if name not in columns]
    if missing:
        have = ", ".join(sorted(columns)) or "no other columns"
        review.error(
            key,
            f"{spec.function} wants {', '.join(missing)}, which the prompt rows don't have (they have {have}); add the column, "
            "give it in `arguments`, or give the parameter a default.",
            RewardError,
        )


def _check_environment(review: Review, settings: PythonEnvironmentConfig, parameters: Parameters) -> None:
    """It accepts exactly its arguments, and has the methods ``reset`` and ``step``."""
    if parameters.lacks:
        review.error(
            ENVIRONMENT,
            f"The class {settings.source} has no {' and no '.join(parameters.lacks)}; an environment has reset(prompt) and step(text), "
            "see docs/environments.md.",
        )
        return
    unknown = sorted(settings.arguments.keys() - parameters.names)
    if unknown and not parameters.takes_any:
        review.error("environment.arguments", f"{settings.source} takes no argument {unknown[0]!r}.")
    missing = [name for name in parameters.required if name not in settings.arguments]
    if missing:
        review.error("environment.arguments", f"{settings.source} needs {', '.join(missing)}; give it in `arguments`.")


def _check_annotator(review: Review, key: str, name: str, parameters: Parameters) -> None:
    lacking = [word for word in GIVEN_TO_ANNOTATORS if word not in parameters.names]
    if lacking and not parameters.takes_any:
        review.error(
            key,
            f"{name} has no parameter {', '.join(lacking)}; an annotator is called as annotate(prompts, completions, *, ended, "
            "noise, seed).",
        )


def _check_labeler(review: Review, stage: StepLabelsStage, parameters: Parameters) -> None:
    lacking = [word for word in GIVEN_TO_LABELERS if word not in parameters.names]
    if lacking and not parameters.takes_any:
        review.error(
            "labeler",
            f"{stage.labeler} has no parameter {', '.join(lacking)}; a labeler is called as labeler(prompts, completions, *, "
            "seed).",
        )
    unknown = sorted(stage.arguments.keys() - parameters.names)
    if unknown and not parameters.takes_any:
        known = sorted(parameters.names - {*GIVEN_TO_LABELERS})
        review.error("arguments", f"{stage.labeler} has no parameter {unknown[0]!r}.{did_you_mean(unknown[0], known)}")
