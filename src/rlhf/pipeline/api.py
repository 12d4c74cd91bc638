"""The few-line face of the pipeline.

    from rlhf import RLHFConfig, RLHFTrainer
    trainer = RLHFTrainer(RLHFConfig(model_name="my-model", sft_dataset="sft.jsonl", reward_dataset="pairs.jsonl"))
    trainer.train_sft(); trainer.train_reward_model(); trainer.train_ppo()

Every call runs one more stage of an ordinary recipe, so the run folder, resume and report are the same as with
``rlhf run``; what another process finished in the same folder is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field

from rlhf.config.base import BaseConfig
from rlhf.config.descriptions import described_fields
from rlhf.config.model import AUTO, DeviceName
from rlhf.config.yaml_text import read_yaml
from rlhf.errors import ConfigError, check_type
from rlhf.pipeline.held_out import FOLDER, Split, split_by_prompt
from rlhf.pipeline.staged_run import FinishedStage, StagedRun

T = TypeVar("T", bound=BaseConfig)
CALLS = {
    "train_sft": "sft",
    "train_reward_model": "reward",
    "train_ppo": "ppo",
    "train_grpo": "grpo",
    "train_dpo": "dpo",
    "evaluate": "evaluate",
}
"""Method of ``RLHFTrainer`` -> kind of the stage whose keys it takes."""
SET_BY = {
    "model": ("model_name",),
    "data": ("sft_dataset", "reward_dataset"),
    "prompts": ("prompt_dataset",),
    "reward": ("reward_model",),
    "epochs": ("sft_epochs", "reward_epochs"),
    "rollouts": ("ppo_rollouts",),
}
"""Key of stages -> fields of ``RLHFConfig`` that set it."""


def _explained(config: type[T]) -> type[T]:
    """The same class, what its fields mean in its docstring: ``help`` shows no more of a pydantic model than that."""
    fields = [f"    {name}: {field.description}" for name, field in described_fields(config).items()]
    config.__doc__ = "\n".join([config.__doc__ or "", "", "Args:", *fields])
    return config


@_explained
class RLHFConfig(BaseConfig):
    """What most runs need to say; everything else keeps the defaults of its stage."""

    model_name: str
    """Model folder or hub name; `embedded` is the tiny one in this package."""
    sft_model: str | None = None
    """A model that is fine-tuned already, folder or hub name: where the other stages start without `train_sft`."""
    reward_model: str | None = None
    """A reward model, folder or hub name: who judges without `train_reward_model`."""
    output_dir: str = "runs/rlhf"
    """The run folder."""
    sft_dataset: str | None = None
    """Demonstrations, for `train_sft`."""
    reward_dataset: str | None = None
    """Preference pairs, for `train_reward_model` and `train_dpo`."""
    prompt_dataset: str | None = None
    """Prompts for `train_ppo` and `train_grpo`; those of `reward_dataset` by default."""
    eval_prompts: str | None = None
    """Prompts for `evaluate` that no stage trains on; by default some of `prompt_dataset` are held out for it."""
    eval_prompts_frac: float = Field(0.1, ge=0, lt=1)
    """Share of the prompts that is held out for `evaluate` where there are no `eval_prompts`; the policy's stages don't see them."""
    learning_rate: float = Field(1.41e-5, gt=0)
    """Of the policy in PPO and GRPO."""
    dpo_learning_rate: float = Field(5e-7, gt=0)
    """Of the policy in DPO."""
    sft_learning_rate: float = Field(2e-5, gt=0)
    """Of SFT."""
    reward_learning_rate: float = Field(1e-5, gt=0)
    """Of the reward model."""
    sft_epochs: float = Field(3, gt=0)
    """Passes over the demonstrations."""
    sft_batch_size: int = Field(32, ge=1)
    """Demonstrations in an optimizer step."""
    reward_epochs: float = Field(1, gt=0)
    """Passes over the pairs, for the reward model."""
    reward_batch_size: int = Field(32, ge=1)
    """Pairs in an optimizer step of the reward model."""
    ppo_epochs: int = Field(4, ge=1)
    """Passes over each rollout."""
    ppo_rollouts: int = Field(100, ge=1)
    """How many times the policy is asked, in PPO and GRPO."""
    batch_size: int = Field(64, ge=1)
    """Prompts in each rollout."""
    mini_batch_size: int = Field(8, ge=1)
    """Completions in an optimizer step of PPO."""
    max_new_tokens: int = Field(64, ge=1)
    """Longest completion in tokens."""
    temperature: float = Field(1.0, gt=0)
    """Of the sampled completions, in training and in `evaluate`."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Completions are sampled from the likeliest tokens whose probabilities add up to this."""
    max_length: int = Field(1024, ge=2)
    """Longest row in tokens; longer ones are dropped and counted."""
    kl_coef: float = Field(0.1, ge=0)
    """Weight of PPO's KL penalty."""
    clip_range: float = Field(0.2, gt=0, le=1)
    """PPO and GRPO reward no ratio below 1 - clip_range or above 1 + clip_range."""
    value_clip_range: float | None = Field(0.2, gt=0)
    """PPO's values move at most this far from those of the rollout; None for no limit."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """PPO's trade of bias (0) for variance (1) in advantages."""
    group_size: int = Field(8, ge=2)
    """Completions for each prompt in GRPO."""
    beta: float = Field(0.1, gt=0)
    """DPO's pull towards the reference."""
    eval_frac: float = Field(0.1, ge=0, lt=1)
    """Share of the pairs held out to measure the reward model."""
    seed: int = Field(0, ge=0)
    """Seeds everything."""
    device: DeviceName = AUTO
    """Where models are: `cpu`, `cuda`, `cuda:N`, or `auto` for the first GPU that torch has, else the CPU."""

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read the fields from a YAML file.

        Raises:
            ConfigError: The file can't be read, or a field is wrong.
        """
        return cls.of(read_yaml(path), source=str(path))

    @classmethod
    def hint_on_key(cls, key: str) -> str:
        """The field, or else the calls, for a key of stages: ours or another library's. See ``AnswersKeys``."""
        from rlhf.config.foreign_keys import THEIRS  # here: tables that only a mistake needs
        from rlhf.config.schema import stage_classes

        for name in (key, *THEIRS.get(key.lower(), ())):
            if name in SET_BY:
                return f"Did you mean {' or '.join(map(repr, SET_BY[name]))}?"
            first = name.partition(".")[0]
            if calls := [call for call, kind in CALLS.items() if first in stage_classes()[kind].model_fields]:
                return f"It is a setting of single stages, {name!r}: give it to {' or '.join(calls)}."
        return ""


