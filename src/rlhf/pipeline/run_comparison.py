"""Two runs next to each other: settings and input files that differ, and results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.pipeline.artifacts import STAGE_INPUT, Artifact, Started
from rlhf.pipeline.reasons import changed_settings, shown_both
from rlhf.pipeline.runs import evaluations_of, json_of, recipe_of

NOT_COMPARED = ("name", "output_dir")
WORDS = {
    "win_rate": "win rate",
    "win_rate_low": "win rate, low end of its 95 % interval",
    "win_rate_high": "win rate, high end of its 95 % interval",
    "reward_accuracy": "reward model's accuracy on held-out pairs",
    "kl": "KL from the baseline, nats per answer, an estimate",
    "gold_before": "judge's mean score before",
    "gold_after": "judge's mean score after",
    "compared": "policy, baseline, judge",
    "verdict": "verdict",
    "verdict_title": "verdict in words",
    "score_first": "mean score of the first rollout",
    "score_last": "mean score of the last rollout",
}
"""Names in summary.json, the algorithm's prefix left out -> what people call them."""
OF_THE_WHOLE = ("eval/", "score_first", "score_last")
"""Parts of the names of a stage's metrics that say how it came out; the others are of its last step, or listed above already."""


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs side by side."""

    runs: tuple[str, str]
    """Names; folders where both have one name."""
    inputs: tuple[tuple[str, str, str], ...]
    """(place, hash in the first, hash in the second) of each file whose content differs, as the stages recorded it."""
    settings: tuple[tuple[str, str, str], ...]
    """(place, in the first, in the second) of each that differs."""
    results: tuple[tuple[str, Any, Any], ...]
    """(name, of the first, of the second); null for what nobody measured."""

    @property
    def headlines(self) -> tuple[tuple[str, Any, Any], ...]:
        """Those results that say how the runs came out: of the whole, and what their stages measured on held-out data."""
        return tuple(
            row for row in self.results
            if row[0].rpartition(": ")[2] in WORDS or any(part in row[0] for part in OF_THE_WHOLE)
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {
            "runs": list(self.runs),
            "inputs": {place: [a, b] for place, a, b in self.inputs},
            "settings": {place: [a, b] for place, a, b in self.settings},
            "results": {name: [a, b] for name, a, b in self.results},
        }


def compare_runs(first: Path, second: Path) -> RunComparison:
    """Settings and contents of input files that differ, and results side by side."""
    was, wanted = ({k: v for k, v in recipe_of(run).items() if k not in NOT_COMPARED} for run in (first, second))
    settings = tuple((place, *shown_both(a, b)) for place, a, b in changed_settings(was, wanted))
    numbers = [_results(run) for run in (first, second)]
    results = tuple(
        (name, numbers[0].get(name), numbers[1].get(name)) for name in dict.fromkeys((*numbers[0], *numbers[1]))
    )
    hashes = [_input_hashes(run) for run in (first, second)]
    inputs = tuple(
        (place, digest, hashes[1][place])
        for place, digest in hashes[0].items()
        if hashes[1].get(place, digest) != digest
    )
    names = first.resolve().name, second.resolve().name
    return RunComparison((str(first), str(second)) if names[0] == names[1] else names, inputs, settings, results)


def _input_hashes(run: Path) -> dict[str, str]:
    """``stages.sft.data`` -> hash of what that file or folder held, of every stage that recorded it; inputs from other stages left out."""
    hashes = {}
    for folder in sorted(path for path in run.glob("*") if path.is_dir()):
        record = Artifact.read(folder) or Started.read(folder)
        parents = record.made_from.parents if isinstance(record, Started) else record.parents if record else {}
        for place, parent in parents.items():
            source, _, digest = parent.rpartition("@")
            if not source.startswith(STAGE_INPUT):
                hashes[f"stages.{folder.name}.{place}"] = digest
    return hashes


def words_for(name: str) -> str:
    """What people call a result of a run, or of one of its evaluations."""
    stage, colon, key = name.rpartition(": ")
    return f"{stage}{colon}{WORDS.get(key.rpartition('/')[2], key)}"


def _results(run: Path) -> dict[str, Any]:
    """Numbers of the summary by name, an evaluation's verdict and numbers and a stage's metrics under the stage."""
    tree = json_of(run / "summary.json")
    evaluations = evaluations_of(tree)
    of_evaluations = {
        (name, value) for each in evaluations.values() for name, value in each.items() if _is_number(value)
    }
    results: dict[str, Any] = {n: v for n, v in tree.items() if _is_number(v) and (n, v) not in of_evaluations}
    for name, each in evaluations.items():
        words = [str(each[key]) for key in ("policy", "baseline", "judge") if each.get(key)]
        results |= {f"{name}: compared": " / ".join(words)} if words else {}
        results |= {
            f"{name}: {key}": each[key] for key in ("verdict", "verdict_title") if isinstance(each.get(key), str)
        }
        results |= {f"{name}: {key}": value for key, value in each.items() if key in WORDS and _is_number(value)}
    stages = tree.get("stages")
    for name, stage in stages.items() if isinstance(stages, dict) else ():
        metrics = stage.get("metrics") if isinstance(stage, dict) else None
        results |= {f"{name}: {m}": v for m, v in metrics.items() if _is_number(v)} if isinstance(metrics, dict) else {}
    return results


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
