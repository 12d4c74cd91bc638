"""Is `rlhf plan` right? Predicts stages, runs a few of their steps, and writes predicted / measured into docs/results/plan.md.

    python tools/plan_check.py [--work FOLDER] [--only NAME ...] [--turns 2]

Every prediction and every measurement is a fresh process on one thread, and they take turns: what else a machine does reaches both.
Each figure is the middle one of the turns (of two, their mean). What was found of a stage stays in the work folder until that stage is
asked for again. Seconds are processor seconds (`time.process_time`) of a step,
the middle one of a few, as `--profile` measures them, without evaluations and checkpoints. Memory is the highest resident size
(VmHWM after a reset through /proc/self/clear_refs), with and without what Python and its libraries take before a model is there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rlhf.allocator import KERNELS

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "results" / "plan.md"
LIMIT = 0.2
"""How far a prediction may be off, as a share of what is measured."""
STEPS = 12
ROLLOUTS = 4
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 32_000, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 1024, "tie_word_embeddings": False,
}  # fmt: skip
LONG_ROWS, DEMONSTRATIONS_IN_ROW = 200, 10
TURNS = 2
CASES = ("sft", "reward", "ppo", "dpo", "grpo", "llama", "llama_bf16")


def recipe_of(work: Path) -> dict[str, Any]:
    """The quickstarts in one, shortened, and a larger model on longer rows."""
    ours = {
        name: yaml.safe_load((ROOT / "recipes" / f"{name}.yaml").read_text(encoding="utf-8"))["stages"]
        for name in ("quickstart", "quickstart_dpo", "quickstart_grpo")
    }
    stages = {name: ours["quickstart"][name] for name in ("world", "sft", "preferences", "reward", "ppo")}
    stages |= {"dpo": ours["quickstart_dpo"]["dpo"], "grpo": ours["quickstart_grpo"]["grpo"]}
    stages["preferences"] |= {"num_pairs": 600}
    larger = {"tokenizer": "embedded", "init": LLAMA}
    rows = {
        "kind": "sft",
        "model": larger,
        "data": str(work / "long.jsonl"),
        "batch_size": 8,
        "max_steps": STEPS,
        "max_length": 1024,
    }
    stages |= {"llama": rows, "llama_bf16": {**rows, "autocast": "bfloat16"}}
    return {"name": "plan_check", "output_dir": str(work), "seed": 1, "threads": 1, "stages": stages}


def shortened(recipe: dict[str, Any], case: str) -> dict[str, Any]:
    """The same with only a few steps of one stage."""
    stage = recipe["stages"][case]
    short = {"rollouts": ROLLOUTS} if "rollouts" in stage else {"max_steps": STEPS}
    return {**recipe, "stages": {**recipe["stages"], case: {**stage, **short}}}


def prepare(work: Path, recipe: dict[str, Any]) -> None:
    """What the measured stages read: data, a policy that answers, a reward model."""
    from rlhf.config.recipe import RecipeConfig
    from rlhf.pipeline.run import Pipeline

    first = {name: recipe["stages"][name] for name in ("world", "sft", "preferences", "reward")}
    first["reward"] = {**first["reward"], "max_steps": 40}
    Pipeline(RecipeConfig.of({**recipe, "stages": first}, source="tools/plan_check.py")).run(ignore_code=True)
    rows = [
        json.loads(line)
        for line in (work / "plan_check" / "world" / "sft.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    texts = [f"{row['prompt']} {row['completion']}" for row in rows]
    with (work / "long.jsonl").open("w", encoding="utf-8") as file:
        for number in range(LONG_ROWS):
            part = [
                texts[(number * DEMONSTRATIONS_IN_ROW + i) % len(texts)]
                for i in range(4 + number % (2 * DEMONSTRATIONS_IN_ROW))
            ]
            file.write(json.dumps({"prompt": part[0], "completion": " ".join(part[1:])}) + "\n")


def predict(recipe: dict[str, Any], case: str) -> dict[str, Any]:
    """What the plan says, in this process."""
    from rlhf.config.recipe import RecipeConfig
    from rlhf.scale.plan import plan_recipe

    plan = plan_recipe(RecipeConfig.of(recipe, source="tools/plan_check.py"), only=case)
    return plan.stages[0].as_dict()


def measure(recipe: dict[str, Any], case: str) -> dict[str, Any]:
    """What a few steps take, in this process."""
    import torch

    from rlhf.config.recipe import RecipeConfig
    from rlhf.pipeline.stages import StageContext, runner
    from rlhf.scale.machine import resident_bytes
    from rlhf.training.log import TrainingLogger
    from rlhf.training.profile import profiled

    torch.set_num_threads(1)
    parsed = RecipeConfig.of(recipe, source="tools/plan_check.py")
    run_dir = Path(parsed.output_dir) / parsed.name
    name = f"measured-{case}"
    shutil.rmtree(run_dir / name, ignore_errors=True)  # else it would go on from a checkpoint
    (run_dir / name).mkdir()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    libraries = resident_bytes()
    stage = parsed.stages[case]
    with profiled(None) as profile:
        runner(stage.kind)(stage, StageContext(name, run_dir, TrainingLogger(run_dir, stage=name)))
    figures = profile.as_dict()
    spent = {key: part["cpu_seconds_per_step"] or 0.0 for key, part in figures["activities"].items()}
    return {
        "memory_bytes": resident_bytes("VmHWM"),
        "libraries": libraries,
        "seconds": {key: value for key, value in spent.items() if key not in ("evaluation", "checkpoint")},
        "steps": figures["steps"],
    }


def in_fresh_process(what: str, case: str, work: Path) -> dict[str, Any]:
    """The last line of another process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "99"}
    command = [sys.executable, __file__, "--work", str(work), "--do", what, "--only", case]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{what} {case} failed:\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def checked(case: str, work: Path, turns: int) -> dict[str, Any]:
    """Predictions and measurements of a case, in turns."""
    figures: dict[str, list[dict[str, Any]]] = {"plan": [], "run": []}
    for _ in range(turns):
        figures["plan"].append(in_fresh_process("predict", case, work))
        figures["run"].append(in_fresh_process("measure", case, work))
    load = os.getloadavg()[1]
    return {name: middle(runs) for name, runs in figures.items()} | {"load": load, "turns": turns}


