"""Whole runs: TRL's trainers and ours take 20 steps from the same weights, on the same rows in the same order, in float32.

Loss and gradient norm are compared at every step, and the weights at the end. Rounding grows from step to step, so the
tolerance is wider than that of one step; a wrong beta is out of it at once.

KTO's z0 is measured on completions that are given to other prompts. TRL pairs each prompt with the completion of the row
before it in the batch; ours draws at random. So ours is given TRL's rule here, in the place of ``mismatched_rows``; every
other line is what a user runs.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlhf.config.preference import DPOConfig, KTOConfig
from rlhf.config.reward_model import RewardModelConfig
from rlhf.config.sft import SFTConfig
from rlhf.data.pack import Branch, Group
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import ReferenceModel
from rlhf.models.reward import RewardModel
from rlhf.training.dpo import DPOTrainer
from rlhf.training.kto import KTOTrainer
from rlhf.training.log import TrainingLogger
from rlhf.training.reward_model import RewardModelTrainer
from rlhf.training.sft import SFTTrainer
from tests.oracle.conftest import CHOSEN, PROMPTS, REJECTED
from tests.oracle.test_trl_training import shared

pytestmark = pytest.mark.numeric

STEPS, ROWS = 20, 4
TAIL = (" and", " so", " but", " yet", " the", " a", " of", " in")
SHARED: dict[str, Any] = {"learning_rate": 2e-3, "weight_decay": 0.0, "max_grad_norm": 1.0, "seed": 0}
OURS: dict[str, Any] = {**SHARED, "batch_size": ROWS, "epochs": 2, "schedule": "linear", "warmup_frac": 0.0}


def texts() -> list[dict[str, str]]:
    """40 pairs of uneven length; rows that stand side by side have different prompts."""
    return [
        {
            "prompt": PROMPTS[n % 3] + TAIL[n % 8] * (n // 3 % 3),
            "chosen": CHOSEN[(n // 2) % 3] + TAIL[n % 7] * (n % 4),
            "rejected": REJECTED[(n // 3) % 3] + TAIL[n % 5] * (n % 3),
        }
        for n in range(STEPS * ROWS // 2)
    ]


def verdicts() -> list[dict[str, Any]]:
    """Single completions; some steps have one kind alone."""
    rows = texts()
    good = [(n * 7 // 5) % 3 != 0 or n < ROWS for n in range(len(rows))]
    return [
        {"prompt": row["prompt"], "completion": row["chosen" if label else "rejected"], "label": label}
        for row, label in zip(rows, good, strict=True)
    ]


def run_theirs(trainer: Any) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Loss and gradient norm of each step, and the weights."""
    from transformers import TrainerCallback

    logged: list[dict[str, float]] = []

    class Listener(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            logged.append(dict(logs))

    trainer.add_callback(Listener())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train()
    steps = [entry for entry in logged if "grad_norm" in entry]
    weights = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    return [float(e["loss"]) for e in steps], [float(e["grad_norm"]) for e in steps], weights


def run_ours(
    trainer: Any, log: TrainingLogger, model: torch.nn.Module | None = None
) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    trainer.train()
    steps = [event["metrics"] for event in log.read("metrics")]
    weights = {name: p.detach() for name, p in (model or trainer.policy.model).named_parameters()}
    return [e["loss/train"] for e in steps], [e["grad_norm"] for e in steps], weights


def same(ours: Any, theirs: Any, *, atol: float = 1e-4) -> bool:
    """TRL logs losses as they are; gradient norms, before clipping, too. ``atol`` is that of a weight after all steps."""
    losses, norms, weights = theirs
    assert len(losses) == len(ours[0]) == STEPS
    assert max(losses) - min(losses) > 0.01, "something was learned"
    close = ours[0] == pytest.approx(losses, rel=1e-4) and ours[1] == pytest.approx(norms, rel=1e-3)
    return close and all(bool(torch.allclose(ours[2][name], value, atol=atol)) for name, value in weights.items())


@pytest.fixture(autouse=True)
def rows_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf.training.row_order.permutation", lambda size, *_: list(range(size)))


@pytest.fixture
def their_settings() -> dict[str, Any]:
    return {
        "per_device_train_batch_size": ROWS, "num_train_epochs": 2, "learning_rate": SHARED["learning_rate"],
        "lr_scheduler_type": "linear", "warmup_steps": 0, "max_grad_norm": SHARED["max_grad_norm"], "weight_decay": 0.0,
        "logging_steps": 1, "train_sampling_strategy": "sequential", "beta": 0.3, "optim": "adamw_torch",
    }  # fmt: skip


def ids_of(dataset: Any, names: Sequence[str]) -> list[list[list[int]]]:
    """The token ids on which TRL trains: nothing is left to how texts are tokenized."""
    return [[list(row[name]) for name in ("prompt_ids", *names)] for row in dataset]


@pytest.mark.slow
def test_sft_goes_trls_way(build_trainer, policy, tokenizer, their_settings):
    start = copy.deepcopy(policy)
    rows = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in texts()]
    settings = {name: value for name, value in their_settings.items() if name != "beta"}
    trainer = build_trainer("SFT", copy.deepcopy(policy), rows, **settings)
    groups = []
    for number, row in enumerate(trainer.train_dataset):
        ids, size = list(row["input_ids"]), [label != -100 for label in row["labels"]].index(True)
        groups.append(Group(ids[:size], [Branch(ids[size:])], {"id": str(number)}))
    theirs = run_theirs(trainer)

    def ours(**changes: Any) -> Any:
        log = TrainingLogger()
        config = SFTConfig.of({**OURS, "microbatch_tokens": 60, **changes})
        return run_ours(SFTTrainer(PolicyModel(copy.deepcopy(start), tokenizer), config, groups, log=log), log)

    # one entry of an embedding has a gradient that cancels to rounding, which AdamW divides by its own size
    assert same(ours(), theirs, atol=3e-4)
    assert not same(ours(label_smoothing=0.01), theirs, atol=3e-4)


