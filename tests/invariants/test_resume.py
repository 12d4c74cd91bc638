"""Kill a run anywhere: the resumed one ends with the same bits, and its logs neither repeat themselves nor have holes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf.data.streaming import StreamingSFTDataset
from rlhf.files import write_jsonl
from rlhf.rewards.types import ScoreResult
from rlhf.training.checkpoint import CheckpointManager
from rlhf.training.log import TrainingLogger
from rlhf.training.penalties import ElasticWeightConsolidation
from rlhf.training.sft import SFTTrainer
from tests.fixtures import toy

EVERYTHING_ON: dict[str, Any] = {
    "dropout": 0.2,
    "held_out": True,
    "ema_decay": 0.9,
    "save_every": 2,
    "eval_every": 2,
    "early_stopping": {"metric": "eval/loss", "patience": 3},
}
WATCHED = {
    **dict.fromkeys(("vapo", "trpo", "online_dpo", *toy.GROUPS), "eval/score_mean"),
    "distill": "eval/teacher_kl",
    "ppo": "eval/score_mean",
    "grpo": "eval/score_mean",
}


class KilledError(BaseException):
    """Not an Exception: nothing in the library may catch it, as nothing can catch SIGKILL."""


class KillingLog(TrainingLogger):
    """Dies after a number of writes, and leaves half a line behind, as a killed process may."""

    writes_left = 10**9

    def write(self, *args: Any, **kwargs: Any) -> None:
        super().write(*args, **kwargs)
        self._count("events.jsonl")

    def rollouts(self, rows: Any) -> None:
        super().rollouts(rows)
        self._count(f"{self.stage}/rollouts.jsonl")

    def _count(self, file: str) -> None:
        self.writes_left -= 1
        if self.writes_left == 0:
            with (self.folder / file).open("a") as open_file:
                open_file.write('{"time": 1, "stage": "run", "eve')
            raise KilledError


def build(name: str, folder: Path, *, log: TrainingLogger | None = None, **settings: Any) -> Any:
    changed = {**EVERYTHING_ON, **settings}
    if name in WATCHED and changed.get("early_stopping"):
        changed["early_stopping"] = {**changed["early_stopping"], "metric": WATCHED[name], "mode": "max"}
    return toy.build_trainer(
        name, log=log or TrainingLogger(folder, stage="run"), checkpoint_dir=folder / "run", **changed
    )


def logged(folder: Path) -> tuple[list[Any], list[Any]]:
    """Metrics and evaluations without their times, and rollouts."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    kept = [(e["event"], e["step"], e["metrics"]) for e in events if e["event"] in ("metrics", "eval")]
    path = folder / "run" / "rollouts.jsonl"
    return kept, [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def ends_the_same(name: str, folder: Path, result: Any, weights: Any, expected: Path, **settings: Any) -> None:
    """Resume in ``folder`` and compare with the run that nobody killed."""
    trainer = build(name, folder, **settings)
    trained = trainer.train()
    assert toy.largest_difference(toy.weights_of(trainer), weights) == 0.0
    assert (trained.steps, trained.metrics, trained.evaluation) == (result.steps, result.metrics, result.evaluation)
    assert logged(folder) == logged(expected)


def ends_the_same_though_killed(name: str, folder: Path, **settings: Any) -> Any:
    """Kills a run after a third and after two thirds of its writes, and lets it go on.

    Returns:
        The trainer of the run that nobody killed.
    """
    whole = KillingLog(folder / "whole", stage="run")
    trainer = build(name, folder / "whole", log=whole, **settings)
    result = trainer.train()
    writes = 10**9 - whole.writes_left
    for number in (writes // 3, 2 * writes // 3):
        killed = folder / str(number)
        log = KillingLog(killed, stage="run")
        log.writes_left = number
        with pytest.raises(KilledError):
            build(name, killed, log=log, **settings).train()
        ends_the_same(name, killed, result, toy.weights_of(trainer), folder / "whole", **settings)
    return trainer


CASES = {
    **{name: (name, {}) for name in toy.NAMES},
    "grpo with a curriculum": ("grpo", {"curriculum": {"success_score": 0.6, "window": 2}, "rollouts": 4}),
    "dapo with a curriculum": ("dapo", {"curriculum": {"success_score": 0.6}, "rollouts": 3, "dynamic_sampling": True}),
    "ppo with a shared critic": ("ppo", {"shared_value": True, "bootstrap_truncated": True}),
    "ppo in episodes": ("ppo", {"episodes": True}),
    "grpo with all that can be measured on held-out prompts": (
        "grpo",
        {"evaluation": {"samples": 2, "success_score": 0.5, "pass_k": [1, 2], "win_rate": True}},
    ),
    "ppo that ends phases early": ("ppo", {"stop_at_kl": 1e-9}),
    "ppo behind a warm-up, with a weight in the loss that every rollout changes": (
        "ppo",
        {
            "rollouts": 3,
            "epochs_per_rollout": 1,
            "value_warmup_rollouts": 1,
            "kl": {"where": "loss", "estimator": "k3", "coef": 0.05, "target": 1e-3, "controller": "doubling"},
        },
    ),
    "grpo whose weight of the kl warms up": (
        "grpo",
        {"rollouts": 4, "kl": {"coef": 0.1, "warmup": {"from": 1.0, "rollouts": 3}}},
    ),
    "ppo that goes on predicting other rows": ("ppo", {"ptx": 0.5, "rollouts": 3, "value_warmup_rollouts": 1}),
    "grpo whose reference moves": (
        "grpo",
        {"rollouts": 4, "kl": {"coef": 1.0}, "moving_reference": {"every": 2, "decay": 0.5}},
    ),
    "ppo whose reference moves with its adapter": (
        "ppo",
        {"rollouts": 3, "lora": True, "llama": True, "dropout": 0.0, "moving_reference": {"decay": 0.3}},
    ),
    "kto with a running point": ("kto", {"reference_point": "running"}),
    "bco of single completions": ("kto", {"loss": "bco"}),
    "process reward model on pairs": ("prm", {"loss": "pairs"}),
    "sft that stops early": ("sft", {"early_stopping": {"patience": 1, "min_delta": 1.0}, "epochs": 4}),
    "sft by tokens, without extras": (
        "sft",
        {"batch_tokens": 30, "ema_decay": None, "early_stopping": None, "held_out": False, "dropout": 0.0},
    ),
    "sft smoothed, with noise, held to the start": (
        "sft",
        {"label_smoothing": 0.2, "neftune_alpha": 10.0, "l2_coef": 0.1},
    ),
    "reward ensemble": ("reward", {"num_models": 2}),
    "dpo in bfloat16": ("dpo", {"autocast": "bfloat16"}),
    "sft in float16 with its loss scale": ("sft", {"autocast": "float16"}),
    "grpo that writes its checkpoints before it goes on": ("grpo", {"save_in_background": False}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_a_run_killed_after_any_write_ends_with_the_same_bits(case, tmp_path):
    name, settings = CASES[case]
    whole = KillingLog(tmp_path / "whole", stage="run")
    trainer = build(name, tmp_path / "whole", log=whole, **settings)
    result = trainer.train()
    weights = toy.weights_of(trainer)
    writes = 10**9 - whole.writes_left
    assert writes > 4
    for number in range(1, writes):  # the last write comes after the last step: nothing is left to resume
        folder = tmp_path / str(number)
        log = KillingLog(folder, stage="run")
        log.writes_left = number
        with pytest.raises(KilledError):
            build(name, folder, log=log, **settings).train()
        ends_the_same(name, folder, result, weights, tmp_path / "whole", **settings)


class SomeTeach:
    """Prompts of odd number score alike, whatever is said."""

    name = "some_teach"

    def score(self, prompts: Any, completions: Any) -> ScoreResult:
        good = toy.ShareOfGood().score(prompts, completions).scores
        return ScoreResult([1.0 if int(p.id) % 2 else score for p, score in zip(prompts, good, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("name", toy.GROUPS)
def test_grpos_family_killed_in_either_half_ends_with_the_same_bits(name, tmp_path):
    # a cursor that prompts asked again have moved, greedy baselines, a weight that every rollout changes
    settings = {"scorer": SomeTeach(), "rollouts": 3, "kl": {"target": 0.01, "controller": "doubling", "coef": 0.05}}
    trainer = ends_the_same_though_killed(name, tmp_path, **settings)
    assert (trainer.asked_again > 0) == (name == "dapo")


@pytest.mark.slow
@pytest.mark.parametrize("name", toy.NAMES)
@pytest.mark.parametrize("moment", ["during", "after"])
def test_a_run_killed_around_a_checkpoint_ends_with_the_same_bits(name, moment, tmp_path, monkeypatch):
    trainer = build(name, tmp_path / "whole", save_every=1)
    result = trainer.train()
    weights = toy.weights_of(trainer)
    real = CheckpointManager.save

    def dying(store, step, modules, state, **options):
        if step == 3 and moment == "during":  # some files are there, the record is not
            aside = store.folder / ".checkpoint-00000003.tmp"
            aside.mkdir()
            torch.save(state, aside / "state.pt")
            raise KilledError
        real(store, step, modules, state, **options)
        if step == 3:
            store.wait()
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointManager, "save", dying)
        with pytest.raises(KilledError):
            build(name, tmp_path / "killed", save_every=1).train()
    ends_the_same(name, tmp_path / "killed", result, weights, tmp_path / "whole", save_every=1)
    assert not list((tmp_path / "killed" / "run").glob(".*")), "what the killed process left is cleared away"


@pytest.mark.slow
@pytest.mark.parametrize("name", toy.NAMES)
def test_a_run_that_goes_on_with_other_microbatches_ends_the_same_up_to_rounding(name, tmp_path):
    settings: dict[str, Any] = {"dropout": 0.0, "save_every": 2}
    whole = build(name, tmp_path / "whole", **settings)
    whole.train()
    log = KillingLog(tmp_path / "killed", stage="run")
    log.writes_left = 7
    with pytest.raises(KilledError):
        build(name, tmp_path / "killed", log=log, **settings).train()
    assert list((tmp_path / "killed" / "run").glob("checkpoint-*")), "it goes on, and does not begin again"
    resumed = build(name, tmp_path / "killed", microbatch_tokens=20, **settings)
    resumed.train()
    assert toy.largest_difference(toy.weights_of(resumed), toy.weights_of(whole)) < 1e-4


def test_what_a_run_should_not_forget_is_measured_again_at_the_same_start(tmp_path):
    def run(folder: Path, log: TrainingLogger) -> dict[str, torch.Tensor]:
        trainer = build("sft", folder, log=log, save_every=1)
        trainer.penalties.append(ElasticWeightConsolidation(trainer.policy, toy.rows(5, seed=7), coef=100.0))
        trainer.train()
        return toy.weights_of(trainer)

    whole = run(tmp_path / "whole", TrainingLogger(tmp_path / "whole", stage="run"))
    log = KillingLog(tmp_path / "killed", stage="run")
    log.writes_left = 6
    with pytest.raises(KilledError):
        run(tmp_path / "killed", log)
    assert list((tmp_path / "killed" / "run").glob("checkpoint-*")), "it goes on, and does not begin again"
    assert (
        toy.largest_difference(run(tmp_path / "killed", TrainingLogger(tmp_path / "killed", stage="run")), whole) == 0.0
    )
    assert logged(tmp_path / "killed") == logged(tmp_path / "whole")
    free = build("sft", tmp_path / "free")
    free.train()
    assert toy.largest_difference(toy.weights_of(free), whole) > 0.0


def test_two_kills_one_after_the_other(tmp_path):
    trainer = build("ppo", tmp_path / "whole")
    result = trainer.train()
    for writes in (6, 4):
        log = KillingLog(tmp_path / "killed", stage="run")
        log.writes_left = writes
        with pytest.raises(KilledError):
            build("ppo", tmp_path / "killed", log=log).train()
    ends_the_same("ppo", tmp_path / "killed", result, toy.weights_of(trainer), tmp_path / "whole")


def test_a_stream_goes_on_at_its_row(tmp_path):
    texts = [{"prompt": f"Question {n}", "completion": f" answer {n * n}"} for n in range(11)]
    write_jsonl(tmp_path / "sft.jsonl", texts)

    def run(folder: Path, log: TrainingLogger) -> dict[str, torch.Tensor]:
        data = StreamingSFTDataset(str(tmp_path / "sft.jsonl"), toy.TOKENIZER, shuffle_buffer=4, seed=3)
        config = toy.SFTConfig(learning_rate=1e-2, batch_size=3, max_steps=8, save_every=2)
        trainer = SFTTrainer(toy.build_policy(dropout=0.2), config, data, log=log, checkpoint_dir=folder / "run")
        trainer.train()
        return toy.weights_of(trainer)

    whole = run(tmp_path / "whole", TrainingLogger(tmp_path / "whole", stage="run"))
    for writes in range(1, 8):
        folder = tmp_path / f"killed {writes}"
        log = KillingLog(folder, stage="run")
        log.writes_left = writes
        with pytest.raises(KilledError):
            run(folder, log)
        assert toy.largest_difference(run(folder, TrainingLogger(folder, stage="run")), whole) == 0.0
        assert logged(folder) == logged(tmp_path / "whole")
