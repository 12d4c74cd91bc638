"""BCO on single completions against `BCOTrainer.bco_loss` of TRL 1.12; TRL 1.16, which tests/oracle pins, has no such trainer.

    pip download trl==1.12.0 --no-deps -d /tmp/trl
    python tools/oracle_bco.py --wheel /tmp/trl/trl-1.12.0-py3-none-any.whl

Nothing is installed: the wheel is unpacked into a folder that is gone afterwards, and put before the TRL of this environment.
Numbers are in float64, but for TRL's shift, which is kept in float32.

The shift is compared in a first step with as many rows of either kind. From there on it differs on purpose: TRL's is the mean of all
rows that it has seen, whichever their kind and however long ago, ours half way between an average of each kind. So later steps, and
steps with more rows of one kind, are compared with TRL's shift in ours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tools.trl_wheel import VERSION, arguments_of, unpacked  # noqa: E402

RESULT = ROOT / "docs" / "results" / "oracle_bco.json"
BETA = 0.3
LIMIT = 1e-6
"""Relative to the largest number of the kind: a rounding of float32, in which TRL keeps the shift."""
CASES = {
    "a first step with its own shift": [(4, 4)],
    "a third step with the running shift": [(4, 4), (2, 5), (3, 3)],
    "rows of one kind alone": [(4, 4), (0, 5)],
}
"""Rows of each kind, good and bad, in the steps up to the one that is compared."""


def rows_of(step: int, good: int, bad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities with gradient, those of the reference, and which rows are good."""
    generator = torch.Generator().manual_seed(step)
    logprobs, ref = torch.randn(2, good + bad, dtype=torch.float64, generator=generator) * 5 - 20
    return logprobs.requires_grad_(), ref, torch.arange(good + bad) < good


def of_trl(trainer: Any, sizes: list[tuple[int, int]]) -> dict[str, Tensor]:
    """Losses and their gradient in the last of the steps, and the shift."""
    running = trainer.RunningMoments(SimpleNamespace(use_distributed=False))
    itself = SimpleNamespace(beta=BETA, running=running, match_underlying_distribution=False)
    for step, (good, bad) in enumerate(sizes):
        logprobs, ref, chosen = rows_of(step, good, bad)
        sides = (logprobs[chosen], logprobs[~chosen], ref[chosen], ref[~chosen])
        losses, *_, shift = trainer.BCOTrainer.bco_loss(itself, *sides, None, None)
    (gradient,) = torch.autograd.grad(losses.mean(), logprobs)
    return {"losses": losses.detach(), "gradient": gradient, "shift": shift}


def of_ours(sizes: list[tuple[int, int]], *, beta: float, shift: float | None) -> dict[str, Tensor]:
    """The same of ours; with a shift of its own where none is given."""
    from rlhf.losses import RunningRewardShift, bco_loss

    logprobs, ref, chosen = rows_of(len(sizes) - 1, *sizes[-1])
    if shift is None:
        running = RunningRewardShift()
        running.update((beta * (logprobs - ref)).detach(), chosen)
        shift = running.value
    losses = bco_loss(logprobs, ref, chosen, beta=beta, shift=shift)
    (gradient,) = torch.autograd.grad(losses.mean(), logprobs)
    return {"losses": losses.detach(), "gradient": gradient, "shift": torch.tensor(shift, dtype=torch.float64)}


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Largest, relative to the largest number of its kind."""
    return max(float((ours[kind] - theirs[kind]).abs().max() / theirs[kind].abs().max()) for kind in theirs)


def main() -> None:
    """Unpack, compare, write.

    Raises:
        SystemExit: Ours differs from TRL, or a wrong beta does not.
    """
    arguments = arguments_of(__doc__, RESULT)
    with unpacked(arguments.wheel):
        from trl.experimental.bco import bco_trainer

        differences, controls = {}, []
        for name, sizes in CASES.items():
            theirs = of_trl(bco_trainer, sizes)
            shift = None if len(sizes) == 1 else float(theirs["shift"])
            differences[name] = difference(of_ours(sizes, beta=BETA, shift=shift), theirs)
            controls.append(difference(of_ours(sizes, beta=1.01 * BETA, shift=shift), theirs))
            print(f"{name}: {differences[name]:.1e}")
    largest, control = max(differences.values()), min(controls)
    if largest > LIMIT or control < 1e-3:
        raise SystemExit(
            f"Largest difference {largest:.1e} (limit {LIMIT:g}); a beta off by one percent: {control:.1e}."
        )
    from rlhf.files import write_json

    kinds = list(theirs)
    write_json(
        arguments.write,
        {"trl": VERSION, "compared": kinds, "cases": list(differences), "largest": largest, "control": control},
    )
    print(f"{arguments.write}: largest difference {largest:.1e}; a beta off by one percent {control:.1e}.")


if __name__ == "__main__":
    main()
