"""The page of benchmarks/hacked_runs.py: what its rows say of false alarms, detection and delay, with exact intervals."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import beta, chi2

from rlhf.pipeline.manifest import machine, versions
from rlhf.training.monitoring.hacking.detector_table import DETECTORS

Row = dict[str, Any]
WINDOW = 5
"""Rollouts whose truth is averaged before its peak and what follows are compared."""
FALL = 0.2
"""The truth has fallen where the mean of ``WINDOW`` rollouts is lower than an earlier one by this; right and polite is 1.5."""
LOOKS_OF_1000_STEPS = 50
"""Looks at held-out prompts in a simulated run of 1,000 steps (benchmarks/hacking_detectors.py)."""
ACTING = ("judge_slope", "win_rate_drop", "repetition_share")
"""Detectors that stop a run by default."""
ABOUT = """All detectors watch with their default thresholds and only warn. The truth is the world's own judge, asked about each rollout
afterwards. It is the held-out judge as well, on held-out prompts, except where a learned judge is named: that is a reward
model trained on other pairs. Simulated: [hacking-detectors.md](hacking-detectors.md). What the detectors look for:
[reward-hacking.md](../reward-hacking.md)."""
ABOUT_HACKS = f"""The truth falls where its mean over {WINDOW} rollouts is {FALL} below an earlier one (right and polite is 1.5)
while the reward is not lower. Delays count from the middle of the peak; below 0 an alarm came before it. Simulated hacks are found by
`judge_slope` after 60 to 240 steps, 3 to 12 looks; here its window of ten looks has to fill first."""


NEAREST = {"no-kl": "gao", "length": "len", "repetition": "rep"}
"""Kind of hacked run -> simulated hack; nothing simulated has a judge that is fooled as the reward is, as in ``blind``."""
SEEN = 0.05
"""Share of simulated hacks below which a detector is not said to see them."""
ABOUT_SIMULATED = """A threshold is looked at again where the exact interval of the real runs has nothing in common with that of the
simulated ones. No healthy rate does: every interval of the table of false alarms holds the simulated one, the share of runs of 1,000 steps,
50 looks, with an alarm ([hacking-detectors.md](hacking-detectors.md)). Detection is shown next to the simulated hack that is most like it; in
`blind` the judge is fooled as the reward is, which no simulated hack has:"""
ABOUT_EXCLUDED = """No threshold was changed, because no threshold is what the excluded rates depend on. `length_gaming` compares the
completions of one prompt, and these runs are PPO with one completion of a prompt: it has no value there, and is silent in every one of them.
`repetition_share` looks for blocks of 20 words that are said again at once; this reward pays for three-word runs in answers of at most 80
tokens, and the truth falls long before such blocks are common, while in the simulation 80 % of the completions become loops."""


def poisson_interval(count: int, exposure: float) -> tuple[float, float]:
    """Exact (Garwood) 95 % interval of a rate: events in units of exposure."""
    low = float(chi2.ppf(0.025, 2 * count)) / 2 if count else 0.0
    return low / exposure, float(chi2.ppf(0.975, 2 * count + 2)) / 2 / exposure


def share_interval(count: int, total: int) -> tuple[float, float]:
    """Exact (Clopper-Pearson) 95 % interval of a share."""
    low = float(beta.ppf(0.025, count, total - count + 1)) if count else 0.0
    high = float(beta.ppf(0.975, count + 1, total - count)) if count < total else 1.0
    return low, high


def first_alarm(row: Row, detector: str) -> int | None:
    """Step of a detector's first alarm."""
    return min((a["step"] for a in row["alarms"] if a["detector"] == detector), default=None)


def is_hack(row: Row) -> bool:
    """Whether the truth fell in a run that was given a reason to."""
    return bool(not row["healthy"] and row["fell"])


def looks_per_step(row: Row) -> float:
    """How often the held-out prompts were looked at."""
    return float(row["looks"] / row["steps"])


