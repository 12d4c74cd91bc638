"""The reference's scores of fixed rows: the same bits from a file, in any order, for any split."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from rlhf.config.preference import DPOConfig, KTOConfig
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import ReferenceModel
from rlhf.training.dpo import DPOTrainer
from rlhf.training.kto import KTOTrainer
from rlhf.training.log import TrainingLogger
from rlhf.training.metrics import Metrics
from tests.fixtures import toy

ignore_conv1d = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # GPT-2's layers lie the other way


class Passes:
    """How often a policy's model was run, seen without a hook: the answers of a model under one are not kept."""

    def __init__(self, policy):
        policy.choose_path(toy.pairs(2))
        self.count = 0
        embedding = policy.model.get_input_embeddings()
        family = type(embedding)

        def forward(module, ids):
            self.count += 1
            return family.forward(module, ids)

        embedding.__class__ = type("Counted", (family,), {"forward": forward})


def dpo(folder, *, data=None, held_out=None, policy=None, reference=None, log=None, **settings):
    changed = {**toy.SHORT["dpo"], "cache_reference": str(folder) if folder else False, **settings}
    data = toy.pairs(10) if data is None else data
    return DPOTrainer(
        policy or toy.build_policy(), DPOConfig.of(changed), data, held_out, reference=reference, log=log
    )  # fmt: skip


def asked(trainer):
    """Whether the model ran before the first step, and what the rows were scored with."""
    passes = Passes(trainer.policy)
    trainer.collect(0, Metrics())
    return passes.count > 0, trainer.scored.train.ref_logprobs


def test_a_second_run_with_other_settings_does_not_ask_the_reference(tmp_path):
    ran, said = asked(dpo(tmp_path))
    assert ran
    for settings in ({"beta": 0.9}, {"loss": "ipo"}, {"seed": 5}, {"length_normalized": True}, {"learning_rate": 1e-3}):
        ran, again = asked(dpo(tmp_path, **settings))
        assert not ran, settings
        assert torch.equal(again, said)


def test_sums_that_a_setting_makes_otherwise_come_from_the_same_file(tmp_path):
    asked(dpo(tmp_path))
    ran, warm = asked(dpo(tmp_path, length_alpha=0.5))
    _, cold = asked(dpo(None, length_alpha=0.5))
    assert not ran
    assert torch.equal(warm, cold)


@pytest.mark.parametrize("cached", [True, False])
def test_order_split_and_copies_of_rows_change_no_bit(tmp_path, cached):
    """Micro-batches of a few rows, so that a row's neighbors would decide its rounding if its place did."""
    pairs, few = toy.pairs(16), {"microbatch_tokens": 40}
    folder = tmp_path if cached else None
    ran, said = asked(dpo(folder, data=pairs, **few))
    assert ran
    ran, turned = asked(dpo(folder, data=pairs[::-1], **few))
    assert ran != cached
    assert torch.equal(turned.flip(0), said)
    trainer = dpo(folder, data=pairs[4:] + pairs[4:6], held_out=pairs[:4], **few)
    ran, most = asked(trainer)
    assert ran != cached
    assert torch.equal(most, torch.cat([said[4:], said[4:6]]))
    assert torch.equal(trainer.scored.held_out.ref_logprobs, said[:4])


@pytest.mark.parametrize("change", ["rows", "policy", "microbatch", "reference"])
def test_another_question_is_asked_again(tmp_path, change):
    asked(dpo(tmp_path))
    changed = {
        "rows": {"data": toy.pairs(11)},
        "policy": {"policy": toy.build_policy(seed=3)},
        "microbatch": {"microbatch_tokens": 40},
        "reference": {"reference": ReferenceModel(toy.build_policy(seed=4))},
    }[change]
    trainer = dpo(tmp_path, **changed)
    trainer.collect(0, Metrics())
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
def test_a_run_with_a_warm_cache_ends_with_the_bits_of_one_without(tmp_path, autocast):
    """Also where nobody chose the policy's path before: what the first pass would have chosen, the warm run chooses too."""
    ends = []
    for folder in (None, tmp_path, tmp_path):
        trainer = dpo(folder, autocast=autocast, held_out=toy.pairs(6, seed=1))
        result = trainer.train()
        ends.append((toy.weights_of(trainer), result.metrics, result.evaluation, trainer.policy.path))
    for weights, *rest in ends[1:]:
        assert rest == list(ends[0][1:])
        assert all(torch.equal(value, ends[0][0][name]) for name, value in weights.items())


