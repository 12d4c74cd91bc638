"""Our PPO trainer against the lines of TRL 1.12, the last release but one that had it. TRL 1.16, which tests/oracle pins, has none.

    pip download trl==1.12.0 --no-deps -d /tmp/trl
    python tools/oracle_ppo.py --wheel /tmp/trl/trl-1.12.0-py3-none-any.whl

Nothing is installed: the wheel is unpacked into a folder that is gone afterwards, and put before the TRL of this environment.
TRL has its formulas in the middle of ``PPOTrainer.train``; the two blocks from log-probabilities and scores to advantages, and
from new log-probabilities to the loss, are run as they stand there, on numbers of our choosing. Ours is the trainer's own
``assign_credit`` and ``loss``, in micro-batches. Both are in float64.

TRL puts the score one column past the last token where a row is not of full length, and lets the critic speak there. Rows of full
length have no such column and are compared whatever the settings. In the others the critic's word there is set to the score, and
gamma to 1: then the score arrives at the last token as it does with us, and only the number of columns that the value loss is a
mean over differs, by one for each such row; that factor is taken out.
"""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tools.trl_wheel import VERSION, arguments_of, unpacked  # noqa: E402

RESULT = ROOT / "docs" / "results" / "oracle_ppo.json"
SHAPES = {"rows_of_full_length": [7, 7, 7, 7, 7], "rows_of_different_lengths": [7, 1, 4, 2, 6]}
COLUMNS, VOCABULARY = 7, 11
TO_ADVANTAGES = ("padding_mask = response_idxs", "advantages = torch.masked_fill(advantages, padding_mask, 0)")
TO_LOSS = ("mb_advantage = advantages[micro_batch_inds]", "loss = pg_loss + args.vf_coef * vf_loss")
LIMIT = 1e-7
"""Relative to the largest number of the kind. TRL whitens by n / (n - 1) of two integer tensors, which torch divides in float32."""


def block(source: str, first: str, last: str) -> Any:
    """The lines from the one that begins with ``first`` to the one that is ``last``, compiled as they stand.

    Raises:
        SystemExit: They are not there.
    """
    lines = source.splitlines()
    begins = [n for n, line in enumerate(lines) if line.strip().startswith(first)]
    ends = [n for n, line in enumerate(lines) if line.strip() == last]
    if len(begins) != 1 or len(ends) != 1:
        raise SystemExit(
            f"TRL's PPOTrainer.train has no block from {first!r} to {last!r}; take the wheel of TRL {VERSION}."
        )
    return compile(textwrap.dedent("\n".join(lines[begins[0] : ends[0] + 1])), "PPOTrainer.train", "exec")