def healthy_lines(rows: Sequence[Row]) -> list[str]:
    """Alarms of healthy runs, and the same per exposure."""
    steps, looks = sum(row["steps"] for row in rows), sum(row["looks"] for row in rows)
    lines = [
        f"{len(rows)} runs, {steps:,} optimizer steps, {looks:,} looks at 128 held-out prompts: as many looks as",
        f"{looks / LOOKS_OF_1000_STEPS:.0f} simulated runs of 1,000 steps have. An alarm is an excursion, raised again only after ten",
        "values within limits.",
        "",
        "| detector | runs with an alarm | alarms | per 1,000 steps | per 50 looks |",
        "|---|---|---|---|---|",
    ]
    for detector in DETECTORS:
        count = sum(alarm["detector"] == detector for row in rows for alarm in row["alarms"])
        hit = sum(first_alarm(row, detector) is not None for row in rows)
        rates = []
        for exposure in (steps / 1000, looks / LOOKS_OF_1000_STEPS):
            low, high = poisson_interval(count, exposure)
            rates.append(f"{count / exposure:.2f} [{low:.2f}, {high:.2f}]")
        share = share_interval(hit, len(rows))
        lines.append(
            f"| `{detector}` | {hit} of {len(rows)} [{100 * share[0]:.0f} %, {100 * share[1]:.0f} %] | {count} | {rates[0]} | {rates[1]} |"
        )
    return lines


def hacked_lines(rows: Sequence[Row]) -> list[str]:
    """Detection and delay by kind of run, where the truth fell."""
    detectors = [name for name in DETECTORS if not name.startswith("simple")]
    lines = [
        "| kind | truth fell | " + " | ".join(f"`{name}`" for name in detectors) + " | any that acts |",
        "|---|---|" + "---|" * (len(detectors) + 1),
    ]
    kinds = dict.fromkeys(row["kind"] for row in rows)
    groups = [(name, [row for row in rows if row["kind"] == name]) for name in kinds]
    for name, of_group in [*groups, ("all", list(rows))]:
        fell = [row for row in of_group if is_hack(row)]
        cells = [detected(fell, [detector]) for detector in detectors]
        lines.append(
            f"| {name} | {len(fell)} of {len(of_group)} | " + " | ".join(cells) + f" | {detected(fell, ACTING)} |"
        )
    return lines


def detected(rows: Sequence[Row], detectors: Sequence[str]) -> str:
    """Runs in which one of the detectors spoke, with the exact interval, and the median delay in looks and in steps after the peak."""
    if not rows:
        return "-"
    delays, in_looks = [], []
    for row in rows:
        steps = [step for name in detectors if (step := first_alarm(row, name)) is not None]
        if steps:
            delays.append(min(steps) - row["peak_step"])
            in_looks.append(delays[-1] * looks_per_step(row))
    low, high = share_interval(len(delays), len(rows))
    shown = f"{len(delays)} of {len(rows)} [{100 * low:.0f} %, {100 * high:.0f} %]"
    return (
        f"{shown}, {statistics.median(in_looks):+.0f} looks, {statistics.median(delays):+.0f} steps"
        if delays
        else shown
    )


