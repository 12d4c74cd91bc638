"""Resources that a recipe needs: packages, a run folder, disk, memory, a GPU."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from rlhf.config.deepspeed import deepspeed_settings
from rlhf.config.engines import engines_of
from rlhf.config.environments import environments_of
from rlhf.config.model import AUTO, ModelConfig
from rlhf.config.stage_inputs import PolicyTraining
from rlhf.config.stage_union import Stage
from rlhf.config.threads import check_threads, usable_cores
from rlhf.config.training import TrainConfig
from rlhf.errors import (
    ConfigError,
    MemoryLimitError,
    MissingExtraError,
    RunBusyError,
    StorageError,
    pip_line,
)
from rlhf.formatting import bytes_text
from rlhf.pipeline.doctor import probes
from rlhf.pipeline.lock import busy, is_locked
from rlhf.pipeline.validate.input_paths import facts_of
from rlhf.pipeline.validate.inputs import policies
from rlhf.pipeline.validate.review import Review

GIB = 1 << 30
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""
MOMENTS = 2
"""Numbers that AdamW keeps for each parameter."""
TRACKERS: Mapping[str, str] = {"tensorboard": "track", "wandb": "track", "trackio": "track"}
"""Package -> the extra that brings it."""
RECORD = "artifact.json"


def check_resources(review: Review) -> None:
    """Compare what the recipe needs with what is here."""
    recipe = review.recipe
    cores = usable_cores()
    with review.at("threads"):
        check_threads(recipe.threads)
    if recipe.threads is not None and recipe.threads > cores and not review.is_wrong("threads"):
        review.warn(
            "threads", f"{recipe.threads} threads on {cores} usable cores slow each other down; give at most {cores}."
        )
    _check_device(review)
    _check_run_folder(review, Path(recipe.output_dir) / recipe.name)
    for _, stage in review.each_stage():
        for key, config in policies(stage):
            _check_quantization(review, key, config)
        if stage.trains:
            _check_trackers(review, stage)
            _check_deepspeed(review, stage)
        _check_parts(review, stage)
    _check_sizes(review)


def memory_needed(review: Review, stage: Stage) -> int | None:
    """Least bytes that a stage takes: weights, gradients, AdamW's averages and the other models, without activations."""
    if not stage.trains:
        return None
    model: ModelConfig = stage.model
    facts = facts_of(review, model)
    if facts is None:
        return None
    weights = facts.num_parameters * WIDTH[model.dtype]
    anchors = int(stage.l2_coef > 0)
    trained = weights if model.lora is not None else weights * (2 + MOMENTS + anchors)
    needed = trained * getattr(stage, "num_models", 1) + _frozen(review, stage, weights)
    if isinstance(stage, PolicyTraining) and stage.ewc is not None and model.lora is None:
        needed += weights + facts.num_parameters * WIDTH["float32"]  # the anchors and their Fisher information
    if _has_critic(stage):
        needed += trained
    if (teacher := getattr(stage, "teacher", None)) is not None and (facts := facts_of(review, teacher)) is not None:
        needed += facts.num_parameters * WIDTH[teacher.dtype]
    return needed


def _frozen(review: Review, stage: Stage, weights: int) -> int:
    """Bytes of reference and reward models, each as large as the policy; on a GPU those of ``offload`` are there one at a time."""
    rewards = sum(len(spec.models_asked()) for spec in getattr(stage, "reward", []))
    count = {"reference": int(stage.holds_reference), "reward": rewards}
    waiting = {name for name in getattr(stage, "offload", ()) if count[name] and _uses_gpu(review)}
    return weights * (sum(number for name, number in count.items() if name not in waiting) + bool(waiting))


def _has_critic(stage: Stage) -> bool:
    """Whether a critic with weights of its own learns, too."""
    return getattr(stage, "value_model", None) == "separate"


def disk_needed(review: Review, stage: Stage) -> tuple[int, int] | None:
    """Bytes of the model that a stage saves, and of the checkpoints that it keeps while it runs."""
    if not stage.trains:
        return None
    model: ModelConfig = stage.model
    facts = facts_of(review, model)
    if facts is None:
        return None
    if model.lora is not None:
        return 0, 0  # an adapter is a hundredth of the weights
    copies = getattr(stage, "num_models", 1)
    weights = facts.num_parameters * WIDTH[model.dtype] * copies
    trained = weights * 2 if _has_critic(stage) else weights
    # One more than are kept: a new one is written before the oldest goes. The best weights so far are a copy too.
    kept_best = int(stage.early_stopping is not None and stage.early_stopping.keep_best) + int(
        stage.ema_decay is not None
    )
    return weights, trained * (1 + MOMENTS + kept_best) * (stage.keep_checkpoints + 1)


