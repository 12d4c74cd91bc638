"""Do soft labels from a noisy crowd train a better reward model than its majority does? On the embedded world.

    python tools/soft_labels.py                                      three seeds, one process, about five minutes
    python tools/soft_labels.py --seeds 1 --pairs 60 --arms majority soft --folder /tmp/try --write /tmp/try/page.md

For each seed: the world, SFT and pairs of recipes/quickstart.yaml (labeled without noise: the truth is known). A simulated crowd,
mostly careless or spamming, judges every pair a few times. From the same judgments come the labels of each arm:

    majority    what most say
    hard        what Dawid and Skene's model, which learns how far each annotator can be trusted, thinks likelier
    soft        the same, with how likely it thinks so: p is the column ``label_probability``, for ``use_label_probability``
    truth       the world's own labels: as good as it gets

Each trains the quickstart's reward model; all are judged on the same held-out pairs, labeled by the truth. Finished stages are
kept, so the command can be given again after an interruption.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from rlhf.config.recipe import RecipeConfig
from rlhf.config.yaml_text import read_yaml
from rlhf.data.message_text import counted
from rlhf.feedback.agreement import Labels, coincidences, krippendorff_alpha
from rlhf.feedback.consensus import RIGHT_PRIOR, SMOOTHING
from rlhf.feedback.label_aggregation import Consensus, dawid_skene, majority_vote
from rlhf.feedback.simulate import SimulatedAnnotator, crowd
from rlhf.files import write_json, write_jsonl, write_text
from rlhf.pipeline.run import Pipeline, machine, versions
from rlhf.seeds import derive_seed

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "runs" / "soft_labels"
PAGE = ROOT / "docs" / "results" / "soft_labels.md"
ARMS = {
    "majority": "what most say of a pair",
    "hard": "what Dawid and Skene's model thinks likelier; it learns from the judgments alone how far to trust each annotator",
    "soft": "the same labels, each with how likely it is to be right (`use_label_probability`)",
    "truth": "the world's own labels, as good as it gets",
}
SHARED = ("world", "sft", "preferences")
SIDES = ("a", "b")
SURE = 0.999999
"""A soft label is kept this far from certainty: few judgments never prove anything."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who judges, and how often each pair is judged."""

    good: int
    careless: int
    spammers: int
    overlap: int

    def people(self) -> Sequence[SimulatedAnnotator]:
        """All of them."""
        return crowd(self.good, self.careless, self.spammers)

    def __str__(self) -> str:
        return (
            f"{self.good} good (5 % wrong), {self.careless} careless (35 %), {self.spammers} spammers (50 %); "
            f"{self.overlap} of them judge each pair"
        )


# ------------------------------------------------------------------------------------------------------------- one seed


def run_seed(seed: int, arms: Sequence[str], who: Crowd, *, num_pairs: int, folder: Path) -> dict[str, Any]:
    """Train what is not there yet, and gather what was measured."""
    shared = _recipe("shared", seed, folder, {name: _quickstart()[name] for name in SHARED})
    pairs = shared.stages["preferences"].model_copy(update={"noise": 0.0, "num_pairs": num_pairs})
    shared = shared.model_copy(update={"stages": {**shared.stages, "preferences": pairs}})
    Pipeline(shared).run()
    made = folder / "shared"
    rows, held_out = (_read(made / "preferences" / f"{name}.jsonl") for name in ("pairs", "test_pairs"))
    judged = judgments(rows, who, seed=seed)
    labels = {name: labeled(rows, judged, name) for name in arms}
    # a stage that takes probabilities wants them of held-out pairs as well: the truth is certain
    write_jsonl(folder / "labels" / "test_pairs.jsonl", [{**row, "label_probability": 1.0} for row in held_out])
    stages = {}
    for name in arms:
        write_jsonl(folder / "labels" / f"{name}.jsonl", labels[name])
        stages[name] = {
            **_quickstart()["reward"], "model": str(made / "sft" / "model"), "use_label_probability": name == "soft",
            "data": str(folder / "labels" / f"{name}.jsonl"),
            "eval_data": str(folder / "labels" / "test_pairs.jsonl"),
        }  # fmt: skip
    trained = Pipeline(_recipe("arms", seed, folder, stages))
    trained.run()
    outcome: dict[str, Any] = {"seed": seed, "num_pairs": len(rows), "alpha": alpha_of(judged), "arms": {}}
    for name in arms:
        quality = json.loads((folder / "arms" / name / "evaluation.json").read_text(encoding="utf-8"))["reward_model"]
        outcome["arms"][name] = {
            "accuracy": quality["accuracy"], "log_loss": quality["calibration"]["log_loss"],
            "right_labels": statistics.fmean(not row["flipped"] for row in labels[name]),
            "num_labels": len(labels[name]), "seconds": trained.artifacts[name].seconds,
        }  # fmt: skip
    return outcome


