"""A recipe: named stages, each with its settings and its inputs.

An input is a file, a folder, a hub name, or ``stage:NAME`` (the model of an earlier stage) or ``stage:NAME/FILE`` (a
file it wrote). ``${VARIABLE}`` stands for an environment variable.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from rlhf.config.base import BaseConfig, FilePath, apply_overrides, named_things, refusal
from rlhf.config.error_messages import TAG, shortened
from rlhf.config.fsdp import FSDPConfig
from rlhf.config.launch import LaunchSpec, LocalLaunchConfig, launch_of_file
from rlhf.config.model import AUTO, DeviceName
from rlhf.config.numbers import MOST
from rlhf.config.overrides import blame_overrides
from rlhf.config.stage_union import Stage
from rlhf.config.stages import BY_KIND, FILE_STAGES
from rlhf.config.yaml_text import read_yaml
from rlhf.errors import ConfigError, did_you_mean

STAGE = re.compile(r"^stage:(?P<name>[A-Za-z0-9_-]+)(?:/(?P<file>.+))?\Z")
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
STAGE_NAME = re.compile(r"^[A-Za-z0-9_-]+\Z")
VARIABLE = re.compile(r"\$\{(?P<name>[^}\n]*)\}")
LONGEST_NAME = 200
"""Of a run and of a stage: file systems allow 255 bytes, and folders that are moved or written aside have longer names."""
REFERENCE = "stage:"
ASSETS = "RLHF_ASSETS"
DEFAULT_ASSETS = "../shared/assets"
Input = tuple[str, str]
"""Dotted place inside a stage, and the text that stands there."""


def _takes(stage: Mapping[str, Any], key: str) -> bool:
    """Whether a stage as written has a setting; of an unknown kind the complaint is about the kind."""
    kind = stage.get("kind")
    return not isinstance(kind, str) or kind not in BY_KIND or key in BY_KIND[kind].model_fields


class RecipeConfig(BaseConfig):
    """What `rlhf run` runs."""

    name: str
    """Names the run's folder."""
    description: str = ""
    """A sentence for the report."""
    output_dir: FilePath = "runs"
    """Where run folders lie."""
    seed: int = Field(0, ge=0)
    """Seeds every stage that does not name its own."""
    threads: int | None = Field(None, ge=1)
    """CPU threads for torch; by default one for each core."""
    device: DeviceName = AUTO
    """Where models are: `cpu`, `cuda`, `cuda:N`, or `auto` for the first GPU that torch has, else the CPU."""
    launch: LaunchSpec = LocalLaunchConfig()
    """How processes are started: `local` (this one alone), `torchrun`, or `ray` with pools of actors. Results depend on it by
    rounding alone."""
    fsdp: FSDPConfig | None = None
    """How ranks cut weights into shards, for every stage that trains and does not say it itself."""
    deepspeed: FilePath | None = None
    """DeepSpeed's JSON file, for every stage that trains and names none itself."""
    stages: dict[str, Stage]
    """Run in this order; a later one may use what an earlier one made."""

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not NAME.match(name):
            raise ValueError("a name holds letters, digits, '.', '_' and '-' and starts with a letter or digit")
        if len(name) > LONGEST_NAME:
            raise ValueError(
                f"a name has at most {LONGEST_NAME} characters, as a folder is named by it; this one has {len(name)}"
            )
        return name

    @model_validator(mode="before")
    @classmethod
    def _with_common_settings(cls, tree: Any) -> Any:
        """What the recipe says for all stages goes into every one that has the setting and does not give it."""
        stages = tree.get("stages") if isinstance(tree, Mapping) else None
        if not isinstance(stages, Mapping):
            return tree
        common = common_settings(tree)
        filled = {
            name: {**{key: value for key, value in common.items() if _takes(stage, key)}, **stage}
            if isinstance(stage, Mapping)
            else stage
            for name, stage in stages.items()
        }
        return {**tree, "stages": filled}

    @model_validator(mode="after")
    def _inputs_exist(self) -> Self:
        stages = {name: (stage.kind, _typed_inputs(stage)) for name, stage in self.stages.items()}
        if lines := list(_input_complaints(stages)):
            raise ValueError("\n".join(lines))
        return self

    @classmethod
    @override
    def left_unchecked(cls, tree: Mapping[str, Any]) -> list[str]:
        stages = tree.get("stages")
        if not isinstance(stages, Mapping):
            return []
        inputs = {
            str(name): (stage.get(TAG), list(_untyped_inputs(stage, ()))) if isinstance(stage, Mapping) else (None, [])
            for name, stage in stages.items()
        }
        return list(_input_complaints(inputs))


