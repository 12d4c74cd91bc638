"""RESULTS-gpu.md: tokens a second, peak memory and how far the engine's log-probabilities are from the trainer's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.peer.cases import GPU_GAP, GPU_MEMORY, GPU_SPEED

Row = dict[str, Any]
SIDES = ("rlhf", "trl")


def page(rows: Sequence[Row], *, ours: Row, theirs: Row, command: str, device: str) -> str:
    """The whole page.

    Args:
        rows: What was measured; one with ``error`` has no ratio.
        ours: Card, machine and versions, as our environment sees them.
        theirs: The same of the peer's.
        command: What was run.
        device: On which.
    """
    return "\n".join(
        [heading(ours, theirs, command, device), table(rows), what_was_tried(rows), asserted(rows)]
    )  # fmt: skip


def heading(ours: Row, theirs: Row, command: str, device: str) -> str:
    """What this is, where and of what it was measured."""
    card, where = ours["card"], ours["machine"]
    machine = f"{where['processor']}, {where['memory']}, {where['system']}"
    if device == "cuda" and card is not None:
        machine = f"{card['name']}, {card['memory']}, driver {card['driver']}, CUDA {card['cuda']}; {machine}"
    counted = (
        "Tokens a second are those of the sequences as they were given, every one with its own copy of the prompt and none of them padding, by "
        "the time that passes until the GPU is done; where completions are sampled, their tokens alone. Peak memory is torch's, weights and "
        "optimizer included: tensors (`max_memory_allocated`), and what the allocator held (`max_memory_reserved`)."
        if device == "cuda"
        else "**Tried out on a processor: seconds are the processor's, memory is resident memory above the loaded model, and nothing here says "
        "anything about a GPU.**"
    )
    return (
        "# Against TRL on a GPU, on the same work\n\n"
        "Written by `make bench-gpu`; not edited by hand. The same weights, rows, steps, types (float32 weights, bfloat16 autocast) and "
        f"optimizer (fused AdamW) on both sides, each alone on the machine. {counted} DPO: the reference's pass over the rows, where it is "
        "made once before training, is spread over the steps of one epoch, for both sides.\n\n"
        f"- machine: {machine}\n- ours: {listed(ours['versions'])}\n- peer: {listed(theirs['versions'])}\n- command: `{command}`\n"
    )


def listed(versions: Row) -> str:
    """Packages with their versions, in one line."""
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def table(rows: Sequence[Row]) -> str:
    """One line for each row, with the issue's goals."""
    head = (
        "work", "tokens/s here", "tokens/s TRL", f"ratio (goal {GPU_SPEED:g})", "peak here, MiB", "peak TRL, MiB",
        f"ratio (goal {GPU_MEMORY:g})", "reserved here / TRL, MiB", f"engine to trainer, nats (goal {GPU_GAP:g}) here / TRL",
    )  # fmt: skip
    lines = [head, ["---"] * len(head)]
    for row in rows:
        if "ratio" not in row:
            lines.append([row["name"], f"no ratio: {row['error']}", *[""] * (len(head) - 2)])
            continue
        speed, peak = ({side: of(row, side) for side in SIDES} for of in (tokens_per_second, peak_mib))
        held = " / ".join(shown(reserved_mib(row, side)) for side in SIDES)
        gaps = " / ".join(shown(gap(row, side), digits=4) for side in SIDES)
        ratio, memory = row.get("ratio_one_epoch", row["ratio"]), peak["rlhf"] / peak["trl"]
        lines.append([
            row["name"], f"{speed['rlhf']:,.0f}", f"{speed['trl']:,.0f}",
            f"{ratio:.2f}{mark(ratio >= GPU_SPEED)}",
            shown(peak["rlhf"]), shown(peak["trl"]), f"{memory:.2f}{mark(memory <= GPU_MEMORY)}", held, gaps,
        ])  # fmt: skip
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def mark(met: bool) -> str:
    """Behind a number that has a goal."""
    return "" if met else ", **not met**"


def shown(value: float | None, *, digits: int = 0) -> str:
    """A number, or that there is none: what was not measured is not 0."""
    return "not measured" if value is None else f"{value:,.{digits}f}"


def tokens_per_second(row: Row, side: str) -> float:
    """Median over the timed steps, each with its share of the reference's pass."""
    steps = row["sides"][side]["steps"]
    reference = row.get("reference_seconds_per_step", {}).get(side, 0.0)
    if steps[0]["completion_tokens"] is not None:
        counts = [step["completion_tokens"] for step in steps]
    else:
        counts = [tokens["real"] for tokens in row["tokens"]]
    return statistics.median(count / (step["seconds"] + reference) for count, step in zip(counts, steps, strict=True))


def peak_mib(row: Row, side: str) -> float:
    """Of all steps, with what was there before the first."""
    told = row["sides"][side]
    return float(told["resident_mib"] + max(step["peak_mib"] for step in [*told["warm_up"], *told["steps"]]))


def reserved_mib(row: Row, side: str) -> float | None:
    """Most that torch's allocator held; None where there is no GPU."""
    held = [step["reserved_mib"] for step in row["sides"][side]["steps"]]
    return None if None in held else float(max(held))


def gap(row: Row, side: str) -> float | None:
    """The largest of the steps' mean differences; None where a side did not measure it."""
    told = row["sides"][side]["values"].get("logprob_gap")
    return max(told) if told else None


def what_was_tried(rows: Sequence[Row]) -> str:
    """The peer's settings: the one taken, and what each of the others took or why it could not be tried."""
    lines = [
        "## TRL's settings\n\nThe fastest of a few steps; seconds a step, or for each token where completions are sampled.\n"
    ]
    for row in rows:
        tried = row.get("candidates") or {}
        others = "; ".join(
            f"{name}: {value if isinstance(value, str) else f'{value:.4g} s'}" for name, value in tried.items()
        )
        lines.append(f"- {row['name']}: **{row.get('candidate', 'none')}**" + (f" ({others})" if others else ""))
    return "\n".join(lines) + "\n"


def asserted(rows: Sequence[Row]) -> str:
    """What was found equal before a ratio was given."""
    told = "".join(f"- {row['name']}: {row.get('asserted', row.get('error'))}\n" for row in rows)
    return f"## How equal the work was\n\n{told}"