class RLHFTrainer(StagedRun):
    """Runs the stages of one run folder, one call each.

    Args:
        config: What to train on what.
        quiet: Print nothing.

    Raises:
        ConfigError: The run folder holds a recipe that this version can't read.
    """

    def __init__(self, config: RLHFConfig, *, quiet: bool = False) -> None:
        check_type(config, RLHFConfig, name="config", expected="an RLHFConfig, such as RLHFConfig(model_name=...)")
        super().__init__(config.output_dir, seed=config.seed, device=config.device, quiet=quiet)
        self.config = config

    def train_sft(self, **settings: Any) -> FinishedStage:
        """Fine-tune on ``sft_dataset``; ``settings`` are keys of the stage (`rlhf config schema sft`)."""
        config = self.config
        return self.run_stage(
            "sft",
            {
                "kind": "sft",
                "model": config.model_name,
                "data": self._needed("sft_dataset", "train_sft"),
                "learning_rate": config.sft_learning_rate,
                "epochs": config.sft_epochs,
                "batch_size": config.sft_batch_size,
                "max_length": config.max_length,
                "truncation": "drop",
                **settings,
            },
        )

    def train_reward_model(self, **settings: Any) -> FinishedStage:
        """Train a reward model on ``reward_dataset``, from the fine-tuned model where there is one."""
        config = self.config
        return self.run_stage(
            "reward",
            {
                "kind": "reward",
                "model": self._start(),
                "data": self._needed("reward_dataset", "train_reward_model"),
                "eval_frac": config.eval_frac,
                "learning_rate": config.reward_learning_rate,
                "epochs": config.reward_epochs,
                "batch_size": config.reward_batch_size,
                "max_length": config.max_length,
                **settings,
            },
        )

    def train_ppo(self, **settings: Any) -> FinishedStage:
        """PPO against the reward model of ``train_reward_model``."""
        config = self.config
        judge = settings["reward"] if "reward" in settings else self._judge("train_ppo", "reward")
        return self.run_stage(
            "ppo",
            {
                "kind": "ppo",
                "model": self._start(),
                "prompts": self._prompts("train_ppo"),
                "reward": judge,
                "learning_rate": config.learning_rate,
                "rollouts": config.ppo_rollouts,
                "epochs_per_rollout": config.ppo_epochs,
                "prompts_per_rollout": config.batch_size,
                "minibatch_size": config.mini_batch_size,
                "sampling": self._sampling(),
                "kl": {"coef": config.kl_coef},
                "clip_low": config.clip_range,
                "clip_high": config.clip_range,
                "clip_value": config.value_clip_range,
                "gae_lambda": config.gae_lambda,
                "value_init": "policy" if "reward" in settings else "reward",
                **settings,
            },
        )

    def train_grpo(self, **settings: Any) -> FinishedStage:
        """GRPO against the reward model of ``train_reward_model``."""
        config = self.config
        judge = settings["reward"] if "reward" in settings else self._judge("train_grpo", "reward")
        size = config.group_size
        return self.run_stage(
            "grpo",
            {
                "kind": "grpo",
                "model": self._start(),
                "prompts": self._prompts("train_grpo"),
                "reward": judge,
                "learning_rate": config.learning_rate,
                "rollouts": config.ppo_rollouts,
                "prompts_per_rollout": max(1, config.batch_size // size),
                "group_size": size,
                "minibatch_size": size * max(1, config.batch_size // size),
                "sampling": self._sampling(),
                "clip_low": config.clip_range,
                "clip_high": config.clip_range,
                **settings,
            },
        )

    def train_dpo(self, **settings: Any) -> FinishedStage:
        """DPO on ``reward_dataset``, from the fine-tuned model where there is one."""
        config = self.config
        return self.run_stage(
            "dpo",
            {
                "kind": "dpo",
                "model": self._start(),
                "data": self._pairs("train_dpo"),
                "learning_rate": config.dpo_learning_rate,
                "beta": config.beta,
                "eval_frac": config.eval_frac,
                "max_length": config.max_length,
                **settings,
            },
        )

    def evaluate(self, *, judge: Any = None, **settings: Any) -> FinishedStage:
        """Compare the newest policy with where it started, on prompts that no call trained it on.

        The judge is the reward model unless another is given. A reward model that judges the policy trained against it
        flatters it, and console and report say so; give an independent ``judge`` where there is one. They say so too where
        prompts could not be held out: those that ``train_ppo`` was given as ``prompts=...``, or in a file that is neither JSON
        nor JSONL.

        Returns:
            The stage's record; ``metrics["win_rate"]`` and the like are numbers, ``headline`` is a line.
        """
        newest = self.newest_policy()
        if newest is None:
            raise ConfigError(
                "evaluate needs a trained policy: call train_sft, train_ppo, train_grpo or train_dpo first."
            )
        if "prompts" in settings:
            settings["prompts"] = self._in_parts(settings["prompts"])
        judge = judge if judge is not None else self._judge("evaluate", "judge")
        return self.run_stage(
            "evaluate",
            {
                "kind": "evaluate",
                "policy": f"stage:{newest}",
                "baseline": self.stages[newest]["model"],
                "prompts": self._held_out_prompts(),
                "judge": judge,
                "sampling": self._sampling(),
                "limit": 200,
                **settings,
            },
        )

    def _start(self) -> str:
        return "stage:sft" if "sft" in self.stages else self.config.sft_model or self.config.model_name

    def _judge(self, call: str, argument: str) -> str:
        """The reward model: the one that was trained here, else the config's."""
        if "reward" in self.stages:
            return "stage:reward"
        if self.config.reward_model is None:
            raise ConfigError(
                f"{call} needs a {argument}: call train_reward_model first, or give {argument}=... or "
                "RLHFConfig(reward_model=...)."
            )
        return self.config.reward_model

    def _sampling(self) -> dict[str, Any]:
        config = self.config
        return {"max_new_tokens": config.max_new_tokens, "temperature": config.temperature, "top_p": config.top_p}

    def _prompts(self, call: str) -> str:
        """What the policy is asked in training."""
        source = self._all_prompts(call)
        split = self._split(source)
        return str(split.training) if split is not None else source

    def _pairs(self, call: str) -> str:
        """What the policy learns from directly: without the prompts that it will be measured on, where those are among them."""
        source = self._needed("reward_dataset", call)
        split = self._split(source) if self.config.prompt_dataset in (None, source) else None
        return str(split.training) if split is not None else source

    def _held_out_prompts(self) -> str:
        if self.config.eval_prompts is not None:
            return self.config.eval_prompts
        source = self._all_prompts("evaluate")
        split = self._split(source)
        return str(split.held_out) if split is not None else source

    def _in_parts(self, prompts: str | list[str]) -> str | list[str]:
        """A file that was split for training, as its two parts: so it is seen that the policy learned from most of it."""
        if not isinstance(prompts, str) or (split := self._split(prompts)) is None:
            return prompts
        learned = [stage.get(key) for stage in self.stages.values() for key in ("prompts", "data")]
        return [str(split.training), str(split.held_out)] if str(split.training) in learned else prompts

    def _all_prompts(self, call: str) -> str:
        return self.config.prompt_dataset or self._needed("reward_dataset", call)

    def _split(self, source: str) -> Split | None:
        config = self.config
        if config.eval_prompts is not None:
            return None
        return split_by_prompt(source, self.run_dir / FOLDER, frac=config.eval_prompts_frac, seed=config.seed)

    def _needed(self, field: str, call: str) -> str:
        value: str | None = getattr(self.config, field)
        if value is None:
            raise ConfigError(f"{call} needs RLHFConfig({field}=...), a file of rows.")
        return value