def common_settings(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a recipe as it was written that its stages share; a wrong one is complained about once, where it stands."""
    common: dict[str, Any] = {}
    if (seed := seed_of_stages(tree)) is not None:
        common["seed"] = seed
    if isinstance(tree.get("fsdp"), Mapping):
        with contextlib.suppress(ConfigError):
            FSDPConfig.of(tree["fsdp"])
            common["fsdp"] = tree["fsdp"]
    if isinstance(tree.get("deepspeed"), str):
        common["deepspeed"] = tree["deepspeed"]
    return common


def seed_of_stages(tree: Mapping[str, Any]) -> int | None:
    """The seed of a recipe as it was written, for the stages that have none of their own; None for one that is not a seed."""
    seed = tree.get("seed", 0)
    if isinstance(seed, str) and re.fullmatch(r"\d{1,20}", seed, re.ASCII):  # of an environment variable
        seed = int(seed)
    return seed if type(seed) is int and 0 <= seed <= MOST else None


def stage_references(stage: BaseConfig) -> Iterator[tuple[str, str, str | None]]:
    """(place, stage name, file or None) of every ``stage:`` input."""
    for place, text, _ in named_things(stage):
        if match := STAGE.match(text):
            yield ".".join(part for part in place if part != "path"), match["name"], match["file"]


def _typed_inputs(stage: BaseConfig) -> list[Input]:
    """(place, text) of every input that says ``stage:``."""
    return [(_dotted(place), text) for place, text, _ in named_things(stage) if text.startswith(REFERENCE)]


def _untyped_inputs(value: Any, place: tuple[str, ...]) -> Iterator[Input]:
    """The same from settings as they were written, some of which are not valid."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _untyped_inputs(item, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _untyped_inputs(item, (*place, str(index)))
    elif isinstance(value, str) and value.startswith(REFERENCE):
        yield _dotted(place), value


def _dotted(place: tuple[str, ...]) -> str:
    """As users think of it: `model: stage:sft` is short for `model: {path: stage:sft}`."""
    return ".".join(part for part in place if part != "path")


def _input_complaints(stages: Mapping[str, tuple[str | None, Sequence[Input]]]) -> Iterator[str]:
    """What is wrong with the names of stages, and with inputs that name others.

    Args:
        stages: In order; each one's kind, where that is known, and its inputs.
    """
    if not stages:
        yield "stages: there are no stages; a recipe needs at least one."
    seen: list[str] = []
    for name, (_, inputs) in stages.items():
        if not STAGE_NAME.match(name):
            yield f"stage {name!r}: a name holds letters, digits, '_' and '-'"
        if len(name) > LONGEST_NAME:
            yield f"stage {shortened(name)!r}: a name has at most {LONGEST_NAME} characters; this one has {len(name)}"
        for place, text in inputs:
            match = STAGE.match(text)
            where = f"stages.{name}.{place}"
            if match is None:
                yield f"{where} is {text!r}, which names no stage; write stage:NAME or stage:NAME/FILE."
            elif match["name"] not in seen:
                yield f"{where} names stage:{match['name']}, {_not_earlier(match['name'], name, seen, stages)}"
            elif match["file"] is None and stages[match["name"]][0] in FILE_STAGES:
                yield (
                    f"{where}: stage:{match['name']} makes files, not a model; name one of them, as in "
                    f"stage:{match['name']}/FILE"
                )
        seen.append(name)


def _not_earlier(parent: str, name: str, seen: Sequence[str], stages: Mapping[str, Any]) -> str:
    if parent == name:
        return "which is this stage itself; an input comes from an earlier stage."
    if parent in stages:
        return f"which does not come before it: write `{parent}` above `{name}`."
    hint = did_you_mean(parent, seen) or (f" Earlier stages: {', '.join(seen)}." if seen else " It is the first stage.")
    return f"but there is no such stage.{hint}"


def read_recipe(path: Path | str, launch: Path | str | None = None) -> dict[str, Any]:
    """A recipe's file as it is written, with the section `launch` of another file in the place of its own.

    Raises:
        ConfigError: One of them is not there or is not YAML, or the second is no such section.
    """
    tree = read_yaml(path)
    return tree if launch is None else {**tree, "launch": launch_of_file(launch)}


def load_recipe(path: Path | str, overrides: Sequence[str] = (), *, launch: Path | str | None = None) -> RecipeConfig:
    """Read a YAML recipe, apply ``key.sub=value`` overrides, fill in environment variables, validate once.

    Args:
        path: Of the recipe.
        overrides: Settings to change.
        launch: A file that holds the section `launch` to be taken; None for the recipe's own.

    Raises:
        ConfigError: With every complaint.
    """
    written, source = read_recipe(path, launch), str(path)

    def read(tree: Mapping[str, Any]) -> RecipeConfig:
        return _recipe_of(tree, source)

    tree = apply_overrides(written, overrides)
    try:
        return read(tree)
    except ConfigError as err:
        raise blame_overrides(err, written, overrides, source=source, read=read) from None


def _recipe_of(tree: Mapping[str, Any], source: str) -> RecipeConfig:
    unknown = list(_variable_complaints(tree, ()))
    try:
        recipe = RecipeConfig.of(_filled_in(tree), source=source)
    except ConfigError as err:
        raise ConfigError("\n  ".join([str(err), *unknown])) from None
    if unknown:
        raise refusal(source, unknown)
    return recipe


def expand_variables(tree: Any, source: str) -> Any:
    """``${NAME}`` in every text of a tree, from the environment; RLHF_ASSETS has a default.

    Raises:
        ConfigError: With every variable that is not there, and where it is used.
    """
    if unknown := list(_variable_complaints(tree, ())):
        raise refusal(source, unknown)
    return _filled_in(tree)


def _filled_in(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled_in(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled_in(item) for item in value]
    if isinstance(value, str) and VARIABLE.search(value):
        return VARIABLE.sub(lambda match: _variable(match["name"]) or match[0], value)
    return value


def _variable_complaints(value: Any, place: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _variable_complaints(item, (*place, str(key)))
    elif isinstance(value, str):
        for name in dict.fromkeys(match["name"] for match in VARIABLE.finditer(value)):
            if not re.fullmatch(r"\w+", name):
                yield f"{'.'.join(place)}: ${{{name}}} names no variable; a name holds letters, digits and '_'."
            elif _variable(name) is None:
                near = did_you_mean(name, [*os.environ, ASSETS])
                yield (
                    f"{'.'.join(place)} uses ${{{name}}}, but the environment has no variable {name}; set it or write the "
                    f"value.{near}"
                )


def _variable(name: str) -> str | None:
    return os.environ.get(name, DEFAULT_ASSETS if name == ASSETS else None)
