"""A comparison of two models as a log of Inspect, next to comparison.json."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from rlhf.data.expand import text_key
from rlhf.evaluation.exports.inspect_log import FILE, write_inspect_log
from rlhf.evaluation.exports.logged_evaluation import LoggedEvaluation, LoggedMetric, LoggedSample
from rlhf.pipeline.compared_models import Answers

NO_VERDICT = "in one order or both there is no verdict"


def export_comparison(
    folder: Path, record: Mapping[str, Any], a: Answers, b: Answers, *, dataset: str, started: datetime
) -> None:
    """Write the log: a sample for each prompt, whose score is the mean outcome of a's completions against b's.

    Args:
        folder: Of the comparison.
        record: What ``comparison.json`` holds.
        a: Completions of the model that the log is of.
        b: Those of the other.
        dataset: Where the prompts are from.
        started: In UTC.
    """
    places: dict[str, list[int]] = {}
    for place, prompt in enumerate(a.prompts):
        places.setdefault(text_key(prompt), []).append(place)  # one outcome for each text, as the comparison has it
    outcomes: Mapping[str, float | None] = record["per_prompt"]["win_rate"]
    samples = []
    for (name, outcome), of in zip(outcomes.items(), places.values(), strict=True):
        mine, theirs = ([each for place in of for each in side.samples[place]] for side in (a, b))
        samples.append(
            LoggedSample(
                id=name, epoch=1, input=a.prompts[of[0]], target=[], output=mine[0].text, truncated=not mine[0].ended,
                scores={} if outcome is None else {"win_rate": outcome},
                unscored={"win_rate": NO_VERDICT} if outcome is None else {},
                metadata={"completions": [each.text for each in mine], "other_completions": [each.text for each in theirs]},
            )
        )  # fmt: skip
    metrics = [LoggedMetric(name="win_rate", estimate=record["win_rate"], unit="share")]
    missing = {} if metrics[0].measured else {"win_rate": str(record.get("reason") or record["win_rate"].get("reason"))}
    log = LoggedEvaluation(
        task=f"compare/{folder.name}", model=record["a"]["name"], dataset=dataset, samples=samples, metrics=metrics,
        generation={**record["sampling"], "seed": record["seed"]},
        settings={"against": record["b"]["name"], "judge": record["judge"]["name"], "sentence": record["sentence"]},
        missing=missing, started=started.isoformat(timespec="seconds"), completed=record["time"],
    )  # fmt: skip
    write_inspect_log(folder / FILE, log)
