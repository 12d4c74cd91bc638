"""RESULTS.md, results.json and the plots of the curves, from the rows that are there."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peer.cases import CURVES, GOALS, MODELS, SHARE_GOALS, Case, Dtype, Goal
from benchmarks.peer.results import Rows
from benchmarks.peer.work import share_of_peak
from rlhf.activity import Activity
from rlhf.data.message_text import counted

Row = dict[str, Any]
SETTINGS: tuple[tuple[Dtype, int], ...] = (("bf16", 1), ("bf16", 2), ("fp32", 1), ("fp32", 2))
SHOWN: tuple[Activity, ...] = (
    "rollout prefill", "rollout decode", "reward", "reference", "scoring", "forward", "backward", "optimizer",
)  # fmt: skip
"""Activities of the loop that have a column of their own."""
AXES = {
    "vocabulary": "vocabulary",
    "length": "mean prompt length (completions three quarters of it)",
    "group": "completions for each prompt",
}
SECONDS_OF = {
    "vocabulary": "DPO on model A, two pairs a step: seconds of a step.",
    "length": "DPO on model A, two pairs a step: seconds of a step.",
    "group": "GRPO on model A, two prompts a step: seconds of a whole step for each 1,000 tokens that were sampled in it.",
}
"""What the seconds of a curve are of."""
NOT_HERE = (
    ("peer", "here", "what its authors publish (their machines, not reproduced here)"),
    ("---", "---", "---"),
    (
        "OpenRLHF 0.11.2",
        "not measured: its requirements hold flash-attn, which is built with nvcc and runs on CUDA alone",
        "1.22-1.68x against verl 0.4.0, DAPO with long answers on 8 H200; 3.6x against DeepSpeed-Chat's PPO (arXiv:2405.11143)",
    ),
    (
        "verl 0.9.1",
        "not measured: of its platforms (cuda, rocm, npu) none is a CPU; it samples with vLLM or SGLang",
        "1.53-20.57x against DeepSpeed-Chat, OpenRLHF and NeMo-Aligner of 2024 (arXiv:2409.19256)",
    ),
    (
        "Unsloth 2026.10.9",
        "not measured: without an accelerator its import says `You need a GPU`, unless a backend of unsloth_zoo allows a CPU, "
        "which was not tried",
        "our research holds no figure of its own with a setting beside it",
    ),
)
"""What the issue names besides TRL; looked up in the wheels of these versions."""


NOT_FASTEST = (
    "**TRL was not at its fastest settings here; take every ratio on this page as an upper bound.** An independent audit of this code "
    "(one core of an AMD EPYC with avx512_bf16 and without AMX, bfloat16, `compiled: true`, both sides in turns, medians of 2 to 5 "
    "pairs) found faster ones: the C library's allocator told to keep memory (`GLIBC_TUNABLES="
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:"
    "glibc.malloc.top_pad=67108864:glibc.malloc.hugetlb=1`, 1.6 to 2.7 times as fast for TRL), rows without padding through SDPA "
    "(`padding_free`, 1.3 to 2.3 times), TRL 1.12 instead of 1.16 (1.4 to 3.4 times), and a plain loop over the transformers model. "
    '"Met" below means: met against the settings that were tried. The rows have not been measured again since.\n\n'
    "| audit's ratios | settings tried here | TRL 1.16 tuned | TRL 1.12 | plain transformers loop |\n"
    "|---|---|---|---|---|\n"
    "| SFT, A | 8.4 | 4.0; without padding 3.5 | 2.3; tuned 2.1 | 3.2 |\n"
    "| reward model, A | 4.7 (1.47 with equal lengths and nothing shared) | not measured | not measured | 5.1 |\n"
    "| DPO, A | 15.3 (4.8 with equal lengths) | 6.0 (2.5 with equal lengths) | 5.3; tuned 3.4 | 5.4 |\n"
    "| KTO, A | 7.8 | not measured | 4.8 | not measured |\n"
    "| ORPO and SimPO, A | 7.0, 6.0 | not measured | not measured | not measured |\n"
    "| GRPO 2 x 8, A | 20.1 | 11.0 | 7.7 | not measured |\n"
    "| PPO, A | 7.0 | 5.6 | the same | not measured |\n"
    "| sampling 1 x 8, 4 x 8, 8 x 8, A | 5.7, 11.4, 11.9 (4 x 8 with all 128 tokens: 6.9) | not measured | not measured | not measured |\n"
    "| DPO, SFT, reward model, B | 4.2, 3.0, 2.5 | 3.0, not measured, 2.5 | SFT 1.8 | not measured |\n\n"
)
"""The first lines of the page, until the rows are measured against the settings that the audit found."""


def write(folder: Path, rows: Rows, *, code: str, machine: dict[str, Any], command: str, note: str = "") -> None:
    """Write RESULTS.md, results.json and one plot for each curve.

    Args:
        folder: Where they go.
        rows: What was measured.
        code: Hash of the code as it is now; rows of other code are marked.
        machine: By threads, what ``machine.measure`` found.
        command: What was run.
        note: A sentence of whoever ran it.
    """
    cases = [replace(goal.case, dtype=d, threads=t) for goal in GOALS for d, t in SETTINGS]
    by_case = rows.all([*cases, *(point for points in CURVES.values() for point in points)])
    curves = {
        name: [by_case[p.name] for p in points if "sides" in by_case.get(p.name, {})] for name, points in CURVES.items()
    }
    drawn = [plot(folder, name, points) for name, points in curves.items() if len(points) > 1]
    parts = [
        heading(machine, command, list(by_case.values()), code, note),
        *(goal_table(by_case, d, t, machine[str(t)], code) for d, t in SETTINGS),
        share_table(by_case, machine),
        time_table(by_case),
        *(curve_table(name, points) for name, points in curves.items() if points),
        "".join(f"![growth with {path.stem.removeprefix('growth_')}]({path.name})\n" for path in drawn),
        "## How equal the work was\n\nNo ratio is given before this was asserted; a row that failed has none.\n\n"
        + asserted_table(by_case),
        "## What could not be measured\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in NOT_HERE),
    ]
    _write(folder / "RESULTS.md", "\n".join(part for part in parts if part))
    _write(
        folder / "results.json",
        json.dumps({"command": command, "machine": machine, "rows": slim(by_case)}, indent=1) + "\n",
    )


def heading(machine: dict[str, Any], command: str, rows: Sequence[Row], code: str, note: str) -> str:
    """What this is, where and of what it was measured."""
    one = machine["1"]
    where, versions = one["machine"], one["versions"]
    others = [one.get(f"versions of {name}", {}).get("trl") for name in ("trl", "trl-ppo")]
    dates = sorted({row["date"] for row in rows if "date" in row}) or ["no row yet"]
    peaks = "; ".join(
        f"{n} thread{'s' if n != '1' else ''}: "
        + ", ".join(f"{name} {peak / 1e9:.0f}" for name, peak in m["peak"].items())
        for n, m in machine.items()
    )
    loads = [row["load"] for row in rows if "load" in row]
    stale = sum(row.get("code") != code for row in rows)
    return (
        "# Against TRL, on the same work\n\n"
        + NOT_FASTEST
        + "Written by `make bench`; not edited by hand. Processor seconds per optimizer step of the same model, rows, lengths, batch, type, "
        "threads and optimizer (fused AdamW, no gradient checkpointing, SDPA), both sides in turns on one machine (A B A B). "
        "A ratio is the median over pairs "
        "of steps of TRL's seconds by ours, with the smallest and largest; where completions are sampled, seconds are for each "
        "token of them, because "
        "each side samples its own. Peak is the highest resident size above that of the loaded model before the first step. DPO and KTO ask "
        "the reference once before training, TRL where that was the faster of the two, and its steps hold the reference's pass where not; *one "
        "epoch* adds that pass, spread over the steps of one epoch, to the side that asked before training, and a goal is met where both "
        "numbers reach it. Seconds are medians of each side's own steps, so their quotient is not the median of the pairs' ratios. Our side "
        "trains and samples in C (`compiled`, `engine.compiled`). *At our "
        "peak*: the ratio if our side did the useful work, and nothing else, at this machine's fastest matrix products; more is not to be "
        "had on it in this type.\n\n"
        f"- machine: {where['processor']}, {where['memory']}, {where['system']}\n"
        f"- versions: Python {where['python']}, torch {versions.get('torch')}, transformers {versions.get('transformers')}, rlhf "
        f"{versions.get('rlhf')}; TRL {others[0]}, for PPO {others[1]}, each in an environment of its own\n"
        f"- matrix products, GFLOP per processor second, best of {len(one['by_shape']['fp32'])} shapes: {peaks}; "
        f"copying {one['copy'] / 1e9:.0f} GB/s, into fresh memory {one['copy_into_fresh'] / 1e9:.1f} GB/s\n"
        f"- last command: `{command}`; rows measured {dates[0]}{'' if len(dates) == 1 else f' to {dates[-1]}'}\n"
        + (f"- load average while they were measured: {min(loads):.1f} to {max(loads):.1f}\n" if loads else "")
        + (f"- **{note}**\n" if note else "")
        + (f"- **{stale} of {len(rows)} rows were measured with other code than is here now**; they are marked with *\n" if stale else "")
        + "\nModels: "
        + "; ".join(
            f"{name}: llama, {shape.parameters / 1e6:.0f}M, hidden {shape.hidden}, {shape.layers} layers, {shape.heads} heads, vocabulary "
            f"{shape.vocabulary:,}, {'tied' if shape.tied else 'separate'} head"
            for name, shape in MODELS.items() if name != "tiny"
        )
        + ". Lengths are log-normal (sigma 0.6), prompts 160 on average, completions 120; sampled ones end by themselves after "
        "64 on average, 128 at most.\n"
    )  # fmt: skip


def verdict(value: float | None, goal: float | None, *, at_least: bool) -> str:
    """Whether a goal is met, in one word."""
    if value is None or goal is None:
        return ""
    met = value >= goal if at_least else value <= goal
    return "met" if met else "**not met**"


def beside(value: float, goal: float | None, digits: int) -> str:
    """A number with so many digits behind the point, and more where it would look like the goal that it is not."""
    while goal is not None and value != goal and f"{value:.{digits}f}" == f"{goal:.{digits}f}":
        digits += 1
    return f"{value:.{digits}f}"


def time_verdict(row: Row, goal: float) -> str:
    """Of the ratio; where there is one with the reference's pass too, that must reach the goal as well."""
    alone = verdict(row["ratio"], goal, at_least=True)
    whole = verdict(row.get("ratio_one_epoch", row["ratio"]), goal, at_least=True)
    return alone if alone == whole else f"{whole} over an epoch, {alone} by the steps alone"


