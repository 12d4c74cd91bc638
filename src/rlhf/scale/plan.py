"""``rlhf plan``: for every training stage of a recipe, memory by component, seconds per step, and what to do with them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlhf.activity import ACTIVITIES
from rlhf.config.engines import PromptLookupConfig, RolloutWeights
from rlhf.config.judge_requests import JudgeRequests, judge_requests
from rlhf.config.model import DType, ModelConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.config.stage_inputs import OfflineStage
from rlhf.config.threads import check_threads
from rlhf.data.pack import Group
from rlhf.errors import ConfigError
from rlhf.models.device import resolve_device
from rlhf.native.compiled_mode import in_c
from rlhf.scale import memory
from rlhf.scale.costs import Costs, Head, Roofline, SamplingCosts, tile_bytes
from rlhf.scale.expected_inputs import Sources
from rlhf.scale.gpus import gpu, this_gpu
from rlhf.scale.machine import Machine, resident_bytes, this_machine
from rlhf.scale.probe import Probe, fits_a_probe
from rlhf.scale.sampled_lengths import SampledLengths
from rlhf.scale.samples import Asked, prompts_of, rollout_groups, rows_of
from rlhf.scale.sampling_costs import SamplingProbe
from rlhf.scale.shape import ModelShape, known_family, shape_of
from rlhf.scale.strategy import Strategy, recommend
from rlhf.scale.warm import warm_up
from rlhf.scale.work import Pass, Work, not_foreseen, offline_work, online_work, steps_of_run

DEFAULT_VOCABULARY = 32_000
"""Of a new model whose tokenizer does not exist yet, if no setting gives its number of tokens."""
MAX_ROWS, MAX_CACHE_TOKENS = 1024, 131_072
"""What the rollout engine samples at once, see ``rlhf.rollout.local.LocalEngine``."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a stage will need."""

    name: str
    kind: str
    num_parameters: int
    num_trainable: int
    steps: int | None
    """Optimizer steps of the whole run; None where the data is not there to count."""
    steps_per_phase: float
    """How many learn from one rollout; 1 where rows come from a file."""
    batch_tokens: float
    """Distinct tokens that one optimizer step learns from."""
    lengths: str
    """Where the lengths of rows come from."""
    memory: dict[str, float]
    """Bytes by component, at the highest moment."""
    seconds: dict[str, float]
    """Processor seconds of each activity, per optimizer step."""
    seconds_once: dict[str, float]
    """At the beginning of the run."""
    strategy: Strategy
    estimated_by: str
    assumed: list[str] = field(default_factory=list)
    judges: list[JudgeRequests] = field(default_factory=list)
    """What judges among the rewards will be asked, and at which price."""

    @property
    def memory_bytes(self) -> float:
        """The peak."""
        return sum(self.memory.values())

    @property
    def seconds_per_step(self) -> float:
        """All activities."""
        return sum(self.seconds.values())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        judges = [judge.as_dict() for judge in self.judges]
        return {
            **asdict(self),
            "judges": judges,
            "memory_bytes": self.memory_bytes,
            "seconds_per_step": self.seconds_per_step,
        }


@dataclass(frozen=True, slots=True)
class RecipePlan:
    """The plan of a recipe."""

    machine: Machine
    stages: list[StagePlan]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"machine": asdict(self.machine), "stages": [stage.as_dict() for stage in self.stages]}


def stages_to_plan(recipe: RecipeConfig, only: str | None) -> dict[str, Any]:
    """The stages that train, or the one of them that is asked for.

    Raises:
        ConfigError: No stage trains, or the one named does not.
    """
    stages = {name: stage for name, stage in recipe.stages.items() if stage.trains}
    if not stages:
        kinds = ", ".join(dict.fromkeys(stage.kind for stage in recipe.stages.values()))
        raise ConfigError(
            f"{recipe.name} has no stage that trains, so there is nothing to plan; its stages are: {kinds}."
        )
    if only is not None and only not in stages:
        raise ConfigError(f"{only!r} is not a training stage of {recipe.name}; these are: {', '.join(stages)}.")
    return {only: stages[only]} if only is not None else stages


