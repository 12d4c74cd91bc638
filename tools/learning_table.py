"""Does every method learn, and does it do so again? The table of methods over fresh seeds.

    python tools/learning_table.py                                  all methods, seeds 1 2 3, two at a time
    python tools/learning_table.py --methods dpo ipo --seeds 1      some of them; what is there already stays in the table
    python tools/learning_table.py --collect                        the table of what is there, and train nothing
    python tools/learning_table.py --methods dpo --keep             one again; the others' rows stay as the page has them
    python tools/learning_table.py --page                           the page once more, from the rows beside it

Each method runs as its recipe in recipes/methods says. The stages that all recipes share (world, SFT, pairs, reward model)
are made once for each seed, in ``runs/methods/seed-N/shared``; each method has a run folder of its own beside it, which reads
from there. Every seed holds out its own prompts and facts; the recipes' numbers were chosen on seed 101.

Kill it at any time and give the same command again: finished runs are known by their folders, the others go on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script, what lies beside this file is a package too

from scipy.stats import t as student

from rlhf.config.methods import FAMILIES, METHODS, recipe_of
from rlhf.config.recipe import RecipeConfig
from rlhf.config.yaml_text import read_yaml
from rlhf.evaluation.overoptimization import HackingVerdict
from rlhf.files import write_json, write_text
from rlhf.pipeline.artifacts import Artifact
from rlhf.pipeline.run import Pipeline, machine, versions
from tools.method_pages import HEAD
from tools.published_orderings import orderings

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "runs" / "methods"
PAGE = ROOT / "docs" / "results" / "methods.md"
SEEDS = (1, 2, 3)
GAMED = HackingVerdict.HACKING.value
"""What the evaluation says of a run whose reward was gamed: the judge's score fell from its peak while the reward model's rose."""
MOST_STAGES = "rloo"
"""A recipe that has all shared stages."""

# --- one run ------------------------------------------------------------------------------------------------------------


def shared_recipe(seed: int, folder: Path) -> RecipeConfig:
    """The stages that all recipes share, for one seed."""
    tree = read_yaml(ROOT / recipe_of(MOST_STAGES))
    stages = {name: stage for name, stage in tree["stages"].items() if name in HEAD}
    stages["world"] = {**stages["world"], "split_seed": seed}
    return RecipeConfig.of({"name": "shared", "output_dir": str(folder), "seed": seed, "threads": 1, "stages": stages})


def method_recipe(name: str, seed: int, folder: Path) -> RecipeConfig | None:
    """A method's own stages, reading from the shared run; None where all its stages are shared ones."""
    tree = read_yaml(ROOT / recipe_of(name))
    own = {stage: settings for stage, settings in tree["stages"].items() if not is_shared(name, stage)}
    if not own:
        return None
    at_shared = {stage for stage in tree["stages"] if stage not in own}
    stages = {stage: _redirected(settings, at_shared, folder / "shared") for stage, settings in own.items()}
    if "world" in stages:  # a world of its own, such as the one in which steps matter
        stages["world"] = (
            {**stages["world"], "split_seed": seed} if stages["world"]["kind"] == "world" else stages["world"]
        )
    return RecipeConfig.of({"name": name, "output_dir": str(folder), "seed": seed, "threads": 1, "stages": stages})


def is_shared(name: str, stage: str) -> bool:
    """Whether this stage of the method's recipe is one of the shared head, letter for letter."""
    if stage not in HEAD:
        return False
    theirs = read_yaml(ROOT / recipe_of(name))["stages"][stage]
    ours = read_yaml(ROOT / recipe_of(MOST_STAGES))["stages"][stage]
    return bool(theirs == ours)


def _redirected(value: Any, stages: set[str], shared: Path) -> Any:
    """``stage:sft`` and ``stage:world/file`` as paths into the shared run."""
    if isinstance(value, dict):
        return {key: _redirected(inner, stages, shared) for key, inner in value.items()}
    if isinstance(value, list):
        return [_redirected(inner, stages, shared) for inner in value]
    if isinstance(value, str) and value.startswith("stage:"):
        stage, _, rest = value.removeprefix("stage:").partition("/")
        if stage in stages:
            return str(shared / stage / (rest or "model"))
    return value