def goal_table(by_case: dict[str, Row], dtype: Dtype, threads: int, machine: dict[str, Any], code: str) -> str:
    """One table of the issue's rows; empty where none was measured. The issue's goals are for bf16."""
    lines = []
    for goal in GOALS:
        row = by_case.get(replace(goal.case, dtype=dtype, threads=threads).name)
        if row is not None:
            lines.append(goal_line(goal, row, dtype, machine, code))
    if not lines:
        return ""
    title = f"## {dtype}, {threads} thread{'' if threads == 1 else 's'}\n"
    head = (
        "| work | goal: time | measured | wall | | one epoch | at our peak | goal: memory | peak, ours / TRL | | seconds, ours / TRL | "
        "useful share of peak |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    return f"{title}\n{head}" + "\n".join(lines) + "\n"


def goal_line(goal: Goal, row: Row, dtype: Dtype, machine: dict[str, Any], code: str) -> str:
    """One row of a table."""
    what = goal.what + ("" if row.get("code") == code else " *")
    if "ratio" not in row:
        return f"| {what} | >= {goal.time:g}x | failed: {row.get('error', 'one side alone')} | | | | | | | | | |"
    ratio, memory = row["ratio"], row["memory_ratio"]
    spread = f"{beside(ratio, goal.time, 1)}x ({min(row['ratios']):.1f} to {max(row['ratios']):.1f}, {counted(len(row['ratios']), 'pair')})"
    share = share_of_peak(row["flop_per_second"], 1.0, machine["peak"][dtype])
    of_bf16 = dtype == "bf16"
    cells = [
        what, f">= {goal.time:g}x" if of_bf16 else "", spread, f"{row['wall_ratio']:.1f}x",
        time_verdict(row, goal.time) if of_bf16 else "",
        f"{beside(row['ratio_one_epoch'], goal.time, 1)}x" if "ratio_one_epoch" in row else "", f"{ratio / share:.1f}x",
        f"<= {goal.memory:g}x" if goal.memory and of_bf16 else "",
        f"{beside(memory, goal.memory, 2)}x ({row['peak_mib']['rlhf']:.0f} / {row['peak_mib']['trl']:.0f} MiB)",
        verdict(memory, goal.memory, at_least=False) if of_bf16 else "",
        f"{row['seconds']['rlhf']:.3f} / {row['seconds']['trl']:.3f}", f"{share:.0%}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def share_table(by_case: dict[str, Row], machine: dict[str, Any]) -> str:
    """Useful work on model B as a share of what the machine can do."""
    lines = []
    for goal in GOALS:
        for dtype, threads in SETTINGS:
            row = by_case.get(replace(goal.case, dtype=dtype, threads=threads).name)
            if goal.case.model == "B" and row is not None and "flop_per_second" in row:
                share = share_of_peak(row["flop_per_second"], 1.0, machine[str(threads)]["peak"][dtype])
                aim = SHARE_GOALS[dtype]
                said = f">= {aim:.0%} | {beside(100 * share, 100 * aim, 0)}%"
                lines.append(f"| {goal.what} | {dtype}, {threads} | {said} | {verdict(share, aim, at_least=True)} |")
    if not lines:
        return ""
    return (
        "## Share of the matrix-multiply peak, model B\n\n"
        "Useful: 6 x parameters of the body x distinct tokens + 6 x those of the head x scored tokens (2 x for a forward pass "
        "alone); attention's own "
        "products, norms and the optimizer are not counted as useful, and take their time.\n\n"
        "| work | type, threads | goal | measured | |\n|---|---|---|---|---|\n" + "\n".join(lines) + "\n"
    )


def time_table(by_case: dict[str, Row]) -> str:
    """Where the time of our side goes."""
    rows = {name: row["activities"] for name, row in sorted(by_case.items()) if row.get("activities")}
    shown = [what for what in SHOWN if any(what in activities for activities in rows.values())]
    if not rows:
        return ""
    lines = []
    for name, activities in rows.items():
        total = sum(activities.values())
        known = [activities.get(what, 0.0) / total for what in shown]
        cells = [f"{share:.0%}" if share else "" for share in [*known, 1 - sum(known)]]
        lines.append(f"| {name} | {total:.3f} | {' | '.join(cells)} |")
    return (
        "## Where our time goes\n\nShares of the processor seconds of a step (the mean of the timed ones), as `--profile` measures them. "
        "*At our peak*, above, says what there would be to gain if all of it were matrix products at the machine's best; "
        "`docs/benchmarks.md` says what was tried.\n\n"
        f"| row | seconds | {' | '.join(shown)} | the rest |\n|---|---|{'---|' * (len(shown) + 1)}\n"
        + "\n".join(lines)
        + "\n"
    )


def curve_table(name: str, points: Sequence[Row]) -> str:
    """How seconds and memory grow."""
    lines = []
    for row in points:
        x, ours, theirs = point_of(name, row)
        their = f"{theirs[0]:.3f} | {theirs[1]:.0f}" if theirs else "not run | "
        lines.append(f"| {x:,} | {ours[0]:.3f} | {ours[1]:.0f} | {ours[2]:.0f} | {their} |")
    return (
        f"## Growth with {name}\n\n{SECONDS_OF[name]}\n\n| {AXES[name]} | seconds | peak MiB | of these: gradients and Adam's state of all "
        "weights | TRL seconds | TRL peak MiB |\n"
        "|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n"
    )


def point_of(name: str, row: Row) -> tuple[int, tuple[float, float, float], tuple[float, float] | None]:
    """Where a point stands, and for each side the seconds of a step (where completions are sampled, of 1,000 of their tokens) and
    the peak."""
    case = Case(**row["case"])
    x = {"vocabulary": case.shape.vocabulary, "length": case.prompt_mean, "group": case.group}[name]
    state = 3 * 4 * case.shape.parameters / (1 << 20)
    sides = {side: (seconds_of(told), peak_of(told)) for side, told in row["sides"].items()}
    return x, (*sides["rlhf"], state), sides.get("trl")


def seconds_of(side: dict[str, Any]) -> float:
    """Median over the timed steps."""
    return statistics.median(
        step["seconds"] * (1000 / step["completion_tokens"] if step["completion_tokens"] else 1)
        for step in side["steps"]
    )


def peak_of(side: dict[str, Any]) -> float:
    """Over all steps."""
    return float(max(step["peak_mib"] for step in [*side["warm_up"], *side["steps"]]))


def plot(folder: Path, name: str, points: Sequence[Row]) -> Path:
    """One small picture: seconds and memory over what grows."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = name  # the same picture has the same bytes
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
    told = [point_of(name, row) for row in points]
    for side, label in ((1, "rlhf"), (2, "TRL")):
        there = [(point[0], point[side]) for point in told if point[side] is not None]
        for axis, number, unit in ((axes[0], 0, "processor seconds"), (axes[1], 1, "peak MiB")):
            axis.plot([x for x, _ in there], [values[number] for _, values in there], marker="o", label=label)
            axis.set(xlabel=name, ylabel=unit, ylim=(0, None))
    axes[0].legend()
    path = folder / f"growth_{name}.svg"
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def asserted_table(by_case: dict[str, Row]) -> str:
    """What was compared, and which of the peer's settings was taken."""
    lines = []
    for name, row in sorted(by_case.items()):
        trials = ", ".join(f"{what}: {seconds:.3g}" for what, seconds in row.get("candidates", {}).items())
        settings = row.get("candidate", "") + (f" (tried, seconds: {trials})" if trials else "")
        lines.append(f"| {name} | {row.get('asserted', row.get('error', 'our side alone'))} | {settings} |")
    return "| row | asserted | TRL's settings |\n|---|---|---|\n" + "\n".join(lines) + "\n"


def slim(by_case: dict[str, Row]) -> dict[str, Row]:
    """The rows without what only a side's own history needs."""
    return {
        name: {key: value for key, value in row.items() if key not in ("sides", "tokens")}
        for name, row in by_case.items()
    }


def _write(path: Path, text: str) -> None:
    aside = path.with_suffix(path.suffix + ".partial")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)
