"""The inputs of a stage by purpose, and the outputs of each kind of stage."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import rlhf
from rlhf.config.base import ROWS_NAME, Names, named_things
from rlhf.config.file_stages import PreferencesStage
from rlhf.config.judge_reward import JudgeRewardConfig
from rlhf.config.model import ModelConfig
from rlhf.config.recipe import REFERENCE, STAGE
from rlhf.config.rewards import rewards_of
from rlhf.config.stage_inputs import PolicyStage, PolicyTraining, RowsFor, RowsInput, listed
from rlhf.config.stage_union import Stage
from rlhf.config.stages import MODEL_STAGES

ROWS_WANTED: Mapping[RowsFor, str] = {
    "sft": "demonstrations",
    "preference": "pairs",
    "comparison": "pairs or ties",
    "ranking": "rankings",
    "rating": "rated completions",
    "stepwise": "solutions with labeled steps",
    "kto": "completions with a verdict",
    "grpo": "prompts",
}
ROWS_TAKEN: Mapping[RowsFor, frozenset[str]] = {
    "sft": frozenset({"completion", "text", "preference"}),
    "preference": frozenset({"preference", "comparison", "ranking"}),
    "comparison": frozenset({"preference", "comparison", "ranking"}),
    "ranking": frozenset({"preference", "comparison", "ranking"}),
    "rating": frozenset({"rating", "ranking"}),
    "kto": frozenset({"preference", "comparison", "unpaired"}),
    "stepwise": frozenset({"stepwise"}),
    "grpo": frozenset(
        {"prompt", "completion", "preference", "comparison", "ranking", "rating", "unpaired", "stepwise"}
    ),
}
"""Of the kinds of row that stages write, the ones that each use can take; a test compares it with ``PLANS``."""


def rows_inputs(stage: Stage) -> list[RowsInput]:
    """All rows that a stage reads, those that it learns from first."""
    ewc = stage.ewc if isinstance(stage, PolicyTraining) else None
    kept = [RowsInput("ewc.data", listed(ewc.data), "sft", limit=ewc.rows)] if ewc is not None else []
    ptx = stage.ptx if isinstance(stage, PolicyStage) else None
    kept += [RowsInput("ptx.data", listed(ptx.data), "sft")] if ptx is not None else []
    return [*stage.rows_read(), *kept]


def policies(stage: Stage) -> list[tuple[str, ModelConfig]]:
    """Key and settings of every language model that a stage loads."""
    values = ((key, getattr(stage, key)) for key in type(stage).model_fields)
    return [(key, value) for key, value in values if isinstance(value, ModelConfig)]


def written_key(stage: Stage, key: str) -> str:
    """A key as people write it: ``reward`` for ``reward.0.source`` where there is one judge, given as a text."""
    judges = rewards_of(stage)
    for place, spec in judges:
        if key == place or key.startswith(f"{place}."):
            inner = key.removeprefix(place).removeprefix(".")
            key_of_stage = place.partition(".")[0]
            outer = place if sum(p.partition(".")[0] == key_of_stage for p, _ in judges) > 1 else key_of_stage
            is_text = inner == spec.text_key and spec.model_fields_set <= {"kind", inner}
            return f"{outer}.{inner}" if inner and not is_text else outer
    return key


def reward_models(stage: Stage) -> list[tuple[str, str]]:
    """Key and source of every reward model that a stage loads."""
    written = {key for key, _ in judging_models(stage)}
    models = [(f"{key}.{inner}", source) for key, spec in rewards_of(stage) for inner, source in spec.models_asked()]
    models = [(key, source) for key, source in models if key not in written]
    if getattr(stage, "reward_model", None) is not None:
        models.append(("reward_model", stage.reward_model))
    return models


def judging_models(stage: Stage) -> list[tuple[str, ModelConfig]]:
    """Key and settings of every language model that judges in the place of a reward."""
    return [
        (f"{key}.{inner}", ModelConfig.of({"path": source}))
        for key, spec in rewards_of(stage)
        if isinstance(spec, JudgeRewardConfig)
        for inner, source in spec.language_models()
    ]


def functions(stage: Stage) -> list[tuple[str, str]]:
    """Key and name of every Python function that a stage calls."""
    return [(".".join(place), text) for place, text, names in named_things(stage) if names is Names.FUNCTION]


def root_model(stages: Mapping[str, Stage], config: ModelConfig) -> ModelConfig | None:
    """The folder, hub name or new model that a model config leads back to through the stages; None where that is unclear."""
    seen: set[str] = set()
    while config.path is not None and (match := STAGE.match(config.path)):
        name = match["name"]
        parent = stages.get(name)
        if parent is None or name in seen or parent.kind not in MODEL_STAGES:
            return None
        seen.add(name)
        config = parent.start
    return config


def prompts_behind(stages: Mapping[str, Stage], rows: RowsInput) -> Iterator[tuple[str, RowsInput]]:
    """The prompts of the stages that make these rows, with their names; held-out pairs have other prompts."""
    for source in rows.sources:
        match = STAGE.match(source)
        parent = stages.get(match["name"]) if match else None
        if isinstance(parent, PreferencesStage) and match and not (match["file"] or "").startswith("test_"):
            yield match["name"], rows_inputs(parent)[0]


def is_of_stage(text: str) -> bool:
    """Whether a text names what a stage makes, or tries to."""
    return text.startswith(REFERENCE)


def is_rows_name(text: str) -> bool:
    """Whether rows come from a class or function of the user's, which is not run here."""
    return re.match(ROWS_NAME, text) is not None and not os.path.exists(text)


def is_hub_name(text: str) -> bool:
    """Whether a text that names nothing on this machine can be a name on the hub: ``name`` or ``owner/name``.

    What looks like a path or ends like a file is a path that is misspelled.
    """
    path = Path(text).expanduser()
    if is_rows_name(text) or path.exists() or text.startswith((".", "/", "~", REFERENCE)) or text.count("/") > 1:
        return False
    return Path(text.removesuffix(".gz")).suffix.lower() not in DATA_SUFFIXES


DATA_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".arrow", ".txt", ".tsv", ".safetensors", ".bin")


def embedded_model() -> Path:
    """Where this package keeps its base model; as ``rlhf.models.load.embedded_folder``, without an import of torch."""
    return Path(rlhf.__file__).parent / "assets" / "base"


def is_readable(path: Path) -> bool:
    """Whether this process may read a file or list a folder."""
    return os.access(path, os.R_OK | (os.X_OK if path.is_dir() else 0))
