"""An evaluation as a log of Inspect, version 2: one JSON document that ``inspect view`` and ``inspect_ai.log.read_eval_log`` read.

    version, status, eval {task, model, dataset, config, packages ...}, plan, results {scores [{name, scorer, metrics}]}, stats,
    samples [{id, epoch, input, target, messages, output, scores, metadata}]

A sample has a score only where one was given; one that was asked for and not given is in its metadata, with the reason. Every metric of
``results`` has value, low and high, and in its metadata the number of units and the confidence. What could not be measured is
in ``results.metadata.missing``.

Source: the public schema of ``inspect_ai`` (UKGovernmentBEIS/inspect_ai, ``src/inspect_ai/log/_log.py``, 0.3.285).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.evaluation.exports.logged_evaluation import LoggedEvaluation, LoggedMetric, LoggedSample
from rlhf.files import write_json
from rlhf.version import __version__

FILE = "inspect_log.json"
LOG_VERSION = 2
ROLES = ("system", "user", "assistant")
GENERATION = {
    "max_new_tokens": "max_tokens", "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "stop": "stop_seqs", "seed": "seed",
}  # fmt: skip
"""Our name of a setting of sampling -> Inspect's."""
ENDS = {"low", "high"}


def write_inspect_log(path: Path | str, evaluation: LoggedEvaluation) -> None:
    """Write the log, in one step."""
    write_json(path, inspect_log(evaluation))


def inspect_log(evaluation: LoggedEvaluation) -> dict[str, Any]:
    """The document."""
    scorers = list(dict.fromkeys(name for sample in evaluation.samples for name in [*sample.scores, *sample.unscored]))
    epochs = max((sample.epoch for sample in evaluation.samples), default=1)
    ids = list(dict.fromkeys(sample.id for sample in evaluation.samples))
    generation = _generation(evaluation.generation)
    return {
        "version": LOG_VERSION,
        "status": "success",
        "eval": {
            "eval_id": _id(evaluation, "eval"),
            "run_id": _id(evaluation, "run"),
            "created": evaluation.completed,
            "task": evaluation.task,
            "task_id": _id(evaluation, "task"),
            "task_version": 0,
            "dataset": {"name": evaluation.dataset, "samples": len(ids), "sample_ids": ids, "shuffled": False},
            "model": evaluation.model,
            "model_generate_config": generation,
            "config": {"epochs": epochs},
            "packages": {"rlhf": __version__},
            "scorers": [{"name": name} for name in scorers],
            "metadata": {"settings": _finite(evaluation.settings)},
        },
        "plan": {"name": "plan", "steps": [{"solver": "generate", "params": {}}], "config": generation},
        "results": {
            "total_samples": len(evaluation.samples),
            "completed_samples": len(evaluation.samples),
            "scores": _scores(evaluation.metrics, evaluation.samples),
            "metadata": {"missing": dict(evaluation.missing)},
        },
        "stats": {
            "started_at": evaluation.started,
            "completed_at": evaluation.completed,
            "model_usage": _usage_of_all(evaluation),
        },
        "samples": [_sample(sample, evaluation.model) for sample in evaluation.samples],
    }


def place_for(log: Mapping[str, Any], wanted: Path) -> Path:
    """Where a copy of a log goes: the file that is named, or into a folder by the name that Inspect's viewer looks for there."""
    if wanted.suffix == ".json":
        return wanted
    task = re.sub(r"[^a-zA-Z0-9]+", "-", log["eval"]["task"]).strip("-")
    return wanted / f"{log['eval']['created'].replace(':', '-')}_{task}_{log['eval']['eval_id']}.json"