def middle(runs: Sequence[Any]) -> Any:
    """The median of each number in trees of the same form; what is no number is that of the first."""
    first = runs[0]
    if isinstance(first, dict):
        return {key: middle([run[key] for run in runs if key in run]) for key in first}
    return statistics.median(runs) if isinstance(first, float | int) and not isinstance(first, bool) else first


def page(by_case: dict[str, dict[str, Any]]) -> str:
    """docs/results/plan.md."""
    lines = [
        "# Is `rlhf plan` right?",
        "",
        "Predicted against measured, by `python tools/plan_check.py`: every row is a prediction and a run of a few steps, each in a fresh",
        "process on one thread, in turns; each figure is the middle one of the turns. Seconds are processor seconds of one optimizer step;",
        "memory is the highest resident size. *Above libraries* leaves out what Python and its libraries take before a model is there: the",
        f"harder test. The aim is {LIMIT:.0%} either way; what misses it is marked.",
        "",
        _circumstances(by_case),
        "",
        "| stage | seconds: predicted | measured | ratio | MiB: predicted | measured | ratio | above libraries: predicted | measured | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, (plan, run) in ((case, (row["plan"], row["run"])) for case, row in by_case.items()):
        own = run["libraries"]
        pairs = (
            (plan["seconds_per_step"], sum(run["seconds"].values()), 1.0, 3),
            (plan["memory_bytes"], run["memory_bytes"], 1 << 20, 0),
            (plan["memory_bytes"] - own, run["memory_bytes"] - own, 1 << 20, 0),
        )
        cells = [f"{x / unit:.{d}f} | {y / unit:.{d}f} | {_ratio(x / y)}" for x, y, unit, d in pairs]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    lines += ["", "By activity, processor milliseconds of a step, predicted / measured:", ""]
    for case, row in by_case.items():
        predicted, measured = row["plan"]["seconds"], row["run"]["seconds"]
        names = [name for name in measured if measured[name] >= 5e-4 or predicted.get(name, 0.0) >= 5e-4]
        told = ", ".join(f"{n} {predicted.get(n, 0.0) * 1e3:.0f} / {measured[n] * 1e3:.0f}" for n in names)
        lines.append(f"* **{case}**: {told}")
    missing = [case for case in CASES if case not in by_case]
    if missing:
        lines += ["", f"Not in this table, because this run of the tool was cut short: {', '.join(missing)}."]
    return "\n".join([*lines, "", *NOTES, ""])


def _circumstances(by_case: dict[str, dict[str, Any]]) -> str:
    """How busy the machine was, in a sentence."""
    loads, turns = [row["load"] for row in by_case.values()], sorted({row["turns"] for row in by_case.values()})
    return (
        f"The machine ({os.cpu_count()} cores) had {min(loads):.0f} to {max(loads):.0f} processes running on average meanwhile, and "
        f"each row took {' or '.join(map(str, turns))} turn(s)."
    )


NOTES = (
    "What the plan does not foresee: `other` (logs, metrics, credit), the arithmetic of losses behind the log-probabilities, evaluations and",
    "checkpoints in time, and the tokenizer's work in `reward` and `rollout decode`. The lengths of completions are those that the policy",
    "was shown: what training makes of them, nobody can foresee, and the plan says so under `assumed`.",
    "",
    "What a policy stage takes in memory is for a good part kernels: oneDNN makes one for each shape of a matrix product that it meets, keeps",
    f"{KERNELS} (`rlhf.allocator`; 1,024 of its own accord), and in sampling every number of rows that still go on is a shape of its own.",
)


def _ratio(value: float) -> str:
    return f"{value:.2f}" if abs(value - 1) <= LIMIT else f"**{value:.2f}** (outside)"


def main(arguments: Sequence[str] | None = None) -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "plan_check")
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--do", choices=("predict", "measure"), help="used by this tool itself")
    asked = parser.parse_args(arguments)
    work = asked.work.resolve()
    recipe = recipe_of(work)
    if asked.do is not None:
        case = asked.only[0]
        print(json.dumps({"predict": predict, "measure": measure}[asked.do](shortened(recipe, case), case)))
        return
    work.mkdir(parents=True, exist_ok=True)
    prepare(work, recipe)
    record = work / "found.json"
    by_case: dict[str, dict[str, Any]] = {}
    for case in asked.only:
        of_case = checked(case, work, asked.turns)
        by_case = (
            json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
        )  # others may be at work there
        by_case[case] = of_case
        record.write_text(json.dumps(by_case, indent=1), encoding="utf-8")
        print(f"{case}: done", flush=True)
    PAGE.write_text(page({case: by_case[case] for case in CASES if case in by_case}), encoding="utf-8")


if __name__ == "__main__":
    main()