def test_a_policy_chooses_its_path_by_the_same_rows_whether_or_not_it_is_asked(tmp_path, monkeypatch):
    """Its steps go that way too, and another way would round otherwise."""
    choose, seen = PolicyModel.choose_path, []

    def remembered(policy, groups):
        seen.append([(tuple(group.prefix), len(group.branches)) for group in groups])
        return choose(policy, groups)

    monkeypatch.setattr(PolicyModel, "choose_path", remembered)
    for _ in ("cold", "warm"):
        trainer = dpo(tmp_path)
        trainer.collect(0, Metrics())
        assert trainer.policy.path is not None
    cold, warm = seen
    assert cold == warm
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def adapted(part, change):
    """A policy with an adapter, one kind of whose matrices was changed."""
    policy = toy.build_policy(lora=True)
    with torch.no_grad():
        for name, value in policy.model.named_parameters():
            if part in name:
                change(value)
    return policy


@ignore_conv1d
def test_a_fresh_adapter_of_another_seed_has_the_same_reference(tmp_path):
    asked(dpo(tmp_path, policy=toy.build_policy(lora=True)))
    ran, _ = asked(dpo(tmp_path, policy=adapted("lora_A", lambda value: value.mul_(2.0))))
    assert not ran


@ignore_conv1d
def test_a_trained_adapter_is_part_of_its_own_reference(tmp_path):
    _, start = asked(dpo(tmp_path, policy=toy.build_policy(lora=True)))
    ran, said = asked(dpo(tmp_path, policy=adapted("lora_B", lambda value: value.add_(0.5))))
    assert ran
    assert not torch.equal(said, start)


@pytest.mark.parametrize("point", ["step", "running"])
def test_kto_asks_once_for_runs_of_any_reference_point(tmp_path, point):
    def kto(folder, **settings):
        changed = {**toy.SHORT["kto"], "cache_reference": folder, **settings}
        return KTOTrainer(toy.build_policy(), KTOConfig.of(changed), toy.verdicts(10))

    cold = kto(False, reference_point=point)
    cold.train()
    asked(kto(str(tmp_path), reference_point="zero"))
    warm = kto(str(tmp_path), reference_point=point, keep_checkpoints=1)
    ran, _ = asked(warm)
    assert not ran
    warm = kto(str(tmp_path), reference_point=point)
    warm.train()
    weights = toy.weights_of(cold)
    assert all(torch.equal(value, weights[name]) for name, value in toy.weights_of(warm).items())


def test_it_is_said_when_a_file_stands_in_and_when_one_is_damaged(tmp_path):
    def lines(run):
        console = Console(file=io.StringIO(), width=400)
        trainer = dpo(tmp_path, log=TrainingLogger(console=console))
        said = asked(trainer)[1]
        return console.file.getvalue().splitlines(), said

    first, said = lines(1)
    assert first == []
    (path,) = tmp_path.glob("*.safetensors")
    second, again = lines(2)
    assert second == [f"What the reference says of 10 rows was read from {path}."]
    path.write_bytes(b"x" * 100)
    third, recomputed = lines(3)
    assert len(third) == 1
    assert "can't be used" in third[0]
    assert torch.equal(said, again)
    assert torch.equal(said, recomputed)
    assert lines(4)[0] == second


def test_without_a_cache_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path))
    asked(dpo(None))
    assert list(tmp_path.iterdir()) == []
    asked(dpo(None, cache_reference=True))
    assert [path.suffix for path in (tmp_path / "reference").iterdir()] == [".safetensors"]