def numbers(lengths: list[int]) -> SimpleNamespace:
    """One rollout in rectangles; what stands on padding must not matter, so it is large."""
    draw = torch.randn(4, len(lengths), COLUMNS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sizes = torch.tensor(lengths)
    mask = torch.arange(COLUMNS)[None] < sizes[:, None]
    logits = torch.randn(
        len(lengths), COLUMNS, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    tokens = torch.arange(len(lengths) * COLUMNS).view(len(lengths), COLUMNS) % VOCABULARY
    now = logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    scores = torch.tensor([1.0, -2.0, 0.5, 3.0, -0.25], dtype=torch.float64)
    values, old_values = draw[0].clone(), draw[0] + 0.3 * draw[1]
    for row, size in enumerate(lengths):
        if size < COLUMNS:
            values[row, size:], old_values[row, size:] = 50.0, 50.0
            values[row, size] = old_values[row, size] = scores[row]
    old, ref = now + 0.3 * draw[2], now + 0.5 * draw[3]
    return SimpleNamespace(
        sizes=sizes, mask=mask, tokens=tokens, scores=scores,
        logits=logits.requires_grad_(), values=values.requires_grad_(),
        old=old.masked_fill(~mask, 50.0), ref=ref.masked_fill(~mask, 40.0), old_values=old_values,
    )  # fmt: skip


def of_trl(module: Any, source: str, r: SimpleNamespace, settings: dict[str, Any]) -> dict[str, Tensor]:
    """TRL's advantages, returns, losses, and the gradient of their sum."""
    rows = torch.arange(len(r.sizes))
    here: dict[str, Any] = {
        **vars(module),
        "args": SimpleNamespace(
            kl_estimator=settings["kl"]["estimator"], kl_coef=settings["kl"]["coef"], gamma=settings["gamma"],
            lam=settings["lam"], whiten_rewards=settings["whiten_rewards"], vf_coef=settings["value_coef"],
            cliprange=settings["clip_low"], cliprange_value=settings["clip_value"],
            temperature=1.0 - 1e-7,  # to which they add as much
        ),
        "responses": r.tokens, "query_responses": r.tokens, "sequence_lengths": r.sizes - 1, "scores": r.scores,
        "response_idxs": torch.arange(COLUMNS).repeat(len(rows), 1),
        "logprobs": r.old, "ref_logprobs": r.ref, "values": r.old_values, "micro_batch_inds": rows,
    }  # fmt: skip
    exec(block(source, *TO_ADVANTAGES), here)
    # one column of context: the first logits are those of the first token of the completion
    behind = torch.zeros(len(rows), 1, VOCABULARY, dtype=torch.float64)
    spoken = (
        SimpleNamespace(logits=torch.cat([r.logits, behind], 1)),
        torch.cat([r.values, behind[..., 0]], 1)[..., None],
    )
    here |= {
        "context_length": 1, "model": None, "processing_class": SimpleNamespace(pad_token_id=0),
        "forward": lambda *_: spoken,
    }  # fmt: skip
    exec(block(source, *TO_LOSS), here)
    own_columns, their_columns = r.mask.sum(), (~here["padding_mask_p1"]).sum()
    value_loss = here["vf_loss"] * their_columns / own_columns
    loss = here["pg_loss"] + settings["value_coef"] * value_loss
    gradients = torch.autograd.grad(loss, (r.logits, r.values))
    return {
        "advantages": here["advantages"][r.mask], "returns": here["returns"][r.mask],
        "policy loss": here["pg_loss"].detach(), "value loss": value_loss.detach(),
        "gradient of the logits": gradients[0], "gradient of the values": gradients[1],
    }  # fmt: skip


def of_ours(r: SimpleNamespace, settings: dict[str, Any]) -> dict[str, Tensor]:
    """The same of our trainer, two completions to a micro-batch."""
    from rlhf.data.pack import Branch, Group
    from rlhf.models.score import TokenScores
    from rlhf.training.algorithm import Totals
    from rlhf.training.experience import RolloutExperience
    from rlhf.training.metrics import Metrics
    from tests.fixtures import toy

    trainer = toy.build_trainer("ppo", **settings)
    groups = [Group([3], [Branch([4] * size)], {"id": str(row)}) for row, size in enumerate(r.sizes.tolist())]
    experience = RolloutExperience(groups, columns={"scores": r.scores})
    experience.token_columns.update(
        old_logprobs=r.old[r.mask], ref_logprobs=r.ref[r.mask], place=torch.arange(int(r.mask.sum()))
    )
    now = r.logits.log_softmax(-1).gather(-1, r.tokens[..., None]).squeeze(-1)[r.mask]
    values = r.values[r.mask]

    def at(flat: Tensor) -> Callable[..., Tensor]:
        return lambda batch, *_, **__: flat[batch.token_columns["place"]]

    trainer._old_values = lambda _: (r.old_values[r.mask], None)
    trainer.score = lambda batch, **_: TokenScores(at(now)(batch))
    trainer.value_model = SimpleNamespace(is_shared=False, values=at(values))
    trainer.assign_credit(experience, Metrics())
    batches = [
        batch
        for n in range(0, len(groups), 2)
        for batch in experience.batches(range(n, min(n + 2, len(groups))), max_tokens=10**6)
    ]
    totals, metrics = Totals.of(batches), Metrics()
    loss = torch.stack([trainer.loss(batch, totals, metrics) for batch in batches]).sum()
    gradients = torch.autograd.grad(loss, (r.logits, r.values))
    told = metrics.result()
    return {
        "advantages": experience.token_columns["advantages"], "returns": experience.token_columns["returns"],
        "policy loss": torch.tensor(told["loss/policy"], dtype=torch.float64),
        "value loss": torch.tensor(told["loss/value"], dtype=torch.float64),
        "gradient of the logits": gradients[0], "gradient of the values": gradients[1],
    }  # fmt: skip


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """Largest of each kind, relative to the largest number of the kind."""
    return {kind: float((ours[kind] - theirs[kind]).abs().max() / theirs[kind].abs().max()) for kind in theirs}


def cases() -> dict[str, tuple[list[int], dict[str, Any]]]:
    """Every combination, by name."""
    by_name = {}
    for (shape, lengths), estimator, whiten in itertools.product(SHAPES.items(), ("k1", "k3"), (False, True)):
        full = min(lengths) == COLUMNS
        if whiten and not full:
            continue  # the column that only TRL has would be in the deviation
        settings = {
            "kl": {"coef": 0.05, "estimator": estimator}, "gamma": 0.98 if full else 1.0, "lam": 0.95, "clip_low": 0.2,
            "clip_high": 0.2, "clip_value": 0.2, "value_coef": 0.1, "whiten_rewards": whiten,
        }  # fmt: skip
        by_name[f"{shape}, {estimator}{', whitened rewards' if whiten else ''}"] = (lengths, settings)
    return by_name


def main() -> None:
    """Unpack, compare, write.

    Raises:
        SystemExit: Ours differs from TRL, or a wrong setting does not.
    """
    arguments = arguments_of(__doc__, RESULT)
    with unpacked(arguments.wheel):
        import inspect

        from trl.experimental.ppo import ppo_trainer

        source = inspect.getsource(ppo_trainer.PPOTrainer.train)
        differences, worst_control = {}, float("inf")
        for name, (lengths, settings) in cases().items():
            theirs = of_trl(ppo_trainer, source, numbers(lengths), settings)
            differences[name] = difference(of_ours(numbers(lengths), settings), theirs)
            wrong = {**settings, "clip_high": 0.202, "lam": 0.9405}  # one percent off
            worst_control = min(worst_control, max(difference(of_ours(numbers(lengths), wrong), theirs).values()))
            print(f"{name}: {max(differences[name].values()):.1e}")
    largest = max(max(kinds.values()) for kinds in differences.values())
    if largest > LIMIT or worst_control < 1e-4:
        raise SystemExit(
            f"Largest difference {largest:.1e} (limit {LIMIT:g}); settings off by one percent: {worst_control:.1e}."
        )
    from rlhf.files import write_text

    result = {
        "trl": VERSION,
        "compared": list(theirs),
        "cases": list(differences),
        "largest": largest,
        "control": worst_control,
    }
    write_text(arguments.write, json.dumps(result, indent=2) + "\n")
    print(
        f"{arguments.write}: {len(differences)} cases, largest difference {largest:.1e}; settings off by one percent {worst_control:.1e}."
    )


if __name__ == "__main__":
    main()