def plan_recipe(recipe: RecipeConfig, *, gpu_name: str | None = None, only: str | None = None) -> RecipePlan:
    """Plan every training stage.

    Args:
        recipe: What would be run.
        gpu_name: A GPU of ``rlhf.scale.gpus.TABLE``; None for this machine: the GPU that the recipe's device is, else the CPU.
        only: Plan this stage alone.

    Raises:
        ConfigError: No stage trains, or the one named does not.
        ConfigError: The recipe's device is not there, or it wants more threads than can be started.
        UnknownNameError: No such GPU; or this machine's is not in the table.
        ModelError: A model is not there.
    """
    check_threads(recipe.threads)
    chosen = stages_to_plan(recipe, only)
    dtypes: list[DType] = [_dtype(stage) for stage in recipe.stages.values() if stage.trains]
    device = resolve_device(recipe.device) if gpu_name is None else None
    if gpu_name is not None:
        machine, libraries = gpu(gpu_name), float(memory.GPU_CONTEXT)
    elif device is not None and device.type == "cuda":
        machine, libraries = this_gpu(device), float(memory.GPU_CONTEXT)
    else:
        warm_up(samples=any(not isinstance(stage, OfflineStage) for stage in chosen.values()))
        libraries = float(resident_bytes())  # before anything large is measured: freed memory is not given back
        machine = this_machine(*dtypes, threads=recipe.threads)
    return RecipePlan(
        machine, [StagePlanner(recipe, name, stage, machine, libraries).plan() for name, stage in chosen.items()]
    )


def _dtype(stage: Any) -> DType:
    d_type: DType = stage.model.dtype if stage.autocast == "none" else stage.autocast
    return d_type


@dataclass(frozen=True, kw_only=True)  # no slots: it remembers a mean
class StageFacts:
    """What a stage does and with which models, whatever machine it will run on."""

    work: Work
    groups: Sequence[Group]
    """Rows of a step, or a rollout."""
    steps: int | None
    """See ``StagePlan.steps``."""
    said: str
    """Where the lengths come from."""
    parts: dict[str, float]
    """Bytes of data and of models that are not trained."""
    scored_share: float
    """Tokens that a loss sees, of all."""
    sampling: Asked | None = None
    """Prompts and lengths of completions of a stage that samples."""

    @functools.cached_property
    def tokens_per_group(self) -> float:
        """The mean."""
        return sum(group.num_tokens for group in self.groups) / len(self.groups)


