"""Every trainer on a GPU: the same weights as on the CPU, in float64 to rounding, and nothing on the way mixes devices."""

from __future__ import annotations

import pytest
import torch

from tests.fixtures import toy
from tests.fixtures.toy import NAMES, build_trainer, weights_of

LIMIT = 1e-9
"""Float64 leaves about 1e-14 of rounding after a few steps; another sample or another order of rows leaves 1e-3."""
SHORTER = {"epochs": None, "max_steps": 2}
OF_ROWS = ("sft", "reward", "prm", "dpo", "simpo", "cpo", "orpo", "kto")
SETTINGS = {name: dict(SHORTER) for name in OF_ROWS} | {
    "vapo": {"rollouts": 2},
    "reward": {**SHORTER, "head_dropout": 0.0},
}
VARIANTS = {
    "an adapter": ("dpo", {"lora": True, **SHORTER}),
    "a critic on the policy's backbone": ("ppo", {"shared_value": True, "rollouts": 1}),
    "episodes": ("grpo", {"episodes": True, "rollouts": 1}),
    "greedy baselines": ("remax", {"rollouts": 1}),
    "an average of the weights": ("sft", {"ema_decay": 0.5, **SHORTER}),
    # eps: the biases of keys have no gradient but rounding, which AdamW would make as large as any other
    "anchored weights": ("sft", {"l2_coef": 0.1, "eps": 1e-3, **SHORTER}),
    "noise on embeddings": ("sft", {"neftune_alpha": 5.0, **SHORTER}),
    "smoothed labels": ("sft", {"label_smoothing": 0.1, **SHORTER}),
    "an entropy bonus": ("grpo", {"entropy_coef": 0.01, "rollouts": 1}),
    "a ranking loss": ("reward", {"loss": "plackett_luce", "head_dropout": 0.0, **SHORTER}),
    "learned ties": ("reward", {"loss": "rao_kupper", "head_dropout": 0.0, **SHORTER}),
    "two reward heads": ("reward", {"num_heads": 2, "head_dropout": 0.0, **SHORTER}),
    "a language loss beside steps": ("prm", {"lm_coef": 0.1, **SHORTER}),
}


def trained(name, **settings):
    trainer = build_trainer(name, held_out=True, dtype=torch.float64, **settings)
    result = trainer.train()
    modules = toy.modules_of(trainer).values()
    devices = {p.device.type for module in modules for p in module.parameters()}
    # Where a path breaks, the next one is taken: right, slower, and no proof of anything.
    assert (trainer.policy if hasattr(trainer, "policy") else trainer.model).path == "packed"
    return {key: value.cpu() for key, value in weights_of(trainer).items()}, result, devices


def compare(name, settings, gpu, toys_on):
    on_cpu, plain, _ = trained(name, **settings)
    with gpu() as device:
        toys_on(device)
        on_gpu, result, devices = trained(name, **settings)
    assert devices == {"cuda"}, "a model that came back to the CPU compares nothing"
    assert toy.largest_difference(on_cpu, on_gpu) < LIMIT
    assert result.metrics["loss/train"] == pytest.approx(plain.metrics["loss/train"], abs=1e-7)
    assert result.evaluation.keys() == plain.evaluation.keys()


OF_EACH_LOOP = ("sft", "dpo", "ppo", "grpo")
"""The others take these loops with losses of their own, and do so in the slow tests."""


@pytest.mark.parametrize(
    "name", [name if name in OF_EACH_LOOP else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_trainer_ends_with_the_same_weights_on_a_gpu(name, gpu, toys_on):
    compare(name, SETTINGS.get(name, {"rollouts": 1}), gpu, toys_on)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fan_in_fan_out")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_trainer_ends_with_the_same_weights_on_a_gpu_with(variant, gpu, toys_on):
    name, settings = VARIANTS[variant]
    compare(name, settings, gpu, toys_on)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "ppo"])
def test_a_run_that_was_begun_on_a_gpu_goes_on_from_its_checkpoint_on_a_cpu_and_back(name, tmp_path, gpu, toys_on):
    settings = {
        "dtype": torch.float64,
        "save_every": 2,
        "keep_checkpoints": 9,
        "rollouts" if name == "ppo" else "epochs": 2,
    }
    whole = build_trainer(name, **settings)
    whole.train()
    for first, then in (("gpu", "cpu"), ("cpu", "gpu")):
        folder = tmp_path / f"{first}-{then}"
        with gpu() as device:
            places = {"gpu": device, "cpu": "cpu"}
            toys_on(places[first])
            begun = build_trainer(name, checkpoint_dir=folder, **settings)
            begun.train()
            newest = sorted(folder.glob("checkpoint-*"))[-1]
            assert len(list(folder.glob("checkpoint-*"))) > 1
            for path in newest.iterdir():
                path.unlink()
            newest.rmdir()
            toys_on(places[then])
            resumed = build_trainer(name, checkpoint_dir=folder, **settings)
            resumed.train()
            actual = {key: value.cpu() for key, value in weights_of(resumed).items()}
        assert toy.largest_difference(weights_of(whole), actual) < LIMIT


def test_dropout_on_a_gpu_leaves_the_numbers_of_the_cpu_where_they_were(gpu, toys_on):
    with gpu() as device:
        toys_on(device)
        trainer = build_trainer("sft", dropout=0.2, **SHORTER)
        torch.manual_seed(4)
        expected = torch.rand(3)
        trainer.policy.train()
        torch.manual_seed(4)
        batch = next(iter(trainer.steps(0, trainer.collect(0, _metrics()))))[0]
        trainer.policy.score(batch.to(device))
        assert torch.equal(torch.rand(3), expected)


def _metrics():
    from rlhf.training.metrics import Metrics

    return Metrics()