def run_one(name: str, seed: int, folder: Path, *, ignore_code: bool) -> dict[str, Any]:
    """Run or finish one method of one seed, and measure it."""
    if name == "shared":
        Pipeline(shared_recipe(seed, folder)).run(ignore_code=ignore_code)
        return {}
    row: dict[str, Any] = {"method": name, "seed": seed}
    recipe = method_recipe(name, seed, folder)
    artifacts: Mapping[str, Any] = {}
    if recipe is not None:
        pipeline = Pipeline(recipe)
        pipeline.run(ignore_code=ignore_code)
        artifacts = pipeline.artifacts
    if "evaluate" in artifacts:
        row |= artifacts["evaluate"].metrics
    elif name in artifacts:
        row |= {key: value for key, value in artifacts[name].metrics.items() if key.startswith("eval/")}
    row["seconds"] = sum(
        artifact.seconds for stage, artifact in artifacts.items() if stage not in ("evaluate", "world")
    )
    if name in HEAD:
        summary = json.loads((folder / "shared" / "summary.json").read_text(encoding="utf-8"))
        row["seconds"] = summary["stages"][name]["seconds"]
    row |= made_by(artifacts if artifacts else shared_artifacts(folder / "shared"))
    row |= {"commit": commit(), "recipe": recipe_hash(name), "cpu": machine()["cpu"]}
    if METHODS[name].kind == "reward":
        where = folder / "shared" / "reward" if name in HEAD else folder / name / name
        row["pair_accuracy"] = pair_accuracy(where / "model", folder / "shared" / "preferences" / "test_pairs.jsonl")
    return row


def shared_artifacts(folder: Path) -> Mapping[str, Any]:
    """Those of the stages that all recipes share, for a method that is one of them."""
    return {
        stage.name: artifact for stage in sorted(folder.iterdir()) if (artifact := Artifact.read(stage)) is not None
    }


def made_by(artifacts: Mapping[str, Any]) -> dict[str, Any]:
    """The code of all stages of a row in one short hash, what they read of others in another, and the packages that decide results."""
    code = {stage: dict(artifact.code) for stage, artifact in artifacts.items()}
    text = json.dumps(code, sort_keys=True)
    read = sorted(value.rpartition("@")[2] for each in artifacts.values() for value in each.parents.values())
    packages = {name: version for artifact in artifacts.values() for name, version in artifact.versions.items()}
    return {
        "code": hashlib.sha256(text.encode()).hexdigest()[:12],
        "read": hashlib.sha256(" ".join(read).encode()).hexdigest()[:12],
        "versions": packages,
    }


def commit() -> str | None:
    """The state of this repository, as git names it; None without git."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def recipe_hash(name: str) -> str:
    """Of the stages of the method's recipe as it is, in short."""
    stages = read_yaml(ROOT / recipe_of(name))["stages"]
    return hashlib.sha256(json.dumps(stages, sort_keys=True).encode()).hexdigest()[:12]


def pair_accuracy(model: Path, pairs: Path) -> dict[str, Any]:
    """Of any reward model on the seed's held-out pairs of the preference stage, labeled without noise."""
    from rlhf.data.datasets import PreferenceDataset
    from rlhf.evaluation.reward_model_quality import judge_reward_model
    from rlhf.models.reward import RewardModel

    reward_model = RewardModel.from_pretrained(str(model))
    return judge_reward_model(reward_model, PreferenceDataset(str(pairs), reward_model.tokenizer)).accuracy.to_dict()


# --- all of them --------------------------------------------------------------------------------------------------------


def row_file(folder: Path, name: str, seed: int) -> Path:
    """Where what was measured of one run is kept."""
    return folder / f"seed-{seed}" / f"{name}.json"


def train(methods: Sequence[str], seeds: Sequence[int], folder: Path, *, jobs: int, ignore_code: bool) -> list[str]:
    """Every method of every seed, each in a process of its own; gives those that failed."""
    began = time.monotonic()

    def one(job: tuple[str, int]) -> str | None:
        name, seed = job
        log = folder / f"seed-{seed}" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(Path(__file__)), "--folder", str(folder), "--one", name, str(seed)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        with log.open("w", encoding="utf-8") as out:
            command += ["--ignore-code"] if ignore_code else []
            code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=ROOT).returncode
        print(
            f"{time.monotonic() - began:6.0f} s  seed {seed}  {name}{f'  FAILED, see {log}' if code else ''}",
            flush=True,
        )
        return f"{name}, seed {seed}" if code else None

    with ThreadPoolExecutor(jobs) as pool:
        failed = [bad for bad in pool.map(one, [("shared", seed) for seed in seeds]) if bad]
        ready = [seed for seed in seeds if f"shared, seed {seed}" not in failed]
        failed += [bad for bad in pool.map(one, [(name, seed) for seed in ready for name in methods]) if bad]
    return failed