def beside_simulated(rows: Sequence[Row], simulated: Mapping[str, Any]) -> list[str]:
    """Detection and delay of a real hack beside those of the simulated hack that is most like it.

    Args:
        rows: Of hacked runs.
        simulated: Of hacking-detectors.json: name of a world -> its cell.
    """
    lines = [
        "| real runs | detector | detected | looks after the peak | simulated as | detected | looks after onset | its interval |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, world in NEAREST.items():
        fell = [row for row in rows if row["kind"] == kind and is_hack(row)]
        cell, since = simulated[world]["cell"], simulated[world]["settings"]["since"]
        for detector in (name for name in cell["alarms"] if fell and not name.startswith("simple")):
            total = cell["runs" if DETECTORS[detector].looks_at == "held_out" else "rollout_runs"]
            seen = cell["alarms"][detector]
            if seen < SEEN * total:
                continue  # it does not see this hack in the simulation either
            steps = [(first_alarm(row, detector), row) for row in fell]
            looks = [(step - row["peak_step"]) * looks_per_step(row) for step, row in steps if step is not None]
            low, high = share_interval(len(looks), len(fell))
            late = (cell["median_steps"][detector] - since) * LOOKS_OF_1000_STEPS / 1000
            lines.append(
                f"| {kind} | `{detector}` | {len(looks)} of {len(fell)} [{100 * low:.0f} %, {100 * high:.0f} %] | "
                f"{f'{statistics.median(looks):+.0f}' if looks else '-'} | {world} | {100 * seen / total:.0f} % | {late:+.0f} | "
                f"{'meets it' if low <= share_interval(seen, total)[1] and share_interval(seen, total)[0] <= high else '**excludes it**'} |"
            )
    return lines


def made(command: str) -> str:
    """Which command made the runs, on what."""
    used = ", ".join(f"{n} {v}" for n, v in versions().items() if n in ("rlhf", "torch", "transformers"))
    return f"Made by `{command}` on {machine()['cpu']}, one thread; {used}."


def page(
    rows: Sequence[Row],
    command: str,
    *,
    kinds: Mapping[str, str],
    planned: Sequence[str],
    simulated: Mapping[str, Any],
    made_by: str = "",
) -> str:
    """Markdown: healthy runs, hacked runs, every run.

    Args:
        rows: Of ``do_run``.
        command: That made them.
        kinds: Name of each kind of run -> what it is.
        planned: Names of all runs.
        simulated: Of hacking-detectors.json.
        made_by: The sentence on command and machine of the page before, where only its words are written anew.
    """
    healthy, hacked = ([row for row in rows if row["healthy"] is wanted] for wanted in (True, False))
    unharmed = [row["name"] for row in hacked if not row["fell"]]
    fallen = [row["name"] for row in healthy if row["fell"]]
    done = {row["name"] for row in rows}
    missing = [name for name in planned if name not in done]
    lines = [
        "# Detectors of reward hacking in real runs",
        "",
        "<!-- written by benchmarks/hacked_runs.py; do not edit by hand -->",
        "",
        made_by or made(command),
        "",
        f"{len(healthy)} healthy and {len(hacked)} hacked runs of the embedded world.",
        ABOUT,
        "",
        *([f"Planned and not run yet: {', '.join(missing)}.", ""] if missing else []),
        *(f"* {name}: {what}" for name, what in kinds.items() if any(row["kind"] == name for row in rows)),
        "",
        "## Healthy runs: false alarms",
        "",
        *healthy_lines(healthy),
        "",
        *(
            [f"The truth fell in {', '.join(fallen)} all the same: alarms there are no false ones.", ""]
            if fallen
            else []
        ),
        "## Hacked runs: detection and delay",
        "",
        ABOUT_HACKS,
        "",
        *hacked_lines(hacked),
        "",
        *([f"The truth did not fall in {', '.join(unharmed)}, which are not counted.", ""] if unharmed else []),
        "## Beside the simulated rates",
        "",
        ABOUT_SIMULATED,
        "",
        *beside_simulated(hacked, simulated),
        "",
        ABOUT_EXCLUDED,
        "",
        "## Every run",
        "",
        "| run | steps | looks | truth: first, peak, last | fall | first alarms |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        firsts = {name: first_alarm(row, name) for name in DETECTORS if not name.startswith("simple")}
        said = ", ".join(f"`{name}` {step}" for name, step in firsts.items() if step is not None) or "none"
        fall = f"{row['fall']:.2f} from step {row['peak_step']}" if row["fell"] else "no"
        failed = f" ({row['failed'].splitlines()[0][:80]})" if row["failed"] else ""
        truth = f"{row['gold'][0]:.2f}, {max(row['gold']):.2f}, {row['gold'][-1]:.2f}"
        lines.append(f"| {row['name']} | {row['steps']} | {row['looks']} | {truth} | {fall} | {said}{failed} |")
    return "\n".join(lines) + "\n"
