"""The few-line face of the pipeline.

    from rlhf import RLHFConfig, RLHFTrainer
    trainer = RLHFTrainer(RLHFConfig(model_name="my-model", sft_dataset="sft.jsonl", reward_dataset="pairs.jsonl"))
    trainer.train_sft(); trainer.train_reward_model(); trainer.train_ppo()

Every call runs one more stage of an ordinary recipe, so the run folder, resume and report are the same as with
``rlhf run``; what another process finished in the same folder is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field
from rich.console import Console

from rlhf.config.base import Config, read_yaml
from rlhf.config.model import AUTO, DeviceName
from rlhf.config.recipe import RecipeConfig
from rlhf.config.stages import POLICY_KINDS
from rlhf.errors import ConfigError
from rlhf.pipeline.artifacts import Artifact
from rlhf.pipeline.held_out import FOLDER, Split, split_by_prompt
from rlhf.pipeline.plan import parents_of
from rlhf.pipeline.run import Pipeline

T = TypeVar("T", bound=Config)


def _explained(config: type[T]) -> type[T]:
    """The same class, what its fields mean in its docstring: ``help`` shows no more of a pydantic model than that."""
    fields = [f"    {name}: {field.description}" for name, field in config.model_fields.items()]
    config.__doc__ = "\n".join([config.__doc__ or "", "", "Args:", *fields])
    return config


@_explained
class RLHFConfig(Config):
    """What most runs need to say; everything else keeps the defaults of its stage."""

    model_name: str
    """Model folder or hub name; `embedded` is the tiny one in this package."""
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
    """Of the policy in PPO, GRPO and DPO."""
    sft_learning_rate: float = Field(2e-5, gt=0)
    """Of SFT."""
    reward_learning_rate: float = Field(1e-5, gt=0)
    """Of the reward model."""
    sft_epochs: float = Field(3, gt=0)
    """Passes over the demonstrations."""
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
    max_length: int = Field(1024, ge=2)
    """Longest row in tokens; longer ones are dropped and counted."""
    kl_coef: float = Field(0.1, ge=0)
    """Weight of PPO's KL penalty."""
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


