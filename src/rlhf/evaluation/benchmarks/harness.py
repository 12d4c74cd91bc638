"""Any task of lm-evaluation-harness on a model of ours, through the harness's own Python API.

Its means are taken again from its per-item values, so that they come with intervals over items and can be compared in pairs. Choices that
tie for the highest likelihood share the credit, where the harness's argmax takes the first one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from peft import PeftModel

from rlhf.errors import ConfigError, did_you_mean, require
from rlhf.evaluation.benchmarks.results import BenchmarkResult
from rlhf.evaluation.intervals import Estimate, mean_interval, share_interval
from rlhf.models.policy import PolicyModel, merged

PREFIX = "lm-eval:"
"""Before the name of a task: ``lm-eval:arc_easy``."""


def run_harness_task(
    policy: PolicyModel,
    task: str,
    *,
    include_path: Path | str | None = None,
    num_fewshot: int | None = None,
    chat_template: bool = False,
    limit: int | None = None,
    seed: int = 0,
    **unused: Any,
) -> BenchmarkResult:
    """Run one task.

    Args:
        policy: The model; an adapter is merged into a copy.
        task: A name of the harness's, or of a YAML file in ``include_path``.
        include_path: A folder with tasks of your own.
        num_fewshot: Examples before each item; what the task says by default.
        chat_template: Ask in the model's chat template.
        limit: Use only this many items, the first ones.
        seed: Of the harness's draws.
        unused: What other benchmarks want.

    Raises:
        MissingExtraError: lm-eval is not installed.
        ConfigError: The harness knows no such task.
    """
    harness = require("lm_eval", extra="eval", needed_for="A task of lm-evaluation-harness")
    tasks = require("lm_eval.tasks", extra="eval", needed_for="A task of lm-evaluation-harness")
    models = require("lm_eval.models.huggingface", extra="eval", needed_for="A task of lm-evaluation-harness")
    own = tasks.TaskManager(include_path=str(include_path), include_defaults=False) if include_path else None
    # The index of the harness's own tasks takes seconds to read.
    manager = own if own is not None and task in own.all_tasks else tasks.TaskManager(include_path=include_path)
    known = [str(name) for name in manager.all_tasks]
    if task not in known:
        raise ConfigError(
            f"lm-evaluation-harness has no task {task!r} among its {len(known):,}.{did_you_mean(task, known)} Name a folder with tasks "
            "of your own as include_path."
        )
    plain = merged(policy.model) if isinstance(policy.model, PeftModel) else policy.model
    model = models.HFLM(pretrained=plain, tokenizer=policy.tokenizer, backend="causal", batch_size=8)
    output = harness.simple_evaluate(
        model=model, tasks=[task], task_manager=manager, num_fewshot=num_fewshot, apply_chat_template=chat_template,
        limit=limit, log_samples=True, bootstrap_iters=0, random_seed=seed, numpy_random_seed=seed, torch_random_seed=seed,
        fewshot_random_seed=seed,
    )  # fmt: skip
    scores: dict[str, Estimate] = {}
    items: list[dict[str, Any]] = []
    for name, samples in output["samples"].items():
        several = len(output["samples"]) > 1
        values = per_item_values(samples)
        for metric, column in values.items():
            scores[f"{name}/{metric}" if several else metric] = _estimate(column)
        for place, sample in enumerate(samples):
            own = {metric: column[place] for metric, column in values.items()}
            items.append({"id": f"{name}/{sample['doc_id']}" if several else str(sample["doc_id"]), **own})
    missing = {
        str(key): "the harness computes it over the whole task, so it has no interval; see its value under settings"
        for results in output["results"].values()
        for key, value in results.items()
        if isinstance(value, float)
        and "stderr" not in key
        and key.partition(",")[0] not in {s.rpartition("/")[2] for s in scores}
    }
    return BenchmarkResult(
        name=PREFIX.replace(":", "-") + task,
        scores=scores,
        settings={
            "task": task,
            "lm_eval": str(output.get("lm_eval_version", harness.__version__)),
            "versions": {str(k): v for k, v in output["versions"].items()},
            "num_fewshot": {str(k): v for k, v in output["n-shot"].items()},
            "chat_template": chat_template,
            "limit": limit,
            "seed": seed,
            "harness": {name: _plain(results) for name, results in output["results"].items()},
        },
        items=items,
        missing=missing,
    )


def per_item_values(samples: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Metric -> one value for each item, None where the harness gives none; accuracy with ties shared.

    Args:
        samples: The harness's logged samples of one task.
    """
    names = list(dict.fromkeys(str(metric) for sample in samples for metric in sample.get("metrics", ())))
    values: dict[str, list[float | None]] = {}
    for name in names:
        column = [_number(sample.get(name)) for sample in samples]
        if any(value is not None for value in column):
            values[name] = column
    if "acc" in values:
        values["acc"] = [_shared(sample, value) for sample, value in zip(samples, values["acc"], strict=True)]
    return values


def _shared(sample: Mapping[str, Any], value: float | None) -> float | None:
    """The item's accuracy; where several choices have the highest likelihood and the right one is among them, its share."""
    answers, target = sample.get("filtered_resps"), sample.get("target")
    if value is None or not isinstance(answers, list | tuple) or len(answers) < 2 or isinstance(target, bool):
        return value
    likelihoods = [_number(answer[0]) if isinstance(answer, list | tuple) and answer else None for answer in answers]
    if (
        any(likelihood is None for likelihood in likelihoods)
        or not str(target).isdigit()
        or int(str(target)) >= len(answers)
    ):
        return value
    best = [
        place
        for place, likelihood in enumerate(likelihoods)
        if likelihood == max(v for v in likelihoods if v is not None)
    ]
    return value if len(best) == 1 else (1 / len(best) if int(str(target)) in best else 0.0)


def _estimate(column: Sequence[float | None]) -> Estimate:
    known = np.array([value for value in column if value is not None])
    if known.size < len(column):
        return Estimate.missing(f"{len(column) - known.size} of {len(column)} items have no value", n=int(known.size))
    return share_interval(known) if ((known >= 0) & (known <= 1)).all() else mean_interval(known)


def _number(value: Any) -> float | None:
    if isinstance(value, str | bytes | list | tuple | dict) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _plain(results: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(key): value for key, value in results.items() if isinstance(value, str | int) or _number(value) is not None
    }
