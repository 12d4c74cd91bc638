"""The verdict of every evaluation in run folders, with how far each lies from every limit of ``rlhf.evaluation.verdict``.

    python tools/verdicts.py runs/a runs/b                    of the evaluations as they are; curves and logs are read again
    python tools/verdicts.py --into runs/again runs/a ...     evaluates again, with this code, in copies that link the models

What a change of a limit does to healthy and to ruined runs is seen in one table. The runs themselves are only read.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.config.schema import stage_classes
from rlhf.config.yaml_text import read_yaml
from rlhf.evaluation.overoptimization import overoptimization
from rlhf.evaluation.verdict import FALLS, RISES, SURPRISE, Verdict, surprise, verdict
from rlhf.evaluation.verdict_inputs import Evidence
from rlhf.formatting import mapping, number
from rlhf.pipeline.archive import events_of
from rlhf.pipeline.evidence import training_of
from rlhf.pipeline.leakage import recorded_leakage
from rlhf.pipeline.report import write_report
from rlhf.pipeline.stages.context import StageContext
from rlhf.pipeline.stages.evaluate import run_evaluate
from rlhf.pipeline.validate.independence import leakage_in_recipe
from rlhf.pipeline.verdicts import independence_of
from rlhf.training.log import EVENTS, TrainingLogger, read_jsonl

EVALUATE = "evaluate"


def evaluations(run: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Names and settings of a run's evaluations."""
    for name, settings in mapping(read_yaml(run / "recipe.yaml").get("stages")).items():
        if mapping(settings).get("kind") == EVALUATE:
            yield name, settings


def evaluate_again(run: Path, folder: Path) -> Path:
    """A copy of a run whose evaluations were made with this code; what is not finished is left out."""
    copy = folder / run.name
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    again = {name for name, _ in evaluations(run)}
    for path in run.iterdir():
        if path.is_dir() and path.name not in again:
            (copy / path.name).symlink_to(path.resolve())
        elif path.is_file():
            shutil.copy2(path, copy / path.name)
    for name, settings in evaluations(run):
        if not (run / name / "evaluation.json").exists():
            continue
        (copy / name).mkdir()
        for file in ("artifact.json", "started.json"):
            if (run / name / file).exists():
                shutil.copy2(run / name / file, copy / name / file)
        stage = stage_classes()[EVALUATE].of(dict(settings))
        print(
            f"{run.name} {name}: {run_evaluate(stage, StageContext(name, copy, TrainingLogger(copy, stage=name))).headline}",
            flush=True,
        )  # type: ignore[arg-type]
    write_report(copy)
    return copy


def margins(evidence: Evidence) -> dict[str, float]:
    """How far each quantity is on its way to its limit: 1 is the limit."""
    shares: dict[str, float] = {}
    if (pair := surprise(evidence)) is not None and pair[0] > 0:
        shares["kl"] = pair[1] / pair[0] / SURPRISE
    for rule in RISES:
        rise = number(mapping(evidence.changes.get(rule.quantity, {}).get("gain")).get("value"))
        if rise is not None:
            shares[rule.code] = rise / rule.limit
    for rule in FALLS:
        change = evidence.changes.get(rule.quantity, {})
        before, after = (number(mapping(change.get(side)).get("value")) for side in ("before", "after"))
        if before and after is not None:
            shares[rule.code] = rule.limit * before / after if after > 0 else math.inf
    return shares


def read(run: Path) -> Iterator[tuple[str, Evidence, Verdict]]:
    """Every finished evaluation of a run."""
    for name, settings in evaluations(run):
        path = run / name / "evaluation.json"
        if not path.exists():
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        if document.get("curve"):
            document["hacking"] = overoptimization(document["curve"]).to_dict()
        if "training" not in document:  # of an older version
            stage = str(mapping(settings.get("policy")).get("path")).removeprefix("stage:")
            document["training"] = [training_of(events_of(read_jsonl(run / EVENTS), stage), stage).to_dict()]
        seen = recorded_leakage(run / name) or leakage_in_recipe(read_yaml(run / "recipe.yaml"), name)
        evidence = Evidence.of(document, independence_of(seen))
        yield f"{run.name}/{name}", evidence, verdict(evidence)


def table(verdicts: Sequence[tuple[str, Evidence, Verdict]]) -> list[str]:
    """One line for each evaluation, then how many have each tone, and how near any of them came to each limit."""
    lines, nearest = [], {}
    for name, evidence, told in verdicts:
        here = margins(evidence)
        hacking = mapping(evidence.hacking)
        gain = max(number(hacking.get("gold_peak"), 0.0) or 0.0, number(hacking.get("gold_end"), 0.0) or 0.0)
        gain -= number(hacking.get("gold_start"), 0.0) or 0.0
        fall = number(hacking.get("detectable_fall"))
        if fall is not None and gain > 0:
            here["detectable fall / gain"] = fall / gain
        near = ", ".join(f"{code} {value:.2f}" for code, value in here.items())
        lines.append(f"{name:<28} {told.tone:<8} {told.title} [{', '.join(told.reasons)}]  {near}")
        for code, value in here.items():
            nearest[code] = max(value, nearest.get(code, -math.inf))
    tones = Counter(str(told.tone) for _, _, told in verdicts)
    lines.append(f"{len(verdicts)} evaluations: {', '.join(f'{count} {tone}' for tone, count in tones.most_common())}")
    lines.append(
        f"nearest to each limit (1 is the limit): {', '.join(f'{code} {value:.2f}' for code, value in nearest.items())}"
    )
    return lines


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--into", type=Path, help="evaluate again, into copies in this folder")
    given = parser.parse_args()
    runs = [run if given.into is None else evaluate_again(run, given.into) for run in given.runs]
    print("\n".join(table([row for run in runs for row in read(run)])))


if __name__ == "__main__":
    main()