class StagePlanner:
    """One stage."""

    def __init__(
        self, recipe: RecipeConfig, name: str, stage: Any, machine: Machine, libraries: float,
        sampled: SampledLengths | None = None,
    ) -> None:  # fmt: skip
        self.sampled = sampled
        self.name, self.stage, self.machine, self.libraries = name, stage, machine, libraries
        self.sources = Sources(recipe)
        self.shapes: dict[str, ModelShape] = {"policy": self._shape(stage.model)}
        self.measured = False
        self._costs: dict[tuple[tuple[object, ...], Head], Costs] = {}

    def plan(self) -> StagePlan:
        with in_c(self.stage.compiled and not self.machine.is_gpu):
            return self._finished(self.facts())

    def facts(self) -> StageFacts:
        """Its rows and passes; fills in ``shapes``."""
        return self._offline(self.stage) if isinstance(self.stage, OfflineStage) else self._online()

    def _offline(self, stage: OfflineStage) -> StageFacts:
        shape = self.shapes["policy"]
        sample = rows_of(stage, shape, self.sources)
        work = offline_work(
            stage, tokens_per_row=sample.tokens_per_row, num_rows=sample.num_rows, eval_rows=sample.num_eval
        )
        steps = steps_of_run(stage, sample.num_rows, sample.tokens_per_row)
        self.shapes["reference"] = self._other("reference", shape)
        rows = sample.num_rows or 0
        parts = {"batch": rows * sample.tokens_per_row * memory.BYTES_OF_TOKEN}
        if stage.measures_reference_point and stage.model.lora is None:
            parts["reference"] = float(self.shapes["reference"].weight_bytes)
        return StageFacts(
            work=work, groups=sample.groups, steps=steps, said=sample.said, parts=parts,
            scored_share=sample.scored_per_row / sample.tokens_per_row,
        )  # fmt: skip

    def _online(self) -> StageFacts:
        stage, shape = self.stage, self.shapes["policy"]
        asked = prompts_of(stage, shape, self.sources, self.sampled)
        groups = rollout_groups(
            asked, num_prompts=stage.prompts_per_rollout, group_size=stage.group_size, vocabulary=shape.vocabulary
        )
        rewards = self._reward_models()
        self.shapes["reference"] = self._other("reference", shape)
        tokens = float(sum(group.num_tokens for group in groups))
        frozen = {} if stage.model.lora is not None else {"reference": [self.shapes["reference"].weight_bytes]}
        if rewards:
            frozen["reward models"] = [self.shapes[whose].weight_bytes for whose, _ in rewards]
        parts = {"batch": 3 * tokens * memory.BYTES_OF_TOKEN}
        parts |= memory.frozen_bytes(frozen, stage.offload if self.machine.is_gpu else ())
        critic = getattr(stage, "value_model", None)
        if critic is not None:
            self.shapes["critic"] = shape
        if getattr(stage, "teacher", None) is not None:
            self.shapes["teacher"] = self._shape(stage.teacher)
            parts["teacher"] = float(self.shapes["teacher"].weight_bytes)
        if stage.max_staleness > 0:
            parts["sampler's process"] = self.libraries + memory.sampler_bytes(
                shape, rollouts_ahead=min(stage.max_staleness, stage.rollouts)
            )
        for sentence in not_foreseen(stage):
            self.sources.assume(sentence)
        work = online_work(stage, tokens=tokens, reward_models=rewards)
        steps = steps_of_run(stage, None, 1)
        return StageFacts(
            work=work, groups=groups, steps=steps, said=asked.said, parts=parts,
            scored_share=sum(group.num_scored for group in groups) / tokens, sampling=asked,
        )  # fmt: skip

    def _finished(self, facts: StageFacts) -> StagePlan:
        work, groups, steps, parts, sampling = facts.work, facts.groups, facts.steps, facts.parts, facts.sampling
        seconds: dict[str, float] = dict.fromkeys(ACTIVITIES, 0.0)
        for one in work.read:
            seconds[one.activity] += one.times * self._read_seconds(one, groups)
        for one in work.learned:
            learned = self.cost(one, groups).learn(one.tokens / one.microbatches)
            if one is work.learned[0]:  # a critic reads the same batches
                seconds["data"] += one.times * one.microbatches * learned.packing
            seconds["forward"] += one.times * one.microbatches * learned.forward
            seconds["backward"] += one.times * one.microbatches * learned.backward
        for whose, times in work.optimized.items():
            first = next(one for one in work.learned if one.whose == whose)
            seconds["optimizer"] += times * self.cost(first, groups).optimize()
        once: dict[str, float] = {one.activity: one.times * self._read_seconds(one, groups) for one in work.once}
        if sampling is not None:
            self._sample(groups, sampling, work, seconds, parts)
        self._remember(work, parts, facts.scored_share, steps, groups)
        shape = self.shapes["policy"]
        return StagePlan(
            name=self.name,
            kind=self.stage.kind,
            num_parameters=shape.num_parameters,
            num_trainable=shape.num_trainable,
            steps=steps,
            steps_per_phase=work.steps,
            batch_tokens=work.learned[0].tokens,
            lengths=facts.said,
            memory=parts,
            seconds={name: spent / work.steps for name, spent in seconds.items() if spent > 0},
            seconds_once=once,
            strategy=recommend(self.stage, shape, parts, self.machine),
            estimated_by="thin copies measured here"
            if self.measured
            else "published or measured figures of the machine alone",
            assumed=list(self.sources.assumed),
            judges=[] if sampling is None else self.judges(groups),
        )

    def judges(self, groups: Sequence[Group]) -> list[JudgeRequests]:
        """Requests to judges, with the lengths of prompts that the plan has."""
        prompts = [len(group.prefix) for group in groups]
        return judge_requests(self.stage, prompt_tokens=sum(prompts) / max(1, len(prompts)))

    def _read_seconds(self, one: Pass, groups: Sequence[Group]) -> float:
        return one.microbatches * self.cost(one, groups).read(one.tokens / one.microbatches)

    def _remember(
        self, work: Work, parts: dict[str, float], scored_share: float, steps: int | None, groups: Sequence[Group]
    ) -> None:
        """Weights, averages, and the memory of training, of the policy and of a separate critic."""
        stage, shape = self.stage, self.shapes["policy"]
        copies = int(getattr(stage, "num_models", 1))
        own = memory.model_bytes(shape, copies=copies)
        first = work.learned[0]
        learned = self.cost(first, groups).learn(first.largest)
        scored = first.largest * scored_share if first.head == "logprobs" else 0.0
        tiles = tile_bytes(scored, shape.vocabulary, is_gpu=self.machine.is_gpu) if scored else 0.0
        parts |= {"weights": own["weights"], "optimizer": own["optimizer"]}
        parts |= memory.learning_bytes(learned, shape, microbatches=first.microbatches, tiles=tiles)
        parts["gradients"] += (copies - 1) * own["gradients"] / copies
        passes = first.microbatches * (math.inf if steps is None else steps)
        parts["kernels"] = parts.get("kernels", 0.0) + memory.kernel_bytes(learned, shape, passes=passes)
        trained = [shape]
        for one in work.learned[1:]:
            critic = self.shapes[one.whose]
            trained.append(critic)
            learned_critic = self.cost(one, groups).learn(one.largest)
            held = memory.model_bytes(critic)
            parts["critic"] = held["weights"] + held["optimizer"] + learned_critic.peak_bytes
        reading = self._reading_bytes(work, groups)
        if self.machine.is_gpu:  # its allocator reuses freed memory
            reading = max(0.0, reading - parts["activations"] - parts["gradients"])
        parts["passes without gradient"] = reading
        parts["copies of weights"] = memory.extra_copies(stage, shape)
        parts["checkpoint copy"] = memory.checkpoint_bytes(trained, stage, copies=copies, steps=steps)
        parts["libraries"] = self.libraries
        for name in [name for name, size in parts.items() if size == 0]:
            del parts[name]

    def _reading_bytes(self, work: Work, groups: Sequence[Group]) -> float:
        """The most that a pass without gradient takes: evaluations and the like fill their micro-batches."""
        passes = [*work.read, *work.once, *work.looked_at]
        return max((self.cost(one, groups).reading_bytes(one.largest) for one in passes), default=0.0)

    def _sample(
        self, groups: Sequence[Group], asked: Asked, work: Work, seconds: dict[str, float], parts: dict[str, float]
    ) -> None:
        """Time and memory of a rollout."""
        stage, shape = self.stage, self.shapes["policy"]
        lengths = [len(branch.tokens) for group in groups for branch in group.branches]
        prompts = [len(group.prefix) for group in groups]
        weights: RolloutWeights = getattr(stage.engine, "weights", "same")
        costs = self.sampling_costs(groups, asked)
        side_by_side = min(len(lengths), MAX_ROWS, max(1, MAX_CACHE_TOKENS // (max(prompts) + max(lengths))))
        chunks = -(-len(lengths) // side_by_side)
        parts["kernels"] = costs.kernel_bytes(lengths[:side_by_side], stage.rollouts * chunks)
        for chunk in range(chunks):
            rows = lengths[chunk * side_by_side : (chunk + 1) * side_by_side]
            share = len(rows) / len(lengths)
            prefill, decode = costs.decode(sum(prompts) * share, max(1, round(len(prompts) * share)), rows)
            seconds["rollout prefill"] += work.asked * prefill
            seconds["rollout decode"] += work.asked * decode
        parts["sampling"] = costs.sampling_bytes(prompts, side_by_side)
        if weights != "same":
            parts["weights for sampling"] = memory.sampling_copy_bytes(shape, weights)
        at_once = prompts[: max(1, len(prompts) // chunks)]
        parts["KV cache"] = memory.cache_bytes(
            shape, prompts=at_once, rows=side_by_side, longest=max(lengths), autocast=stage.autocast
        )

    def sampling_costs(self, groups: Sequence[Group], asked: Asked) -> SamplingCosts:
        """What sampling from its policy takes."""
        stage, shape = self.stage, self.shapes["policy"]
        if not self._is_here(shape):
            return Roofline(shape, groups, self.machine, autocast=stage.autocast, head="logprobs")
        return SamplingProbe(
            shape, asked.prompts, stage.group_size, self.machine,
            autocast=stage.autocast, sampling=stage.sampling, weights=getattr(stage.engine, "weights", "same"),
            speculate=_looked_up(stage.engine), compiled=getattr(stage.engine, "compiled", False),
        )  # fmt: skip

    def cost(self, one: Pass, groups: Sequence[Group]) -> Costs:
        """What a pass of one of its models takes."""
        shape = self.shapes[one.whose]
        key = (shape.likeness, one.head)  # a model that is shaped as another costs the same
        if key not in self._costs:
            options: dict[str, Any] = {"autocast": self.stage.autocast, "head": one.head}
            if self._is_here(shape):
                sampling = getattr(self.stage, "sampling", None)
                self._costs[key] = Probe(
                    shape, groups, self.machine, tokens=one.tokens / one.microbatches, **options,
                    temperature=sampling.temperature if sampling is not None else 1.0,
                    with_entropy=getattr(self.stage, "entropy_coef", 0) > 0,
                )  # fmt: skip
            else:
                self._costs[key] = Roofline(shape, groups, self.machine, **options)
        return self._costs[key]

    def _is_here(self, shape: ModelShape) -> bool:
        here = not self.machine.is_gpu and fits_a_probe(shape, self.machine)
        self.measured |= here
        return here

    def _shape(self, config: ModelConfig) -> ModelShape:
        vocabulary = self.sources.vocabulary(config)
        if config.init is not None and vocabulary is None and "vocab_size" not in config.init:
            self.sources.assume(
                f"the new model has {DEFAULT_VOCABULARY:,} tokens: nothing says how many its tokenizer will have"
            )
            vocabulary = DEFAULT_VOCABULARY
        config = self.sources.model(config)
        if (family := known_family(config)) is not None:
            self.sources.assume(f"{config.path} has the shape that is published of {family}; its files were not read")
        return shape_of(config, default_vocabulary=vocabulary)

    def _other(self, key: str, default: ModelShape) -> ModelShape:
        """A model that a setting names; the policy's own shape where none does."""
        config = getattr(self.stage, key, None)
        return default if config is None else self._shape(config)

    def _reward_models(self) -> list[tuple[str, Head]]:
        models: list[tuple[str, Head]] = []
        for spec in getattr(self.stage, "reward", []):
            for _, source in spec.models_asked():
                whose = f"reward {len(models) + 1}"
                self.shapes[whose] = self._shape(ModelConfig.of({"path": source}))
                models.append((whose, "scalar"))
        return models


def _looked_up(engine: Any) -> PromptLookupConfig | None:
    """How an engine guesses tokens, as far as that can be measured without a trained model."""
    config = getattr(engine, "speculate", None)
    return config if isinstance(config, PromptLookupConfig) else None
