"""A process reward model on real reasoning traces with the first wrong step marked, from a pretrained 260K-parameter model.

    python tools/prm_on_real_traces.py --write docs/results/process_traces.md

Traces of BIG-Bench Mistake (PaLM 2's, on five tasks) and MR-GSM8K (several models', on grade-school maths), from the folder that
RLHF_ASSETS names. What fits into the model's context of 512 tokens is used, which is mostly bracket matching and arithmetic: its
tokenizer knows children's stories. One part in five is held out, by prompt. Takes about six minutes a pass on one core.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rlhf.config.reward_model import ProcessRewardModelConfig
from rlhf.data.contracts import StepwiseRow
from rlhf.data.datasets import StepwiseDataset
from rlhf.evaluation.intervals import Estimate
from rlhf.evaluation.process_quality import ProcessQuality, process_quality
from rlhf.files import write_text
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.pipeline.run import machine, versions
from rlhf.training.log import TrainingLogger
from rlhf.training.process_reward import ProcessRewardModelTrainer

TASKS = ("dyck_languages", "logical_deduction", "multistep_arithmetic", "tracking_shuffled_objects", "word_sorting")
SHOWN_VERSIONS = ("rlhf", "torch", "transformers")
THRESHOLDS = [step / 20 for step in range(1, 20)]


def main() -> None:
    """Train, judge the held-out traces, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--assets", type=Path, default=Path(os.environ.get("RLHF_ASSETS", "../shared/assets")))
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--write", type=Path, help="Markdown page to write.")
    options = parser.parse_args()
    began = time.monotonic()
    config = ProcessRewardModelConfig(
        learning_rate=1e-3, epochs=options.epochs, batch_size=16, until_first_error=True, seed=options.seed
    )
    model = ProcessRewardModel.from_policy(str(options.assets / "models" / "stories260K"), seed=options.seed)
    rows = [*mistake_rows(options.assets / "bigbench_mistake"), *gsm8k_rows(options.assets / "mr_gsm8k")]
    data = StepwiseDataset(
        [row.to_dict() for row in rows], model.tokenizer, step_separator="\n", max_length=512, truncation="drop"
    )
    train, held_out = data.split(0.2, seed=options.seed)
    print(data.report.to_text().splitlines()[0])
    ProcessRewardModelTrainer(model, config, train, held_out, log=TrainingLogger()).train()
    learned, judged = Traces(model, train), Traces(model, held_out)
    threshold = max(THRESHOLDS, key=lambda at: f1_of(learned.quality(at)))
    qualities = [("all", threshold, judged.quality(threshold)), ("all", 0.5, judged.quality(0.5))]
    tasks = Counter(str(row.columns["task"]) for row in held_out.rows)
    for task in (name for name, count in tasks.most_common() if count >= 10):
        qualities.append((task, threshold, judged.quality(threshold, task=task)))
    text = page(options, data, train, held_out, qualities, seconds=time.monotonic() - began)
    print(text)
    if options.write is not None:
        write_text(options.write, text)


def mistake_rows(folder: Path) -> Iterator[StepwiseRow]:
    """BIG-Bench Mistake: ``mistake_index`` is the first wrong step from 0, or null."""
    for task in TASKS:
        for number, trace in enumerate(_read(folder / f"{task}.jsonl.gz")):
            yield _row(f"{task}:{number}", task, trace["input"], trace["steps"], trace["mistake_index"])


def gsm8k_rows(folder: Path) -> Iterator[StepwiseRow]:
    """MR-GSM8K: the first wrong step is counted from 1, or said to be N/A."""
    for trace in _read(folder / "mr_gsm8k_subset.jsonl.gz"):
        wrong = trace["model_output_solution_first_error_step"]
        first = None if wrong == "N/A" else int(wrong) - 1
        yield _row(trace["uuid"], "mr_gsm8k", trace["question"], trace["model_output_steps"], first)


class Traces:
    """Traces and what a model says of their steps."""

    def __init__(self, model: ProcessRewardModel, data: StepwiseDataset) -> None:
        self.groups = sorted(data, key=lambda group: group.num_tokens)
        self.scores = model.step_probabilities(self.groups)

    def quality(self, threshold: float, *, task: str | None = None) -> ProcessQuality:
        """Whether the first wrong step is found, in all of them or in those of one task."""
        chosen = [n for n, group in enumerate(self.groups) if task is None or group.columns["task"] == task]
        return process_quality(
            [[bool(label) for label in self.groups[n].columns["labels"]] for n in chosen],
            [self.scores[n] for n in chosen],
            seed=0,
            threshold=threshold,
            units=[tuple(self.groups[n].prefix) for n in chosen],
        )


def f1_of(quality: ProcessQuality) -> float:
    """0 where it was not measured."""
    return quality.f1.value if quality.f1.value == quality.f1.value else 0.0


def page(
    options: argparse.Namespace,
    data: StepwiseDataset,
    train: StepwiseDataset,
    held_out: StepwiseDataset,
    qualities: Sequence[tuple[str, float, ProcessQuality]],
    *,
    seconds: float,
) -> str:
    """Markdown."""
    about = ", ".join(f"{name} {version}" for name, version in versions().items() if name in SHOWN_VERSIONS)
    kinds = Counter(str(row.columns["task"]) for row in data.rows)
    lines = [
        "# A process reward model on real traces",
        "",
        "<!-- written by tools/prm_on_real_traces.py; do not edit by hand -->",
        "",
        f"Made by `python tools/prm_on_real_traces.py --seed {options.seed} --epochs {options.epochs:g} --write "
        f"docs/results/process_traces.md` in {seconds:.0f} s on {machine()['cpu']}; {about}.",
        "",
        f"{data.report.num_rows:,} traces with their first wrong step marked by people or by rule; {len(data):,} fit into the 512 "
        f"tokens of the pretrained story model ({', '.join(f'{count} of {name}' for name, count in kinds.most_common())}). It learned "
        f"from {len(train):,}, up to the first wrong step of each, and was judged on {len(held_out):,} with other prompts. "
        "*always last* and *chance* are what naming the last step, or any step, would find. Numbers in brackets are 95 % intervals "
        "over prompts. The threshold is the one with the best F1 on the training traces, and 0.5. All traces of MR-GSM8K that fit have a "
        "wrong step, so there a model that only knows this does better than chance.",
        "",
        "| traces | threshold | first wrong step found | always last | chance | sound ones left alone | F1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, threshold, quality in qualities:
        lines.append(
            f"| {name} | {threshold:g} | {_words(quality.first_wrong)} | {quality.always_last:.3f} | {quality.chance:.3f} | "
            f"{_words(quality.sound)} | {_words(quality.f1)} |"
        )
    return "\n".join(lines) + "\n"


def _row(name: str, task: str, prompt: str, steps: Sequence[str], first_wrong: int | None) -> StepwiseRow:
    """Steps behind the first wrong one are marked wrong too; nothing is learned from them."""
    lines = [" ".join(step.split()) for step in steps]
    labels = [first_wrong is None or place < first_wrong for place in range(len(lines))]
    kept = [(line, label) for line, label in zip(lines, labels, strict=True) if line]
    return StepwiseRow(
        prompt=prompt.strip() + "\n",
        completions=[line for line, _ in kept],
        labels=[label for _, label in kept],
        columns={"id": name, "task": task},
    )


def _read(path: Path) -> Iterator[dict[str, object]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def _words(estimate: Estimate) -> str:
    if estimate.value != estimate.value:
        return "not measured"
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}] of {estimate.n}"


if __name__ == "__main__":
    main()
