"""A recipe: named stages, each with its settings and its inputs.

An input is a file, a folder, a hub name, or ``stage:NAME`` (the model of an earlier stage) or ``stage:NAME/FILE`` (a
file it wrote). ``${VARIABLE}`` stands for an environment variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from rlhf.config.base import Config, FunctionName, InputPath, apply_overrides, named_things, read_yaml, refusal
from rlhf.config.complaints import TAG
from rlhf.config.model import ModelConfig
from rlhf.config.overrides import blame_overrides
from rlhf.config.rewards import RewardSpec, RewardSpecs
from rlhf.config.training import DPOConfig, GRPOConfig, PPOConfig, RewardModelConfig, SamplingConfig, SFTConfig
from rlhf.errors import ConfigError, did_you_mean

STAGE = re.compile(r"^stage:(?P<name>[A-Za-z0-9_-]+)(?:/(?P<file>.+))?\Z")
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
STAGE_NAME = re.compile(r"^[A-Za-z0-9_-]+\Z")
VARIABLE = re.compile(r"\$\{(?P<name>[^}\n]*)\}")
REFERENCE = "stage:"
ASSETS = "RLHF_ASSETS"
DEFAULT_ASSETS = "../shared/assets"
Input = tuple[str, str]
"""Dotted place inside a stage, and the text that stands there."""


class DataInputs(Config):
    """Rows to learn from and rows to look at."""

    data: InputPath | list[InputPath]
    """Training rows: JSONL, JSON, CSV, Parquet or Arrow files, a folder of `datasets`, or a hub name."""
    eval_data: InputPath | list[InputPath] | None = None
    """Held-out rows."""
    eval_frac: float = Field(0.0, ge=0, lt=1)
    """Without `eval_data`: hold this share of the rows out."""
    columns: dict[str, str | None] | None = None
    """Other names for columns, theirs to ours, as in `question: prompt`; null drops a column."""
    limit: int | None = Field(None, ge=1)
    """Use only this many rows."""
    streaming: bool = False
    """Read rows as they are needed instead of loading the file; needs `max_steps`."""
    shuffle_buffer: int = Field(10_000, ge=0)
    """Rows of a stream that are shuffled together; 0 keeps the order of the file."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Stop at a bad row, or count and list it."""


class WorldStage(Config):
    """Build the embedded world: facts, demonstrations, prompts, held-out prompts."""

    kind: Literal["world"]
    split_seed: int = Field(0, ge=0)
    """Seeds which prompts and facts are held out."""
    seed: int | None = Field(None, ge=0)
    """Seeds demonstrations and documents; the recipe's by default."""
    num_documents: int = Field(0, ge=0)
    """Pre-training documents for a new base model (pretrain.jsonl); 0 where the base model is there already."""
    vocab_size: int | None = Field(None, ge=300)
    """Train a tokenizer of this many entries on the documents and write it to `tokenizer/`."""


