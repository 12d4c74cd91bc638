"""An evaluation in the formats of other viewers, next to evaluation.json."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from rlhf.config.hub_results import HubResultsConfig
from rlhf.evaluation.exports.hub_results import write_hub_results
from rlhf.evaluation.exports.inspect_log import FILE, write_inspect_log
from rlhf.evaluation.exports.logged_evaluation import LoggedEvaluation, metrics_of, samples_of
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.records import Evaluation
from rlhf.pipeline.stages.context import StageContext


def export_evaluation(
    at: StageContext,
    inputs: MetricInputs,
    evaluation: Evaluation | None,
    *,
    dataset: str,
    inspect_log: bool,
    hub_results: HubResultsConfig | None,
    started: datetime,
) -> None:
    """Write what is asked for; of the numbers exactly those of evaluation.json, which is there already.

    Args:
        at: Where the stage works.
        inputs: Of the policy.
        evaluation: Where a judge compared it with a baseline.
        dataset: Where the prompts are from.
        inspect_log: Whether a log of Inspect is written.
        hub_results: The results file for the Hub; None for none.
        started: When the stage began, in UTC.
    """
    document = json.loads((at.folder / "evaluation.json").read_text(encoding="utf-8"))
    metrics, missing = metrics_of(document)
    completed = datetime.now(UTC).isoformat(timespec="seconds")
    if inspect_log:
        settings = document.get("settings") or (document.get("metrics") or {}).get("settings") or {}
        log = LoggedEvaluation(
            task=f"{at.run_dir.name}/{at.name}",
            model=inputs.name,
            dataset=dataset,
            samples=list(samples_of(inputs, evaluation)),
            metrics=metrics,
            generation={**inputs.sampling.model_dump(), "seed": inputs.seed},
            settings=settings,
            missing=missing,
            started=started.isoformat(timespec="seconds"),
            completed=completed,
        )
        write_inspect_log(at.folder / FILE, log)
    if hub_results is not None:
        why = write_hub_results(at.folder, hub_results, metrics, missing, date=completed, model=inputs.name)
        if why is not None:
            at.log.alarm(f"{at.name}: {why}.")
