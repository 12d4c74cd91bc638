"""Settings of `rlhf compare`."""

from __future__ import annotations

from pydantic import Field, model_validator

from rlhf.config.base import BaseConfig, InputPath
from rlhf.config.judges import JudgeConfig
from rlhf.config.policy import SamplingConfig


class CompareConfig(BaseConfig):
    """Two models, or files of their completions, and who judges them."""

    a: InputPath
    """A model folder, a stage of a run (`runs/x/ppo`), a hub name, `embedded`, an alias of the registry, or a file of completions."""
    b: InputPath
    """What it is compared with; the same."""
    judge: JudgeConfig = Field(examples=["judge.yaml", "longer", "package.module:function", "models/reward"])
    """Settings of a judge, a file `judge.yaml`, or a text that stands for one."""
    prompts: InputPath | list[InputPath] | None = None
    """Held-out prompts; without them those of the files of completions."""
    limit: int | None = Field(None, ge=1)
    """Use only this many prompts, the first ones."""
    samples_per_prompt: int = Field(1, ge=1)
    """Completions of each model for each prompt; they are averaged, and the prompt stays the unit."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn, of both models alike."""
    seed: int = Field(0, ge=0)
    """The same seed gives the same samples; the two models draw from it independently of each other, as in the stage `evaluate`."""
    confidence: float = Field(0.95, gt=0.5, lt=1)
    """Of all intervals, and so of the verdict."""
    any_time: bool = False
    """The interval holds however often the comparison is repeated with more prompts; it is wider. Otherwise choose the number of prompts
    before: looking again and again until an interval leaves out 1/2 finds a difference between equal models in a third of cases."""
    labels: InputPath | None = None
    """Votes of people on some of these very completions, on a random sample of the prompts: they correct the judge where they can."""
    earlier: InputPath | None = None
    """An earlier `comparison.json` with the same b: the change since then, which another judge, prompt template or set of prompts voids."""
    allow_shared_judge: bool = False
    """Let a judge decide that shares weights or training rows with the reward that a model was trained against, or that a model was made
    from."""
    registry: str = "registry"
    """Folder of the registry whose aliases a and b may name."""

    @model_validator(mode="after")
    def _labels_need_a_fixed_number(self) -> CompareConfig:
        if self.any_time and self.labels is not None:
            raise ValueError("labels correct a rate at a fixed number of prompts; leave out labels, or any_time")
        return self

    @model_validator(mode="after")
    def _are_two(self) -> CompareConfig:
        if self.a == self.b:
            raise ValueError(
                "a and b are the same; two draws of one model are of two copies of its folder or two seeds of `rlhf generate`"
            )
        return self