def rows_there(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Method to its rows, by seed, of all runs that were measured."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in METHODS:
        files = sorted(folder.glob(f"seed-*/{name}.json"), key=lambda file: int(file.parent.name.removeprefix("seed-")))
        if files:
            rows[name] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return rows


def merged(kept: Iterable[dict[str, Any]], made: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A method's rows by seed; one that was made takes the place of one that was kept."""
    by_seed = {row["seed"]: row for row in [*kept, *made]}
    return [by_seed[seed] for seed in sorted(by_seed)]


# --- the table ----------------------------------------------------------------------------------------------------------


def interval(values: Sequence[float]) -> str:
    """Mean ± half a 95 % t interval over seeds; the bare mean of fewer than three."""
    mean = statistics.fmean(values)
    if len(values) < 3:
        return f"{mean:.3f}"
    half = student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.3f} ± {half:.3f}"


def policy_table(rows: Mapping[str, list[dict[str, Any]]], names: Iterable[str], seeds: Sequence[int]) -> list[str]:
    """One line for each method: win rates by seed, with the interval of each evaluation, and over seeds."""
    lines = [
        "| method | "
        + " | ".join(f"win rate, seed {seed}" for seed in seeds)
        + " | win rate, mean ± t | judge score | KL by seed, nats | s |",
        "|---|" + "---|" * (len(seeds) + 4),
    ]
    for name in names:
        by_seed = {row["seed"]: row for row in rows[name]}
        cells = [_win_rate(by_seed.get(seed)) for seed in seeds]
        done = [row for row in rows[name] if row.get("win_rate") is not None]
        cells.append(interval([row["win_rate"] for row in done]) if done else "-")
        cells.append(_mean(done, "gold_after", 2))
        cells.append(" / ".join(f"{row['kl']:.1f}" if row.get("kl") is not None else "-" for row in done))
        cells.append(_mean(rows[name], "seconds", 0))
        lines.append(f"| [{name}](../methods/{name}.md) | " + " | ".join(cells) + " |")
    return lines


def judge_table(rows: Mapping[str, list[dict[str, Any]]], names: Iterable[str], seeds: Sequence[int]) -> list[str]:
    """One line for each model that judges: accuracy on the same held-out pairs."""
    lines = [
        "| method | " + " | ".join(f"accuracy, seed {seed}" for seed in seeds) + " | accuracy, mean ± t | s |",
        "|---|" + "---|" * (len(seeds) + 2),
    ]
    for name in names:
        by_seed = {row["seed"]: accuracy_of(row) for row in rows[name]}
        cells = [_share(by_seed.get(seed)) for seed in seeds]
        values = [rate["value"] for rate in by_seed.values() if rate is not None]
        cells.append(interval(values) if values else "-")
        cells.append(_mean(rows[name], "seconds", 0))
        lines.append(f"| [{name}](../methods/{name}.md) | " + " | ".join(cells) + " |")
    return lines


def accuracy_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of a model that judges: accuracy on pairs, or a process reward model's F1, which a model that calls all steps right does not get."""
    if row.get("pair_accuracy") is not None:
        accuracy: dict[str, Any] = row["pair_accuracy"]
        return accuracy
    value = row.get("eval/f1")
    return None if value is None else {"value": value, "low": row["eval/f1_low"], "high": row["eval/f1_high"]}


def _win_rate(row: Mapping[str, Any] | None) -> str:
    if row is None or row.get("win_rate") is None:
        return "-"
    shown = _share({"value": row["win_rate"], "low": row.get("win_rate_low"), "high": row.get("win_rate_high")})
    return f"{shown} †" if row.get("hacking") == GAMED else shown


def _share(estimate: Mapping[str, Any] | None) -> str:
    if estimate is None:
        return "-"
    if estimate.get("low") is None:
        return f"{estimate['value']:.3f}"
    return f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"


def _mean(rows: Sequence[Mapping[str, Any]], key: str, digits: int) -> str:
    values = [row[key] for row in rows if row.get(key) is not None]
    return f"{statistics.fmean(values):.{digits}f}" if values else "-"


def made_with(rows: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Versions of the rows, this environment's where they do not say; and methods whose rows are of more than one code."""
    used = [row["versions"] for each in rows.values() for row in each if row.get("versions")] or [versions()]
    shown = ("rlhf", "torch", "transformers")
    packages = {name: sorted({each[name] for each in used if name in each}) for name in shown}
    words = ", ".join(f"{name} {' and '.join(numbers)}" for name, numbers in packages.items() if numbers)
    commits: dict[str, list[str]] = {}
    for name, each in rows.items():
        for commit in sorted({row["commit"] for row in each if row.get("commit")}):
            commits.setdefault(commit, []).append(name)
    most, *fewer = sorted(commits, key=lambda commit: -len(commits[commit])) or [None]
    told = [f"of {', '.join(f'`{name}`' for name in commits[commit])}: {commit}" for commit in fewer]
    lines = ["; ".join([words, *([f"commit {most}"] if most else []), *told])]
    if fewer:
        lines.append(
            "Rows of another commit read shared stages made by that commit: of the same recipe and seed, with other last bits."
        )
    for name, each in rows.items():
        codes = {row["seed"]: row["code"] for row in each if row.get("code")}
        if len(set(codes.values())) > 1:
            told = ", ".join(f"seed {seed} {code}" for seed, code in sorted(codes.items()))
            lines.append(f"The rows of `{name}` were made by different states of its code: {told}.")
    changed = [
        f"`{name}`" for name, each in rows.items() if {row.get("recipe") for row in each} - {None, recipe_hash(name)}
    ]
    if changed:
        lines.append(f"Recipes that have changed since their rows were made: {', '.join(changed)}.")
    return lines


def command_of(words: Sequence[str], rows: Mapping[str, list[dict[str, Any]]]) -> str:
    """The command that makes the table as it stands: of all methods and seeds there, whatever the last call added."""
    kept: list[str] = []
    dropped = False
    for word in words:
        if word.startswith("--"):
            dropped = word in ("--seeds", "--methods", "--collect", "--keep", "--folder")
        if not dropped:
            kept.append(word)
    seeds = sorted({row["seed"] for of_method in rows.values() for row in of_method})
    methods = [name for name in METHODS if name in rows]
    kept += [] if len(methods) == len(METHODS) else ["--methods", *methods]
    kept += [] if seeds == list(SEEDS) else ["--seeds", *map(str, seeds)]
    return shlex.join(["python", "tools/learning_table.py", *kept])


def page(rows: Mapping[str, list[dict[str, Any]]], command: str) -> str:
    """The whole page."""
    seeds = sorted({row["seed"] for of_method in rows.values() for row in of_method})
    packages, *mixed = made_with(rows)
    cpus = " and ".join(
        sorted({row.get("cpu") or machine()["cpu"] for of_method in rows.values() for row in of_method})
    )
    lines = [
        "# Every method on the embedded world",
        "",
        "<!-- written by tools/learning_table.py; do not edit by hand -->",
        "",
        *textwrap.wrap(f"Made by `{command}` on {cpus}, one thread for each run; {packages}.", 120),
        *mixed,
        "",
        "Each method ran as its recipe in `recipes/methods` said, from the same SFT model, pairs and reward model of its seed;",
        "each seed holds out its own prompts and facts. Settings were chosen on seed 101 with five tries for a method at most; most",
        "losses on pairs took over those of DPO untried. So a method below another is one with these settings below one with those.",
        "Two are not of that kind. `grpo` has a KL weight of 0.3, because with 0.1, chosen like the others, its reward was gamed on",
        "seed 3 (win rates .94, .90 and .75, 13.6 nats). `prm` has the recipe of the [reasoning table](reasoning.md): its settings come",
        "from seed 0 of that world, the width of its start from seed 2, and its length from a shorter run that failed on seeds 2 and 3.",
        "",
        "Win rate: against the SFT model (for demonstrations: against the base model) on 400 held-out prompts, one completion",
        "each at temperature 1, ties half, by the world's own judge, which no policy stage sees; [its 95 % interval over prompts].",
        "Mean ± t: half a 95 % t interval over seeds, from three seeds on. Judge score: the world's, 1.5 is perfect. KL: to the",
        "baseline, per completion. †: the evaluation's verdict on the run is `reward_hacking`: the judge's score fell from its peak",
        "while the reward model's rose. The reward was gamed, whatever the win rate, and orderings against such a method say little;",
        "methods that write no rollouts have no such verdict. s: seconds of training, wall clock, with what the method needs beyond",
        "the shared stages, on a machine that was busy with other things as well.",
    ]
    for family, words in FAMILIES.items():
        names = [name for name in METHODS if name in rows and METHODS[name].family == family]
        if names:
            lines += ["", f"## {words}", ""]
            lines += (judge_table if family == "reward" else policy_table)(rows, names, seeds)
            if family == "reward":
                lines += [
                    "",
                    "Accuracy: on the same 400 held-out pairs for all of them, labeled without noise, whatever rows a model was",
                    "trained on. A process reward model judges steps of another world: F1 of right chains and first wrong steps on",
                    "chains held out. About .5 is the plateau of a model that has not begun to check results; a shorter run than its",
                    "recipe leaves it on some seeds only ([the method's page](../methods/prm.md)); see [the reasoning table](reasoning.md).",
                ]
            if family == "policy":
                lines += [
                    "",
                    "`dapo` is clip-higher, the mean over tokens and no KL here: a learned reward never ties, so no group was asked again, and",
                    "its punishment of length is off, because completions of this world are far shorter than their limit. No row shows",
                    "what dynamic sampling or that punishment do; tests of `tests/unit/training` do. Most recipes take two steps to a",
                    "rollout, fewer than the kinds' defaults: each method's page says how many. `baseline: group` (REINFORCE++-baseline),",
                    "like `loss: aot_unpaired` above, is an option without a row of its own.",
                    "`cispo` and `sapo` say little of what names them: in two steps a rollout few weights come to their bounds, and on seed 1",
                    "`cispo` ends where `dapo` does.",
                ]
    missing = [name for name in METHODS if name not in rows]
    if missing:
        lines += ["", f"Not run: {', '.join(missing)}."]
    lines += ["", "## Published orderings", ""]
    lines += orderings(rows)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, collect, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=2, help="Runs at a time, each with one thread.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="Where the run folders go.")
    parser.add_argument("--write", type=Path, default=PAGE, help="Markdown file; the rows go beside it as JSON.")
    parser.add_argument("--collect", action="store_true", help="Train nothing; the table of what is there.")
    parser.add_argument(
        "--keep", action="store_true", help="Rows of the page stay where the folder has no run of their method."
    )
    parser.add_argument("--page", action="store_true", help="Only the page once more, from the rows beside it.")
    parser.add_argument(
        "--ignore-code", action="store_true", help="Keep stages of which only the library's code changed."
    )
    parser.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.one:
        name, seed = arguments.one[0], int(arguments.one[1])
        row = run_one(name, seed, folder / f"seed-{seed}", ignore_code=arguments.ignore_code)
        if row:
            write_json(row_file(folder, name, seed), row)
        return
    if arguments.page:
        rows = json.loads(arguments.write.with_suffix(".json").read_text(encoding="utf-8"))
        write_text(arguments.write, page(rows, command_of([], rows)))
        return
    failed: list[str] = []
    if not arguments.collect:
        failed = train(
            arguments.methods, arguments.seeds, folder, jobs=arguments.jobs, ignore_code=arguments.ignore_code
        )
    rows = rows_there(folder)
    if not rows:
        raise SystemExit(f"There is no finished run in {folder}.")
    if arguments.keep:
        kept = json.loads(arguments.write.with_suffix(".json").read_text(encoding="utf-8"))
        rows = {name: of_method for name in METHODS if (of_method := merged(kept.get(name, []), rows.get(name, [])))}
    write_text(arguments.write, page(rows, command_of(sys.argv[1:], rows)))
    write_json(arguments.write.with_suffix(".json"), rows)
    print(f"{arguments.write}: {len(rows)} methods.")
    if failed:
        raise SystemExit(
            f"Failed: {'; '.join(failed)}. Give the same command again; the logs are beside the run folders."
        )


if __name__ == "__main__":
    main()