def judgments(rows: Sequence[Mapping[str, Any]], who: Crowd, *, seed: int) -> Labels:
    """What the crowd says: ``a`` is the chosen completion in about half of the pairs, so that no side is right more often."""
    people = who.people()
    said = []
    for number, row in enumerate(rows):
        rng = random.Random(derive_seed(seed, "soft labels", row["id"], number))
        chosen_is_a = is_a(seed, row["id"])
        for person in rng.sample(range(len(people)), who.overlap):
            difference = row["gold_margin"] if chosen_is_a else -row["gold_margin"]
            first_is_a = rng.random() < 0.5
            side, _ = people[person].judge(number, difference, first_is_a=first_is_a, seed=seed)
            said.append(((number, chosen_is_a), people[person].name, side))
    return Labels.of(said, scale=SIDES)


def is_a(seed: int, row: str) -> bool:
    """Whether the truly better completion of a pair is called ``a``."""
    return random.Random(derive_seed(seed, "soft labels", "side", row)).random() < 0.5


def labeled(rows: Sequence[Mapping[str, Any]], judged: Labels, arm: str) -> list[dict[str, Any]]:
    """Preference rows as an arm labels them; ``flipped`` says where it is wrong. A draw gives no row."""
    if arm == "truth":
        return [dict(row) for row in rows]
    consensus = consensus_of(judged, arm)
    usable = []
    for item, value, p in zip(consensus.items, consensus.values, consensus.label_probabilities, strict=True):
        if value is None:
            continue
        number, chosen_is_a = item  # type: ignore[misc]
        row = dict(rows[number])
        if wrong := (value == "a") != chosen_is_a:
            row |= {"chosen": row["rejected"], "rejected": row["chosen"]}
            row |= {"chosen_ids": row["rejected_ids"], "rejected_ids": row["chosen_ids"]}
        row |= {"flipped": wrong} | ({"label_probability": min(p, SURE)} if arm == "soft" else {})
        usable.append(row)
    return usable


def consensus_of(judged: Labels, arm: str) -> Consensus:
    """One label for each pair, learned with the beliefs that `rlhf feedback export --aggregate dawid-skene` starts from."""
    if arm == "majority":
        return majority_vote(judged)
    return dawid_skene(judged, smoothing=SMOOTHING, right_prior=RIGHT_PRIOR)


def alpha_of(judged: Labels) -> float:
    """Krippendorff's, nominal."""
    return float(krippendorff_alpha(coincidences(judged).sum(0)))


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _quickstart() -> dict[str, Any]:
    return dict(read_yaml(ROOT / "recipes" / "quickstart.yaml")["stages"])


def _recipe(name: str, seed: int, folder: Path, stages: Mapping[str, Any]) -> RecipeConfig:
    stages = {key: {**stage, "split_seed": seed} if key == "world" else stage for key, stage in stages.items()}
    return RecipeConfig.of({"name": name, "output_dir": str(folder), "seed": seed, "threads": 1, "stages": stages})


# ------------------------------------------------------------------------------------------------------------- the page


def over_seeds(values: Sequence[float], form: str = ".3f") -> str:
    """Mean ± half a 95 % t interval; the bare mean of fewer than three."""
    mean = statistics.fmean(values)
    if len(values) < 3:
        return f"{mean:{form}}"
    return f"{mean:{form}} ± {half_width(values):.3f}"


def half_width(values: Sequence[float]) -> float:
    """Of a 95 % t interval over seeds."""
    return float(student.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))