def _check_run_folder(review: Review, run_dir: Path) -> None:
    try:
        nearest = probes.nearest_folder(run_dir)
    except PermissionError:
        review.error("output_dir", f"{run_dir} can't be read: this process has no permission.", StorageError)
        return
    if not nearest.is_dir():
        review.error(
            "output_dir", f"{nearest} is a file; the run's folder {run_dir} can't be made there.", StorageError
        )
    elif not os.access(nearest, os.W_OK | os.X_OK):
        review.error(
            "output_dir",
            f"{nearest} can't be written to, and {run_dir} is to be there; give another output_dir or change its mode.",
            StorageError,
        )
    elif review.deep and is_locked(run_dir):  # a run takes the lock itself, and a dry run needs none
        review.error("name", busy(run_dir), RunBusyError)


def _check_device(review: Review) -> None:
    """A GPU that is named must be there. Only torch knows the available ones; a run checks before it writes anything."""
    name = review.recipe.device
    if name in (AUTO, "cpu"):
        return
    if not review.deep:
        review.leave(f"whether torch has the device {name}")
        return
    from rlhf.models.device import resolve_device

    try:
        resolve_device(name)
    except ConfigError as err:
        review.error("device", str(err), ConfigError)


def _check_quantization(review: Review, key: str, config: ModelConfig) -> None:
    if config.lora is None or not config.lora.quantize_4bit:
        return
    if importlib.util.find_spec("bitsandbytes") is None:
        review.error(f"{key}.lora.quantize_4bit", _pip_line("bitsandbytes", "quant"), MissingExtraError)


def _check_deepspeed(review: Review, stage: TrainConfig) -> None:
    if stage.deepspeed is None:
        return
    try:
        deepspeed_settings(stage.deepspeed, stage)
    except ConfigError as err:
        review.error("deepspeed", str(err), ConfigError)


def _check_trackers(review: Review, stage: TrainConfig) -> None:
    for name in stage.log_to:
        if importlib.util.find_spec(name) is None:
            review.error("log_to", _pip_line(name, TRACKERS[name]), MissingExtraError)


def _check_parts(review: Review, stage: Stage) -> None:
    """An interpreter or a package that is not there is better known now than when the stage before has trained for a day."""
    engines = [(key, engine.missing()) for key, engine in engines_of(stage).items()]
    others = [(key, environment.missing()) for key, environment in environments_of(stage).items()]
    for key, lacks in (*engines, *others):
        for setting, message, kind in lacks:
            review.error(f"{key}.{setting}", message, kind)


def _pip_line(package: str, extra: str) -> str:
    return f"It needs the package {package!r}. Install it with: {pip_line(extra)}"


def _check_sizes(review: Review) -> None:
    """Disk and memory, from the parameter counts."""
    run_dir = Path(review.recipe.output_dir) / review.recipe.name
    models, checkpoints, largest = 0, 0, ""
    unknown: list[str] = []
    memory = _memory(review)
    for name, stage in review.each_stage():
        disk, needed = disk_needed(review, stage), memory_needed(review, stage)
        if disk is None or needed is None:
            if stage.trains:
                unknown.append(name)
            continue
        if memory is not None and needed > memory:
            review.warn(
                "model",
                f"Training takes at least {bytes_text(needed)} for weights, gradients and AdamW's averages, and this machine has "
                f"{bytes_text(memory)}; use lora, dtype: bfloat16 with it, or a smaller model.",
                MemoryLimitError,
            )
        if (run_dir / name / RECORD).exists():
            continue  # exists already, or replaces what exists
        models += disk[0]
        if disk[1] > checkpoints:
            checkpoints, largest = disk[1], name
    if unknown:
        needs = "needs (the size of its model is" if len(unknown) == 1 else "need (the sizes of their models are"
        review.leave(f"memory and disk that {_listed(unknown)} {needs} not known)")
    _check_disk(review, models, checkpoints, largest)


def _check_disk(review: Review, models: int, checkpoints: int, largest: str) -> None:
    """Models stay; checkpoints go when their stage is done, so only the largest set of them counts."""
    needed = models + checkpoints
    try:
        free = probes.free_bytes(Path(review.recipe.output_dir))
    except OSError:
        return  # reported already, for the folder
    if needed > free:
        review.error(
            "output_dir",
            f"{review.recipe.output_dir} has {bytes_text(free)} free, and the run needs about {bytes_text(needed)}: "
            f"{bytes_text(models)} for models, "
            f"{bytes_text(checkpoints)} for the checkpoints of {largest}; free some, lower keep_checkpoints, or give another output_dir.",
            StorageError,
        )


def _memory(review: Review) -> int | None:
    """Of the GPU that models are put on, else of the machine; None where only torch could tell and may not be loaded."""
    if not _uses_gpu(review):
        return probes.memory_bytes()
    if not review.deep:
        return None
    import torch

    from rlhf.models.device import resolve_device

    try:
        total: int = torch.cuda.get_device_properties(resolve_device(review.recipe.device)).total_memory
    except ConfigError:
        return None  # reported already: there is no such GPU
    return total


def _uses_gpu(review: Review) -> bool:
    """Whether models go to a GPU, as far as may be known."""
    if review.recipe.device == "cpu":
        return False
    if not review.deep:
        return probes.has_nvidia()
    if not probes.may_have_gpu():
        return False
    import torch

    return torch.cuda.is_available()


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
