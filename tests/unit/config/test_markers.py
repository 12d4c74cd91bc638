"""Every setting that names a file, a stage or a function says so by its type, so that its content is part of a stage's key."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator

import pytest
from pydantic import Field

from rlhf.config.base import BaseConfig, FunctionName, InputPath, Names, TextOrFile, _marker, named_things
from rlhf.config.descriptions import described_fields
from rlhf.config.recipe import stage_references
from rlhf.config.schema import stage_classes

SOUNDS_LIKE_ONE = re.compile(
    r"\b(files?|folders?|hub|function|jsonl?|csv|jinja|path|tokenizer|module)\b|stage:", re.IGNORECASE
)
NAMES_NOTHING = {
    "TrainConfig.deepspeed": "read when ranks start; no result depends on it",
    "AgainstReference.cache_reference": "a folder for copies of what can be computed; no result depends on them",
    "EvaluateStage.metrics": "names of a table, or functions that are looked up as they are",
    "GateStage.registry": "a folder that the first promotion makes",
    "GateStage.toxicity_classifier": "as of the stage evaluate",
    "MeasuredRequirement.metric": "a name of a table, or a function that is looked up as it is",
    "EvaluateStage.toxicity_classifier": "a folder, a hub name or lexicon:FILE, looked for when it is loaded",
    "HubResultsConfig.dataset": "what the Hub calls the data, in a file that is written; nothing is read",
    "HubResultsConfig.task_type": "the Hub's word for the task",
    "JudgeBase.name": "a word for results",
    "ModelConfig.init": "settings of transformers; weights are drawn",
    "ModelConfig.revision": "a version on the hub, which names no file here",
    "OpenEnvConfig.observation_field": "a key of what a server answers",
    "OpenEnvConfig.reset_columns": "columns of rows",
    "PromptedJudgeConfig.cache": "a file that is written; no result depends on it",
    "RewardBase.name": "a word for metrics",
}
"""Sounds like one and is none, and why."""


def config_classes(base: type[BaseConfig]) -> Iterator[type[BaseConfig]]:
    """A class and all inside it."""
    yield base
    for field in base.model_fields.values():
        for leaf in leaves(field.annotation):
            if isinstance(leaf, type) and issubclass(leaf, BaseConfig):
                yield from config_classes(leaf)


def leaves(annotation: object) -> Iterator[object]:
    args = typing.get_args(annotation)
    if not args:
        yield annotation
    for arg in args:
        yield from leaves(arg)


def owner(cls: type[BaseConfig], name: str) -> str:
    """The class that declares a field first."""
    return [base.__name__ for base in cls.__mro__ if name in vars(base).get("__annotations__", {})][-1]


FIELDS = {
    f"{owner(cls, name)}.{name}": field
    for stage in stage_classes().values()
    for cls in config_classes(stage)
    for name, field in described_fields(cls).items()
}


def is_text(field) -> bool:
    return any(leaf in (str, dict) or leaf is typing.Any for leaf in leaves(field.annotation))


def sounds_like_one(place: str) -> bool:
    return SOUNDS_LIKE_ONE.search(f"{place.partition('.')[2]} {FIELDS[place].description or ''}") is not None


def marker(field) -> Names | None:
    return next((item for item in field.metadata if isinstance(item, Names)), None) or _marker(field.annotation)


@pytest.mark.parametrize("place", sorted(place for place, field in FIELDS.items() if is_text(field)))
def test_a_setting_that_sounds_like_a_file_or_function_is_marked_as_one(place):
    if sounds_like_one(place) and place not in NAMES_NOTHING:
        assert marker(FIELDS[place]) is not None, (
            f"{place} sounds as if it named a file or a function: give it InputPath, TextOrFile or FunctionName, or a "
            f"reason in NAMES_NOTHING"
        )


def test_exceptions_are_fields_without_a_marker():
    for place in NAMES_NOTHING:
        assert place in FIELDS, f"{place} is gone: take it off NAMES_NOTHING"
        assert is_text(FIELDS[place]), f"{place} is not text: take it off NAMES_NOTHING"
        assert marker(FIELDS[place]) is None, f"{place} is marked: take it off NAMES_NOTHING"
        assert sounds_like_one(place), f"{place} does not sound like one: take it off NAMES_NOTHING"


def test_the_search_knows_the_settings_that_name_something():
    marked = {place: marker(field) for place, field in FIELDS.items() if marker(field) is not None}
    assert {place for place, kind in marked.items() if kind is Names.FUNCTION} == {
        "FunctionCriticConfig.function",
        "FunctionJudgeConfig.function",
        "FunctionRewardConfig.function",
        "JudgeRowsStage.rationale",
        "OwnRequirement.function",
        "OwnStrategyConfig.function",
        "PreferencesStage.annotator",
        "PythonEnvironmentConfig.source",
        "StepLabelsStage.labeler",
        "TRLEnvironmentConfig.source",
    }
    assert {
        "DataInputs.data",
        "ModelConfig.path",
        "LexiconRewardConfig.path",
        "EvaluateStage.rollouts",
    } <= marked.keys()
    assert marked["FunctionRewardConfig.arguments"] is Names.TEXT_OR_FILE


class Inner(BaseConfig):
    path: InputPath | None = None
    other: str = "stage:nothing"


class Outer(BaseConfig):
    one: InputPath | list[InputPath]
    inner: Inner = Inner()
    many: list[Inner] = Field(default_factory=list)
    function: FunctionName = "a:b"
    text: TextOrFile = "plain"
    number: int = 3


def test_texts_are_found_wherever_they_stand():
    config = Outer(one=["a", "b"], inner=Inner(path="c"), many=[Inner(), Inner(path="stage:x")])
    assert list(named_things(config)) == [
        (("one", "0"), "a", Names.INPUT),
        (("one", "1"), "b", Names.INPUT),
        (("inner", "path"), "c", Names.INPUT),
        (("many", "1", "path"), "stage:x", Names.INPUT),
        (("function",), "a:b", Names.FUNCTION),
        (("text",), "plain", Names.TEXT_OR_FILE),
    ]
    assert list(stage_references(config)) == [("many.1", "x", None)], "an unmarked text refers to nothing"