def _scores(metrics: Sequence[LoggedMetric], samples: Sequence[LoggedSample]) -> list[dict[str, Any]]:
    """One entry for each metric; its parts are metrics of the same entry."""
    by_name: dict[str, dict[str, Any]] = {}
    for metric in metrics:
        if not metric.measured:
            continue
        name, _, part = metric.name.partition("/")
        entry = by_name.setdefault(name, {"name": name, "scorer": name, "params": {}, "metrics": {}})
        entry["metrics"] |= _numbers(metric, part)
        if not part and any(name in [*sample.scores, *sample.unscored] for sample in samples):
            entry["scored_samples"] = sum(name in sample.scores for sample in samples)
            entry["unscored_samples"] = sum(name in sample.unscored for sample in samples)
    return list(by_name.values())


def _numbers(metric: LoggedMetric, part: str) -> dict[str, Any]:
    """The value with what is known of it, and the ends of its interval as numbers of their own, which viewers show beside it."""
    about = {
        name: value for name, value in metric.estimate.items() if name not in ("value", "reason") and value is not None
    }
    about |= {"unit": metric.unit} if metric.unit else {}
    about |= {"gain": _finite(metric.gain)} if metric.gain else {}
    prefix = f"{part}/" if part else ""
    own = part or "value"
    numbers = {own: {"name": own, "value": metric.estimate["value"], "params": {}, "metadata": about}}
    for end in sorted(ENDS, reverse=True):
        if metric.estimate.get(end) is not None:
            numbers[f"{prefix}{end}"] = {"name": f"{prefix}{end}", "value": metric.estimate[end], "params": {}}
    return numbers


def _sample(sample: LoggedSample, model: str) -> dict[str, Any]:
    messages = _messages(sample.input)
    answer = {"role": "assistant", "content": sample.output, "source": "generate", "model": model}
    usage = _usage([sample])
    target = sample.target[0] if len(sample.target) == 1 else sample.target or ""
    return {
        "id": sample.id,
        "epoch": sample.epoch,
        "input": sample.input if isinstance(sample.input, str) else messages,
        "target": target,
        "messages": [*messages, answer],
        "output": {
            "model": model,
            "choices": [{"message": answer, "stop_reason": "max_tokens" if sample.truncated else "stop"}],
            "completion": sample.output,
            **({} if usage is None else {"usage": usage}),
        },
        "scores": {
            name: {"value": value, "answer": sample.output, "metadata": _finite(sample.details.get(name, {}))}
            for name, value in sample.scores.items()
        },
        "metadata": {**_finite(sample.metadata), **({"unscored": dict(sample.unscored)} if sample.unscored else {})},
        "model_usage": {} if usage is None else {model: usage},
    }


def _messages(asked: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages of a prompt; a role that Inspect does not know, or a part that is no text, becomes the text of a user's message."""
    if isinstance(asked, str):
        return [{"role": "user", "content": asked, "source": "input"}]
    messages = []
    for message in asked:
        role, content = str(message.get("role")), message.get("content")
        text = content if isinstance(content, str) else "" if content is None else str(content)
        messages.append(
            {"role": role, "content": text, "source": "input"}
            if role in ROLES
            else {"role": "user", "content": f"[{role}] {text}", "source": "input"}
        )
    return messages


def _usage(samples: Sequence[LoggedSample]) -> dict[str, int] | None:
    """Tokens; None where one of them was not counted."""
    asked, said = ([getattr(s, name) for s in samples] for name in ("input_tokens", "output_tokens"))
    if not samples or None in asked or None in said:
        return None
    return {"input_tokens": sum(asked), "output_tokens": sum(said), "total_tokens": sum(asked) + sum(said)}


def _usage_of_all(evaluation: LoggedEvaluation) -> dict[str, Any]:
    usage = _usage(evaluation.samples)
    return {} if usage is None else {evaluation.model: usage}


def _generation(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {theirs: settings[ours] for ours, theirs in GENERATION.items() if settings.get(ours) not in (None, [])}


def _id(evaluation: LoggedEvaluation, what: str) -> str:
    """Of the same evaluation at the same time the same; of another, another."""
    parts = [what, evaluation.task, evaluation.model, evaluation.dataset]
    parts += [] if what == "task" else [evaluation.completed]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:22]


def _finite(value: Any) -> Any:
    """What JSON can hold; a number that was not measured is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