class PreferencesStage(Config):
    """Sample completions and have an annotator compare them: preference pairs."""

    kind: Literal["preferences"]
    model: ModelConfig
    """Who is asked."""
    prompts: InputPath
    """What is asked, for training pairs."""
    test_prompts: InputPath | None = None
    """What is asked for held-out pairs, labelled without noise."""
    annotator: FunctionName = "rlhf.data.world.pairs:annotate"
    """`package.module:function` that turns samples into pairs."""
    noise: float = Field(0.1, ge=0, le=0.5)
    """Share of training pairs that the annotator labels the wrong way round."""
    num_pairs: int = Field(2500, ge=1)
    """Training pairs wanted; prompts are asked in shuffled order until there are as many."""
    num_test_pairs: int = Field(400, ge=1)
    """Held-out pairs wanted."""
    completions_per_prompt: int = Field(4, ge=2)
    """Samples among which the annotator picks the best and the worst."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""


class SFTStage(SFTConfig, DataInputs):
    """Supervised fine-tuning."""

    kind: Literal["sft"]
    model: ModelConfig
    """Where to start."""


class RewardStage(RewardModelConfig, DataInputs):
    """Train a reward model."""

    kind: Literal["reward"]
    model: ModelConfig
    """Whose backbone to start from."""


class DPOStage(DPOConfig, DataInputs):
    """Direct preference optimisation."""

    kind: Literal["dpo"]
    model: ModelConfig
    """Where to start; also the reference."""


class RLInputs(Config):
    """What a policy stage asks and who judges."""

    model: ModelConfig
    """Where to start."""
    reference: ModelConfig | None = None
    """What the KL penalty pulls towards; the starting policy by default."""
    prompts: InputPath | list[InputPath]
    """What to ask."""
    eval_prompts: InputPath | list[InputPath] | None = None
    """Held-out prompts, asked and judged by the same reward at each evaluation; early stopping can watch `eval/score_mean`."""
    reward: RewardSpecs
    """Who judges: a reward model, a built-in rule, a Python function, or a weighted list of them."""
    limit: int | None = Field(None, ge=1)
    """Use only this many prompts."""


class PPOStage(PPOConfig, RLInputs):
    """Proximal policy optimisation."""

    kind: Literal["ppo"]


class GRPOStage(GRPOConfig, RLInputs):
    """Group-relative policy optimisation."""

    kind: Literal["grpo"]


class EvaluateStage(Config):
    """Compare a policy with where it started, on prompts nobody trained on."""

    kind: Literal["evaluate"]
    policy: ModelConfig
    """The policy after."""
    baseline: ModelConfig
    """The policy before."""
    prompts: InputPath | list[InputPath]
    """Held-out prompts."""
    judge: RewardSpec
    """Ground truth that no policy stage was trained against: a function, a rule, a lexicon or a reward model."""
    reward_model: InputPath | None = None
    """The proxy that the policy was trained against: measured before and after, and on `pairs`."""
    pairs: InputPath | None = None
    """Held-out preference pairs, for the reward model's accuracy and calibration."""
    rollouts: InputPath | None = None
    """`rollouts.jsonl` of a policy stage: judged after the fact for the curve of proxy against truth."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens; longer ones are left out and counted."""
    limit: int | None = Field(None, ge=1)
    """Use only this many prompts."""
    samples_per_prompt: int = Field(1, ge=1)
    """Completions of each policy for each prompt."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""


Stage = Annotated[
    WorldStage | PreferencesStage | SFTStage | RewardStage | DPOStage | PPOStage | GRPOStage | EvaluateStage,
    Field(discriminator="kind"),
]
MODEL_STAGES = ("sft", "reward", "dpo", "ppo", "grpo")
FILE_STAGES = ("world", "preferences", "evaluate")


class RecipeConfig(Config):
    """What `rlhf run` runs."""

    name: str
    """Names the run's folder."""
    description: str = ""
    """A sentence for the report."""
    output_dir: str = "runs"
    """Where run folders lie."""
    seed: int = Field(0, ge=0)
    """Seeds every stage that does not name its own."""
    threads: int | None = Field(None, ge=1)
    """CPU threads for torch; by default one for each core."""
    stages: dict[str, Stage]
    """Run in this order; a later one may use what an earlier one made."""

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not NAME.match(name):
            raise ValueError("a name holds letters, digits, '.', '_' and '-' and starts with a letter or digit")
        return name

    @model_validator(mode="before")
    @classmethod
    def _seeded(cls, tree: Any) -> Any:
        """The recipe's seed goes into every stage that has none of its own."""
        stages = tree.get("stages") if isinstance(tree, Mapping) else None
        seed = tree.get("seed", 0) if isinstance(tree, Mapping) else None
        if not isinstance(stages, Mapping) or not isinstance(seed, int) or seed < 0:
            return tree  # a wrong seed is complained about once, where it stands
        filled = {
            name: {**stage, "seed": stage.get("seed", seed)} if isinstance(stage, Mapping) else stage
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
    def left_unchecked(cls, tree: Mapping[str, Any]) -> list[str]:
        """See ``Config.left_unchecked``."""
        stages = tree.get("stages")
        if not isinstance(stages, Mapping):
            return []
        inputs = {
            str(name): (stage.get(TAG), list(_untyped_inputs(stage, ()))) if isinstance(stage, Mapping) else (None, [])
            for name, stage in stages.items()
        }
        return list(_input_complaints(inputs))


def stage_references(stage: Config) -> Iterator[tuple[str, str, str | None]]:
    """(place, stage name, file or None) of every ``stage:`` input."""
    for place, text, _ in named_things(stage):
        if match := STAGE.match(text):
            yield ".".join(part for part in place if part != "path"), match["name"], match["file"]


def _typed_inputs(stage: Config) -> list[Input]:
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


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> RecipeConfig:
    """Read a YAML recipe, apply ``key.sub=value`` overrides, fill in environment variables, validate once.

    Raises:
        ConfigError: With every complaint.
    """
    written, source = read_yaml(path), str(path)

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
    return VARIABLE.sub(lambda match: _variable(match["name"]) or match[0], value) if isinstance(value, str) else value


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
