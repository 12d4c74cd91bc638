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

from rlhf.config.base import Config, apply_overrides, read_yaml
from rlhf.config.model import ModelConfig
from rlhf.config.rewards import RewardSpec, RewardSpecs
from rlhf.config.training import DPOConfig, GRPOConfig, PPOConfig, RewardModelConfig, SamplingConfig, SFTConfig
from rlhf.errors import ConfigError, did_you_mean

STAGE = re.compile(r"^stage:(?P<name>[A-Za-z0-9_-]+)(?:/(?P<file>.+))?$")
NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
STAGE_NAME = re.compile(r"^[A-Za-z0-9_-]+$")
DEFAULT_ASSETS = "../shared/assets"


class DataInputs(Config):
    """Rows to learn from and rows to look at."""

    data: str | list[str]
    """Training rows: JSONL, JSON, CSV, Parquet or Arrow files, a folder of `datasets`, or a hub name."""
    eval_data: str | list[str] | None = None
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
    prompts: str
    """What is asked, for training pairs."""
    test_prompts: str | None = None
    """What is asked for held-out pairs, labelled without noise."""
    annotator: str = "rlhf.data.world.pairs:annotate"
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
    prompts: str | list[str]
    """What to ask."""
    eval_prompts: str | list[str] | None = None
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
    prompts: str | list[str]
    """Held-out prompts."""
    judge: RewardSpec
    """Ground truth that no policy stage was trained against: a function, a rule, a lexicon or a reward model."""
    reward_model: str | None = None
    """The proxy that the policy was trained against: measured before and after, and on `pairs`."""
    pairs: str | None = None
    """Held-out preference pairs, for the reward model's accuracy and calibration."""
    rollouts: str | None = None
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
        if not isinstance(stages, Mapping) or not isinstance(seed := tree.get("seed", 0), int):
            return tree
        filled = {
            name: {**stage, "seed": stage.get("seed", seed)} if isinstance(stage, Mapping) else stage
            for name, stage in stages.items()
        }
        return {**tree, "stages": filled}

    @model_validator(mode="after")
    def _inputs_exist(self) -> Self:
        if not self.stages:
            raise ValueError("there are no stages")
        seen: list[str] = []
        for name, stage in self.stages.items():
            if not STAGE_NAME.match(name):
                raise ValueError(f"stage {name!r}: a name holds letters, digits, '_' and '-'")
            for place, parent, file in stage_references(stage):
                if parent not in seen:
                    hint = did_you_mean(parent, seen) or (f" Earlier stages: {', '.join(seen)}." if seen else "")
                    raise ValueError(
                        f"stages.{name}.{place} names stage:{parent}, which does not come before it.{hint}"
                    )
                if file is None and self.stages[parent].kind not in MODEL_STAGES:
                    raise ValueError(
                        f"stages.{name}.{place}: stage:{parent} makes files, not a model; "
                        f"name one of them, as in stage:{parent}/FILE"
                    )
            seen.append(name)
        return self


def stage_references(stage: Config) -> Iterator[tuple[str, str, str | None]]:
    """(place, stage name, file or None) of every ``stage:`` input."""
    yield from _references(stage.model_dump(), ())


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> RecipeConfig:
    """Read a YAML recipe, apply ``key.sub=value`` overrides, fill in environment variables, validate once.

    Raises:
        ConfigError: With every complaint.
    """
    tree = apply_overrides(read_yaml(path), overrides)
    return RecipeConfig.of(expand_variables(tree, str(path)), source=str(path))


def expand_variables(value: Any, source: str) -> Any:
    """``${NAME}`` in every text of a tree, from the environment; RLHF_ASSETS has a default."""
    if isinstance(value, dict):
        return {key: expand_variables(item, source) for key, item in value.items()}
    if isinstance(value, list):
        return [expand_variables(item, source) for item in value]
    if not isinstance(value, str):
        return value

    def found(match: re.Match[str]) -> str:
        name = match[1]
        if name in os.environ:
            return os.environ[name]
        if name == "RLHF_ASSETS":
            return DEFAULT_ASSETS
        raise ConfigError(
            f"{source} uses ${{{name}}}, but the environment has no variable {name}; set it or write the value."
        )

    return re.sub(r"\$\{(\w+)\}", found, value)


def _references(value: Any, place: tuple[str, ...]) -> Iterator[tuple[str, str, str | None]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _references(item, (*place, str(key)))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _references(item, (*place, str(index)))
    elif isinstance(value, str) and (match := STAGE.match(value)):
        yield ".".join(p for p in place if p != "path"), match["name"], match["file"]