@pytest.mark.slow
def test_reward_modeling_goes_trls_way(build_trainer, reward_model, tokenizer, their_settings):
    start = copy.deepcopy(reward_model)
    rows = [{side: row["prompt"] + row[side] for side in ("chosen", "rejected")} for row in texts()]
    settings = {name: value for name, value in their_settings.items() if name != "beta"}
    trainer = build_trainer("Reward", copy.deepcopy(reward_model), rows, **settings)
    pairs = [(list(row["chosen_ids"]), list(row["rejected_ids"])) for row in trainer.train_dataset]
    groups = [replace(shared(*pair), columns={"id": str(number)}) for number, pair in enumerate(pairs)]
    theirs = run_theirs(trainer)

    def ours(**changes: Any) -> Any:
        log, model = TrainingLogger(), copy.deepcopy(start)
        config = RewardModelConfig.of({**OURS, "microbatch_tokens": 100, **changes})
        return run_ours(RewardModelTrainer(RewardModel([model], tokenizer), config, groups, log=log), log, model)

    assert same(ours(), theirs)
    assert not same(ours(label_smoothing=0.01), theirs)
    assert not same(ours(center_coef=0.01), theirs)


def test_dpo_goes_trls_way(build_trainer, policy, reference, tokenizer, their_settings):
    start = copy.deepcopy(policy)
    trainer = build_trainer("DPO", copy.deepcopy(policy), texts(), ref_model=copy.deepcopy(reference), **their_settings)
    ids = ids_of(trainer.train_dataset, ("chosen_ids", "rejected_ids"))
    groups = [Group(p, [Branch(c), Branch(r)], {"id": str(n)}) for n, (p, c, r) in enumerate(ids)]
    theirs = run_theirs(trainer)

    def ours(beta: float) -> Any:
        log = TrainingLogger()
        model = PolicyModel(copy.deepcopy(start), tokenizer)
        frozen = PolicyModel(copy.deepcopy(reference), tokenizer)
        config = DPOConfig.of({**OURS, "beta": beta, "microbatch_tokens": 100})
        return run_ours(DPOTrainer(model, config, groups, reference=frozen, log=log), log)

    assert same(ours(0.3), theirs)
    assert not same(ours(0.31), theirs)


def rows_before(order: Sequence[tuple[int, ...]]) -> Any:
    """TRL's pairing, for rows that come in another order: each is given the completion of the one before it."""

    def match(prompts: Sequence[tuple[int, ...]], *, seed: int) -> list[int]:
        places = [order.index(prompt) for prompt in prompts]
        step = min(places) // ROWS * ROWS
        assert sorted(places) == list(range(step, step + ROWS)), "a step's rows, each prompt once"
        return [places.index(step + (place - step - 1) % ROWS) for place in places]

    return match


@pytest.mark.slow
def test_kto_goes_trls_way(build_trainer, policy, reference, tokenizer, their_settings, monkeypatch):
    start = copy.deepcopy(policy)
    settings = {**their_settings, "desirable_weight": 1.2, "undesirable_weight": 0.9}
    rows = [{**row, "prompt": f"{n}: {row['prompt']}"} for n, row in enumerate(verdicts())]
    trainer = build_trainer("KTO", copy.deepcopy(policy), rows, ref_model=copy.deepcopy(reference), **settings)
    ids = ids_of(trainer.train_dataset, ("completion_ids",))
    labels = [row["label"] for row in trainer.train_dataset]
    groups = [Group(p, [Branch(c)], {"id": str(n), "label": labels[n]}) for n, (p, c) in enumerate(ids)]
    theirs = run_theirs(trainer)
    monkeypatch.setattr("rlhf.training.kto.mismatched_rows", rows_before([tuple(p) for p, _ in ids]))

    def ours(**changes: Any) -> tuple[Any, list[float]]:
        log = TrainingLogger()
        model = PolicyModel(copy.deepcopy(start), tokenizer)
        frozen = ReferenceModel(PolicyModel(copy.deepcopy(reference), tokenizer))
        weights = {"desirable_weight": 1.2, "undesirable_weight": 0.9}
        config = KTOConfig.of({**OURS, "beta": 0.3, **weights, "microbatch_tokens": 60, **changes})
        result = run_ours(KTOTrainer(model, config, groups, reference=frozen, log=log), log)
        return result, [event["metrics"]["kto/reference_point"] for event in log.read("metrics")]

    actual, points = ours()
    assert same(actual, theirs)
    assert sum(point > 0.1 for point in points) >= STEPS / 2, "z0 has a say"
    assert not same(ours(beta=0.31)[0], theirs)
    assert not same(ours(reference_point="zero")[0], theirs)