def verdict(differences: Sequence[float], better: str, worse: str) -> str:
    """What the differences of accuracy, one for each seed, say."""
    measured = f"{over_seeds(differences, '+.3f')} over {counted(len(differences), 'seed')}"
    if len(differences) < 3:
        return f"{better} less {worse}: {measured}; too few seeds for an interval, so nothing is shown."
    mean, half = statistics.fmean(differences), half_width(differences)
    if mean - half > 0:
        return f"{better} is better than {worse}: {measured}."
    if mean + half < 0:
        return f"{better} is worse than {worse}: {measured}."
    return f"{better} and {worse} can't be told apart: {measured}; the interval holds zero."


def page(rows: Sequence[Mapping[str, Any]], who: Crowd, command: str) -> str:
    """Markdown."""
    arms = [name for name in ARMS if all(name in row["arms"] for row in rows)]
    made_with = ", ".join(f"{k} {v}" for k, v in versions().items() if k in ("rlhf", "torch", "transformers"))
    lines = [
        "# Soft labels from a noisy crowd",
        "",
        "<!-- written by tools/soft_labels.py; do not edit by hand -->",
        "",
        f"Made by `{command}` on {machine()['cpu']}, one thread; {made_with}.",
        "",
        f"The crowd: {who}. Its Krippendorff's alpha is {over_seeds([row['alpha'] for row in rows])}. All arms learn from the",
        f"same {rows[0]['num_pairs']:,} pairs of the embedded world and the same judgments; every seed holds out its own prompts and facts.",
        "",
        *(f"* {name}: {ARMS[name]}." for name in arms),
        "",
        "Accuracy: of the reward model, on held-out pairs labeled by the truth, with its 95 % interval over pairs for each seed, and mean ±",
        "half a 95 % t interval over seeds. Log loss: on the same pairs, 0.693 is a coin. Labels right: in the training pairs.",
        "",
        "| labels | right | "
        + " | ".join(f"accuracy, seed {row['seed']}" for row in rows)
        + " | accuracy | log loss |",
        "|---|" + "---|" * (len(rows) + 3),
    ]
    for name in arms:
        of_arm = [row["arms"][name] for row in rows]
        cells = [
            f"{f['accuracy']['value']:.3f} [{f['accuracy']['low']:.3f}, {f['accuracy']['high']:.3f}]" for f in of_arm
        ]
        lines.append(
            f"| {name} | {over_seeds([f['right_labels'] for f in of_arm])} | {' | '.join(cells)} | "
            f"{over_seeds([f['accuracy']['value'] for f in of_arm])} | {over_seeds([f['log_loss'] for f in of_arm])} |"
        )
    lines += ["", "What it comes to, by accuracy of the same seeds:", ""]
    for better, worse in (("soft", "majority"), ("hard", "majority"), ("soft", "hard")):
        if better in arms and worse in arms:
            accuracy = [[row["arms"][name]["accuracy"]["value"] for row in rows] for name in (better, worse)]
            lines.append(f"* {verdict([b - w for b, w in zip(*accuracy, strict=True)], better, worse)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--pairs", type=int, default=1500, help="Training pairs.")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--crowd", type=int, nargs=3, default=[3, 4, 3], metavar=("GOOD", "CARELESS", "SPAMMERS"))
    parser.add_argument("--overlap", type=int, default=3, help="Judgments of each pair.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="Where the run folders go.")
    parser.add_argument("--write", type=Path, default=PAGE, help="Markdown page; the numbers go beside it as JSON.")
    options = parser.parse_args()
    good, careless, spammers = options.crowd
    who = Crowd(good, careless, spammers, options.overlap)
    if not 1 <= who.overlap <= len(who.people()):
        raise SystemExit(f"{who.overlap} judgments of a pair need as many people; the crowd has {len(who.people())}.")
    folder = options.folder.resolve()
    rows = [
        run_seed(seed, options.arms, who, num_pairs=options.pairs, folder=folder / f"seed-{seed}")
        for seed in options.seeds
    ]
    text = page(rows, who, shlex.join(["python", "tools/soft_labels.py", *sys.argv[1:]]))
    write_text(options.write, text)
    write_json(options.write.with_suffix(".json"), rows)
    print(text)


if __name__ == "__main__":
    main()
