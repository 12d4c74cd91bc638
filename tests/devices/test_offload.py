"""``offload``: frozen models wait on the CPU, are on the GPU while they score, and give the bits of models that stay there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.on_policy import DistillConfig
from rlhf.config.policy import PPOConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError
from rlhf.models.offload import offload, on_device
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import AdapterOffReference
from rlhf.models.reward import RewardModel
from rlhf.pipeline.stages.context import StageContext
from rlhf.pipeline.stages.rl import _build_scorer, _open_reference
from rlhf.rewards.ensemble import EnsembleReward
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.model_reward import model_rewards
from rlhf.training.grpo import GRPOTrainer
from rlhf.training.log import TrainingLogger
from tests.fixtures import toy
from tests.fixtures.toy import build_trainer, weights_of

BOTH = ["reference", "reward"]
SETTINGS = {"rollouts": 2, "kl": {"where": "reward", "coef": 0.05}, "eval_every": 2}


def where(module):
    return {parameter.device.type for parameter in module.parameters()}


def size(module):
    return sum(p.numel() * p.element_size() for p in module.parameters())


def reward(*, seed):
    return LearnedReward(RewardModel.from_policy(toy.build_policy(), seed=seed), name=f"reward{seed}")


@torch.no_grad()
def test_weights_are_on_the_gpu_inside_the_block_alone_and_shared_ones_stay_shared(gpu):
    with gpu() as device:
        first, second = nn.Linear(3, 3), nn.Linear(3, 3)
        second.weight = first.weight
        both = nn.Sequential(first, second).to(device)
        both.register_buffer("scale", torch.ones(2, device=device))
        asked, kept = torch.ones(1, 3, device=device), first.weight
        expected = both(asked).cpu()
        offload(both, device)
        assert where(both) == {both.scale.device.type} == {"cpu"}
        with on_device(both, object()):
            assert where(both) == {both.scale.device.type} == {"cuda"}
            assert torch.equal(both(asked).cpu(), expected)
            with on_device(both):
                pass
            assert where(both) == {"cuda"}
        with pytest.raises(ZeroDivisionError), on_device(both):
            raise ZeroDivisionError
        assert where(both) == {"cpu"}
        assert first.weight is second.weight is kept


def test_on_a_cpu_nothing_moves():
    layer = nn.Linear(3, 3)
    before = layer.weight.data_ptr()
    offload(layer, torch.device("cpu"))
    with on_device(layer):
        assert layer.weight.data_ptr() == before


class Watched:
    """Notes, whenever the policy, the reference or a reward model computes, which of the frozen ones are on the GPU."""

    def __init__(self, monkeypatch, models):
        self.seen: dict[str, set[frozenset[str]]] = {}
        self.most_bytes = 0
        self.models = models
        for kind, method in ((PolicyModel, "score"), (RewardModel, "raw_scores")):
            monkeypatch.setattr(kind, method, self.watched(getattr(kind, method)))

    def watched(self, method):
        def call(model, *args, **kwargs):
            own = next((name for name, known in self.models.items() if model in known.modules()), "policy")
            there = frozenset(name for name, known in self.models.items() if where(known) == {"cuda"})
            self.seen.setdefault(own, set()).add(there)
            self.most_bytes = max(self.most_bytes, sum(size(self.models[name]) for name in there))
            return method(model, *args, **kwargs)

        return call


def trained(monkeypatch, **settings):
    scorer = EnsembleReward([reward(seed=3), reward(seed=4)])
    trainer = build_trainer("grpo", scorer=scorer, held_out=True, **SETTINGS, **settings)
    models = {f"reward{i}": model for i, model in enumerate(one.model for one in model_rewards(scorer))}
    with monkeypatch.context() as patch:
        watched = Watched(patch, {"reference": trainer.reference, **models})
        result = trainer.train()
    return watched, {name: value.cpu() for name, value in weights_of(trainer).items()}, result


def test_each_frozen_model_is_on_the_gpu_while_it_scores_and_a_run_ends_with_the_same_bits(gpu, toys_on, monkeypatch):
    with gpu() as device:
        toys_on(device)
        staying, weights, result = trained(monkeypatch)
        offloaded, other, other_result = trained(monkeypatch, offload=BOTH)
    assert offloaded.seen == {
        "policy": {frozenset()},
        "reference": {frozenset({"reference"})},
        "reward0": {frozenset({"reward0"})},
        "reward1": {frozenset({"reward1"})},
    }
    assert staying.seen["policy"] == {frozenset(staying.models)}
    sizes = [size(model) for model in offloaded.models.values()]
    assert offloaded.most_bytes == max(sizes)
    assert staying.most_bytes == sum(sizes)
    assert all(torch.equal(weights[name], other[name]) for name in weights)
    assert result.metrics == pytest.approx(other_result.metrics, abs=0, nan_ok=True)
    assert result.evaluation == other_result.evaluation


def test_the_exact_kl_in_the_reward_asks_a_reference_that_waits(gpu, toys_on):
    ended = []
    with gpu() as device:
        toys_on(device)
        for settings in ({}, {"offload": ["reference"]}):
            trainer = build_trainer(
                "ppo", rollouts=1, kl={"where": "reward", "estimator": "exact", "coef": 0.1}, **settings
            )
            trainer.train()
            ended.append({name: value.cpu() for name, value in weights_of(trainer).items()})
            assert where(trainer.reference) == ({"cpu"} if settings else {"cuda"})
    assert all(torch.equal(value, ended[1][name]) for name, value in ended[0].items())


def test_a_recipe_loads_what_it_offloads_on_the_cpu(tmp_path, gpu, monkeypatch):
    with gpu():
        RewardModel.from_policy("embedded", seed=1).save_pretrained(tmp_path / "reward")
        loaded = []
        for kind in (RewardModel, PolicyModel):
            load = kind.from_pretrained.__func__

            def spy(cls, *args, load=load, **kwargs):
                model = load(cls, *args, **kwargs)
                loaded.append((cls.__name__, where(model)))
                return model

            monkeypatch.setattr(kind, "from_pretrained", classmethod(spy))
        stage = stage_of(tmp_path, reference="embedded", offload=BOTH)
        at = StageContext("grpo", tmp_path, TrainingLogger())
        policy = PolicyModel.from_pretrained("embedded")
        scorer = _build_scorer(stage, policy, at)
        _open_reference(stage, policy, at)
        assert loaded == [("PolicyModel", {"cuda"}), ("RewardModel", {"cpu"}), ("PolicyModel", {"cpu"})]
        assert scorer.model.device.type == "cpu"


def stage_of(folder, **changes):
    (folder / "prompts.jsonl").write_text('{"prompt": "a"}\n' * 8)
    stage = {
        "kind": "grpo", "model": "embedded", "prompts": str(folder / "prompts.jsonl"), "group_size": 2, "minibatch_size": 2,
        "reward": str(folder / "reward"),
    }  # fmt: skip
    return RecipeConfig.of({"name": "run", "stages": {"grpo": {**stage, **changes}}}).stages["grpo"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"offload": ["critic"]}, "offload"),
        ({"offload": ["reference"], "moving_reference": {}}, "moving_reference"),
        ({"offload": ["reference"], "kl": {"where": "loss", "estimator": "exact"}}, r"kl\.estimator"),
        ({"offload": ["reference"], "model": {"path": "embedded", "lora": {"rank": 2}}}, "lora"),
        ({"offload": ["reward"], "reward": {"kind": "rules"}}, "no reward of this stage is a model"),
    ],
)
def test_what_can_not_wait_is_refused(changes, named, tmp_path):
    with pytest.raises(ConfigError, match=named):
        stage_of(tmp_path, **changes)


@pytest.mark.parametrize("config", [GRPOConfig, PPOConfig, DistillConfig])
def test_every_method_that_samples_takes_it(config):
    assert config.of({"offload": ["reference"]}).offload == ["reference"]


def test_a_trainer_refuses_to_offload_what_has_no_weights():
    with pytest.raises(ConfigError, match="`reward`"):
        build_trainer("grpo", offload=["reward"])  # its reward is a function
    with pytest.raises(ConfigError, match="`reward`"):
        build_trainer("distill", offload=["reward"])


def test_an_adapter_that_is_switched_off_has_no_weights_to_offload():
    policy = toy.build_policy(lora=True, llama=True)
    config = GRPOConfig.of({"offload": ["reference"], "group_size": 2, "minibatch_size": 2})
    with pytest.raises(ConfigError, match="`reference`"):
        GRPOTrainer(policy, config, toy.prompts(2), toy.ShareOfGood(), reference=AdapterOffReference(policy))


@pytest.mark.gpu
@torch.no_grad()
def test_a_real_gpu_has_the_memory_of_a_model_that_waits():
    layer = nn.Linear(4096, 4096, device="cuda")
    before = torch.cuda.memory_allocated()
    offload(layer, torch.device("cuda", 0))
    assert before - torch.cuda.memory_allocated() >= size(layer)
    with on_device(layer):
        assert torch.cuda.memory_allocated() == before
    assert before - torch.cuda.memory_allocated() >= size(layer)
