"""What is given to a public object and is of another type, or under another name, is refused at the door by name."""

from __future__ import annotations

import pytest

import rlhf
from rlhf.config.judges import read_judge
from rlhf.errors import RLHFError
from rlhf.rewards.factory import build_reward
from rlhf.training.trackers import TRACKERS
from tests.fixtures import toy


@pytest.fixture(scope="module")
def policy():
    return toy.build_policy()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda p: rlhf.SFTTrainer(p, rlhf.SFTConfig(), "d.jsonl"), "train_data is the text"),
        (lambda p: rlhf.SFTTrainer(p, rlhf.SFTConfig(), [{"text": "a"}]), r"train_data\[0\] is a dict"),
        (lambda p: rlhf.PPOTrainer(p, rlhf.PPOConfig(), "d.jsonl", len, reference=p), "prompts is the text"),
        (lambda p: rlhf.PPOTrainer(p, rlhf.PPOConfig(), [], reward=3, reference=p), "reward is an int"),
        (lambda p: rlhf.SFTDataset({"path": "d.jsonl", "dedup": True}, p.tokenizer), "`path`.*by keyword"),
        (lambda p: rlhf.TrainingLogger(log_to=["wand"]), "'wandb'"),
        (lambda p: rlhf.TrainingLogger(log_to="tensorboard"), "log_to"),
        (lambda p: rlhf.TrainingLogger(3), "folder"),
        (lambda p: rlhf.RLHFEvaluator(3), "judge"),
        (lambda p: rlhf.PreferenceStore(3), "place"),
        (lambda p: rlhf.apply_lora(p, 3), "lora"),
        (lambda p: rlhf.apply_lora(p, {"rnk": 2}), "rank"),
        (lambda p: p.generate(["a"], sampling=3), "sampling"),
        (lambda p: p.generate(["a"], max_length=3), "max_new_tokens"),
        (lambda p: rlhf.PolicyModel.from_pretrained(3), "model"),
        (lambda p: rlhf.RewardModel.from_pretrained(3), "model"),
        (lambda p: rlhf.PolicyModel("folder"), "from_pretrained"),
        (lambda p: rlhf.PolicyModel(p.model), "tokenizer"),
        (lambda p: rlhf.RewardModel("folder"), "from_pretrained"),
        (lambda p: rlhf.ProcessRewardModel("folder"), "from_pretrained"),
        (lambda p: rlhf.create_optimizer("x"), "model"),
        (lambda p: rlhf.DeviceManager().place("x"), "model"),
        (lambda p: rlhf.DeviceManager(3), "device"),
        (lambda p: rlhf.BestOfNSampler("x", "y"), "policy"),
        (lambda p: rlhf.RolloutBuffer("a"), "capacity"),
        (lambda p: rlhf.RolloutBuffer().add(["a"], ["b"]), "prompts"),
        (lambda p: rlhf.CheckpointManager(3), "folder"),
        (lambda p: rlhf.Registry(3), "folder"),
        (lambda p: rlhf.calculate_fleiss_kappa([1, 2]), r"ratings\[0\]"),
        (lambda p: rlhf.estimate_annotation_cost("100"), "num_pairs"),
        # names of other libraries
        (lambda p: rlhf.CheckpointManager(output_dir="a"), "'folder'"),
        (lambda p: rlhf.CheckpointManager("a", save_total_limit=3), "'keep'"),
        (lambda p: rlhf.CheckpointManager("a", max_checkpoints=3), "'keep'"),
        (lambda p: rlhf.TrainingLogger(log_dir="a"), "'folder'"),
        (lambda p: rlhf.RewardModelConfig(value_head="mlp"), "'head'"),
        (lambda p: rlhf.create_optimizer(p, lr=1e-3), "'learning_rate'"),
        (lambda p: rlhf.apply_lora(p, r=8), r"LoRAConfig\(rank=\.\.\.\)"),
        (lambda p: rlhf.setup_logging(log_dir="a"), "'output_dir'"),
        (lambda p: rlhf.RewardModel.from_policy(p, dropout=0.1), "'head_dropout'"),
    ],
)
def test_a_wrong_type_or_name_is_refused_by_what_it_is_called(call, named, policy):
    with pytest.raises(RLHFError, match=named):
        call(policy)


def test_settings_may_be_a_mapping(policy):
    completions = policy.generate(["a"], sampling={"max_new_tokens": 2})
    assert len(completions[0][0].tokens) <= 2
    adapted = rlhf.apply_lora(toy.build_policy(llama=True), {"rank": 2})
    assert adapted.has_adapter


def test_a_tracker_that_is_known_is_opened_late():
    assert list(rlhf.TrainingLogger(log_to=list(TRACKERS)).log_to) == list(TRACKERS)


@pytest.mark.parametrize(
    ("read", "settings", "named"),
    [
        (build_reward, {"kind": "service", "url": "http://a/score"}, "'request_size'"),
        (read_judge, {"type": "endpoint", "url": "http://a", "model": "m"}, "'concurrency'"),
    ],
)
def test_a_batch_of_requests_is_answered_with_its_name(read, settings, named):
    with pytest.raises(RLHFError, match=rf"batch_size: unknown key.*{named}"):
        read({**settings, "batch_size": 3})
    nested = {"kind": "judge", "judge": {"type": "endpoint", "url": "http://a", "model": "m", "batch_size": 3}}
    with pytest.raises(RLHFError, match=r"judge\.batch_size: unknown key"):
        build_reward(nested)
