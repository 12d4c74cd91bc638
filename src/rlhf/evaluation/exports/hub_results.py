"""Evaluation results as the Hub shows them: an entry of a model's ``.eval_results/`` folder, and a ``model-index`` for its README.

Both are made by ``huggingface_hub``, whose documentation is the format's (https://huggingface.co/docs/hub/eval-results). The first is what a
leaderboard of a benchmark data set reads; the second the Hub's older form, which any data set will do for. Neither has a place for an
interval: it is written into the notes of the first and the metric's arguments of the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlhf.config.hub_results import HubResultsConfig
from rlhf.evaluation.exports.logged_evaluation import LoggedMetric
from rlhf.files import write_text
from rlhf.formatting import percentage
from rlhf.version import __version__

EVAL_RESULTS, MODEL_INDEX = "hub/eval_results.yaml", "hub/model_index.yaml"
"""Written into the stage's folder."""


def write_hub_results(
    folder: Path,
    config: HubResultsConfig,
    metrics: Sequence[LoggedMetric],
    missing: Mapping[str, str],
    *,
    date: str,
    model: str,
) -> str | None:
    """Write both files.

    Args:
        folder: Of the stage.
        config: Data set, task and metric.
        metrics: What was measured.
        missing: Why other metrics were not.
        date: ISO 8601.
        model: What the model is called.

    Returns:
        Why nothing was written; None where it was.
    """
    known = {metric.name: metric for metric in metrics if metric.measured}
    metric = known.get(config.metric)
    if metric is None:
        why = missing.get(config.metric) or f"it was not among what was measured ({', '.join(known) or 'nothing'})"
        return f"hub_results: {config.metric} has no value, {why}; no file was written, for a number that is missing is not 0"
    write_text(folder / EVAL_RESULTS, _text(eval_results(config, metric, date=date)))
    write_text(folder / MODEL_INDEX, _text({"model-index": model_index(config, list(known.values()), model=model)}))
    return None


def eval_results(config: HubResultsConfig, metric: LoggedMetric, *, date: str) -> list[dict[str, Any]]:
    """The content of a file of ``.eval_results/``: one entry."""
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

    notes = "; ".join(
        part for part in (config.notes, _interval(metric), f"rlhf {__version__}, metric {metric.name}") if part
    )
    entry = EvalResultEntry(
        dataset_id=config.dataset, task_id=config.task_id, value=metric.estimate["value"], dataset_revision=config.revision,
        date=date, source_url=config.source_url, source_name=config.source_name, notes=notes,
    )  # fmt: skip
    entries: list[dict[str, Any]] = eval_result_entries_to_yaml([entry])
    return entries


def model_index(config: HubResultsConfig, metrics: Sequence[LoggedMetric], *, model: str) -> list[dict[str, Any]]:
    """The value of ``model-index`` in a README's front matter: every number that was measured."""
    from huggingface_hub import EvalResult
    from huggingface_hub.repocard_data import eval_results_to_model_index

    results = [
        EvalResult(
            task_type=config.task_type, dataset_type=config.dataset, dataset_name=config.dataset_name or config.dataset,
            dataset_revision=config.revision, dataset_split=config.split, metric_type=metric.name, metric_name=metric.name,
            metric_value=metric.estimate["value"], metric_args=_ends(metric) or None,
            source_url=config.source_url, source_name=config.source_name,
        )
        for metric in metrics
    ]  # fmt: skip
    index: list[dict[str, Any]] = eval_results_to_model_index(model, results)
    return index


def _ends(metric: LoggedMetric) -> dict[str, Any]:
    return {
        name: metric.estimate[name]
        for name in ("low", "high", "confidence", "n")
        if metric.estimate.get(name) is not None
    }


def _interval(metric: LoggedMetric) -> str:
    ends = _ends(metric)
    if not {"low", "high"} <= ends.keys():
        return ""
    percent = percentage(ends.get("confidence", 0.95), 0)
    return f"{percent} interval {ends['low']:.4g} to {ends['high']:.4g}" + (f", n = {ends['n']}" if "n" in ends else "")


def _text(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text