class RLHFTrainer:
    """Runs the stages of one run folder, one call each.

    Args:
        config: What to train on what.
        quiet: Print nothing.

    Raises:
        ConfigError: The run folder holds a recipe that this version can't read.
    """

    def __init__(self, config: RLHFConfig, *, quiet: bool = False) -> None:
        self.config = config
        self.console = None if quiet else Console()
        self.run_dir = Path(config.output_dir)
        self.stages: dict[str, Any] = _finished_stages(self.run_dir)
        """Settings by name: what is finished in the run folder, and what this process made."""

    def train_sft(self, **settings: Any) -> Artifact:
        """Fine-tune on ``sft_dataset``; ``settings`` are keys of the stage (`rlhf config schema sft`)."""
        config = self.config
        return self._run(
            "sft",
            {
                "kind": "sft",
                "model": config.model_name,
                "data": self._needed("sft_dataset", "train_sft"),
                "learning_rate": config.sft_learning_rate,
                "epochs": config.sft_epochs,
                "max_length": config.max_length,
                "truncation": "drop",
                **settings,
            },
        )

    def train_reward_model(self, **settings: Any) -> Artifact:
        """Train a reward model on ``reward_dataset``, from the fine-tuned model where there is one."""
        config = self.config
        return self._run(
            "reward",
            {
                "kind": "reward",
                "model": self._start(),
                "data": self._needed("reward_dataset", "train_reward_model"),
                "eval_frac": config.eval_frac,
                "learning_rate": config.reward_learning_rate,
                "max_length": config.max_length,
                **settings,
            },
        )

    def train_ppo(self, **settings: Any) -> Artifact:
        """PPO against the reward model of ``train_reward_model``."""
        config = self.config
        if "reward" not in self.stages and "reward" not in settings:
            raise ConfigError("train_ppo needs a reward: call train_reward_model first, or give reward=... .")
        return self._run(
            "ppo",
            {
                "kind": "ppo",
                "model": self._start(),
                "prompts": self._prompts("train_ppo"),
                "reward": "stage:reward",
                "learning_rate": config.learning_rate,
                "rollouts": config.ppo_rollouts,
                "epochs_per_rollout": config.ppo_epochs,
                "prompts_per_rollout": config.batch_size,
                "minibatch_size": config.mini_batch_size,
                "sampling": {"max_new_tokens": config.max_new_tokens},
                "kl": {"coef": config.kl_coef},
                "value_init": "reward" if "reward" in self.stages and "reward" not in settings else "policy",
                **settings,
            },
        )

    def train_grpo(self, **settings: Any) -> Artifact:
        """GRPO against the reward model of ``train_reward_model``."""
        config = self.config
        if "reward" not in self.stages and "reward" not in settings:
            raise ConfigError("train_grpo needs a reward: call train_reward_model first, or give reward=... .")
        size = config.group_size
        return self._run(
            "grpo",
            {
                "kind": "grpo",
                "model": self._start(),
                "prompts": self._prompts("train_grpo"),
                "reward": "stage:reward",
                "learning_rate": config.learning_rate,
                "rollouts": config.ppo_rollouts,
                "prompts_per_rollout": max(1, config.batch_size // size),
                "group_size": size,
                "minibatch_size": size * max(1, config.batch_size // size),
                "sampling": {"max_new_tokens": config.max_new_tokens},
                **settings,
            },
        )

    def train_dpo(self, **settings: Any) -> Artifact:
        """DPO on ``reward_dataset``, from the fine-tuned model where there is one."""
        config = self.config
        return self._run(
            "dpo",
            {
                "kind": "dpo",
                "model": self._start(),
                "data": self._pairs("train_dpo"),
                "learning_rate": config.learning_rate,
                "beta": config.beta,
                "eval_frac": config.eval_frac,
                "max_length": config.max_length,
                **settings,
            },
        )

    def evaluate(self, *, judge: Any = None, **settings: Any) -> Artifact:
        """Compare the newest policy with where it started, on prompts that no call trained it on.

        The judge is the reward model unless another is given. A reward model that judges the policy trained against it
        flatters it, and console and report say so; give an independent ``judge`` where there is one. They say so too where
        prompts could not be held out: those that ``train_ppo`` was given as ``prompts=...``, or in a file that is neither JSON
        nor JSONL.

        Returns:
            The stage's record; ``metrics["win_rate"]`` and the like are numbers, ``headline`` is a line.
        """
        newest = self._newest_policy()
        if newest is None:
            raise ConfigError(
                "evaluate needs a trained policy: call train_sft, train_ppo, train_grpo or train_dpo first."
            )
        if "prompts" in settings:
            settings["prompts"] = self._in_parts(settings["prompts"])
        if judge is None and "reward" not in self.stages:
            raise ConfigError("evaluate needs a judge: call train_reward_model first, or give judge=... .")
        return self._run(
            "evaluate",
            {
                "kind": "evaluate",
                "policy": f"stage:{newest}",
                "baseline": self.stages[newest]["model"],
                "prompts": self._held_out_prompts(),
                "judge": judge if judge is not None else "stage:reward",
                "sampling": {"max_new_tokens": self.config.max_new_tokens},
                "limit": 200,
                **settings,
            },
        )

    def _run(self, name: str, stage: dict[str, Any]) -> Artifact:
        stages = {**self.stages, name: stage}
        tree = {
            "name": self.run_dir.name,
            "output_dir": str(self.run_dir.parent),
            "seed": self.config.seed,
            "device": self.config.device,
            "stages": _in_order(stages),
        }
        pipeline = Pipeline(RecipeConfig.of(tree, source="RLHFConfig"), console=self.console)
        pipeline.run(only_for=name, brief=True)
        self.stages = stages  # only now: a refused call leaves the others as they were
        return pipeline.artifacts[name]

    def _newest_policy(self) -> str | None:
        """The policy stage that was finished last."""
        made = {
            name: artifact.finished
            for name, stage in self.stages.items()
            if stage["kind"] in POLICY_KINDS and (artifact := Artifact.read(self.run_dir / name)) is not None
        }
        return max(reversed(made), key=lambda name: made[name], default=None)

    def _start(self) -> str:
        return "stage:sft" if "sft" in self.stages else self.config.model_name

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


def _finished_stages(run_dir: Path) -> dict[str, Any]:
    """Settings of the finished stages in a run folder, and of those that they were made from, in their order."""
    path = run_dir / "recipe.yaml"
    if not path.is_file():
        return {}
    recipe = RecipeConfig.of(read_yaml(path), source=str(path))
    needed: set[str] = set()
    for name in reversed(recipe.stages):
        if name in needed or Artifact.read(run_dir / name) is not None:
            needed |= {name, *parents_of(recipe.stages[name])}
    return {name: stage.model_dump(mode="json") for name, stage in recipe.stages.items() if name in needed}


def _in_order(stages: Mapping[str, Any]) -> dict[str, Any]:
    """Each stage behind those that it reads from, else in the order given: calls may come in any order."""
    ordered: dict[str, Any] = {}
    waiting = dict(stages)
    while waiting:
        ready = (name for name, stage in waiting.items() if not waiting.keys() & _references(stage))
        name = next(ready, next(iter(waiting)))  # where they wait for each other the recipe says so, in its words
        ordered[name] = waiting.pop(name)
    return ordered


def _references(stage: Any) -> set[str]:
    return set(re.findall(r'"stage:([A-Za-z0-9_-]+)', json.dumps(stage, default=str)))
