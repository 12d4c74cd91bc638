"""The family of GRPO: what each member's paper says, and what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.methods.dapo import DAPOConfig
from rlhf.config.methods.remax import ReMaxConfig
from rlhf.config.methods.rloo import RLOOConfig
from rlhf.config.policy import PPOConfig, SamplingConfig, VAPOConfig
from rlhf.config.stages import BY_KIND
from rlhf.errors import ConfigError

GROUP = [kind for kind in BY_KIND.values() if issubclass(kind, GRPOConfig)]
PRESETS = list(
    dict.fromkeys(
        cls for kind in GROUP for cls in kind.__mro__ if cls.__name__.endswith("Config") and issubclass(cls, GRPOConfig)
    )
)
BY_NAME = {cls.__name__: cls for cls in PRESETS}
NO_KL = {"kl.where": "none", "kl.coef": 0.0}
IN_REWARD = {"kl.where": "reward", "kl.estimator": "k1"}
PAPERS: dict[str, dict[str, Any]] = {
    # Shao et al. 2024, arXiv:2402.03300, eq. 3 and 4 and section 4.1.2; beta 0.04 from section 4.2
    "GRPOConfig": {
        "advantage": "group", "policy_loss": "clip", "aggregation": "sequence", "clip_low": 0.2, "clip_high": 0.2,
        "kl.where": "loss", "kl.estimator": "k3", "kl.coef": 0.04, "dynamic_sampling": False, "steps": 1,
    },
    # Liu et al. 2025, arXiv:2503.20783, section 3.2: no division by the deviation or by the length, no KL; README.md of
    # sail-sg/understand-r1-zero at dfca49d: 8 completions of 128 prompts, steps of 128
    "DrGRPOConfig": {
        "advantage": "group_mean", "policy_loss": "clip", "aggregation": "constant", "group_size": 8, "minibatch_size": 128,
        "steps": 8, **NO_KL,
    },
    # Yu et al. 2025, arXiv:2503.14476, section 4.1: clip 0.2 and 0.28, 16 completions, mean over tokens, no KL, the last fifth
    # of the 64 tokens punished, 16 steps a rollout
    "DAPOConfig": {
        "advantage": "group", "policy_loss": "clip", "aggregation": "token", "clip_low": 0.2, "clip_high": 0.28,
        "group_size": 16, "dynamic_sampling": True, "overlong.buffer_tokens": None, "overlong.weight": 1.0, "steps": 16,
        **NO_KL,
    },
    # Zheng et al. 2025, arXiv:2507.18071, eq. 5 to 7; section 5.1: 3e-4, 4e-4, four mini-batches
    "GSPOConfig": {
        "advantage": "group", "policy_loss": "sequence", "aggregation": "sequence", "clip_low": 3e-4, "clip_high": 4e-4,
        "steps": 4, **NO_KL,
    },
    # MiniMax 2025, arXiv:2506.13585, eq. 4 and 5: no lower bound, mean over tokens, no KL; section 3.1: 16 off-policy updates
    # for each batch; upper bound of arXiv:2510.13786
    "CISPOConfig": {
        "advantage": "group", "policy_loss": "cispo", "aggregation": "token", "clip_low": 1.0, "clip_high": 4.0, "steps": 16,
        **NO_KL,
    },
    # Gao et al. 2025, arXiv:2511.20347: temperatures 1 and 1.05; steps as for GSPO, of the same authors
    "SAPOConfig": {
        "advantage": "group", "policy_loss": "sapo", "aggregation": "sequence", "gate_temperatures": (1.0, 1.05), "steps": 4,
        **NO_KL,
    },
    # Ahmadian et al. 2024, arXiv:2402.14740: REINFORCE on whole completions, KL in the reward, up to 4 samples, one step
    "RLOOConfig": {
        "advantage": "leave_one_out", "policy_loss": "reinforce", "aggregation": "constant", "group_size": 4, "steps": 1,
        **IN_REWARD,
    },
    # Hu et al. 2025, arXiv:2501.03262: one sample, PPO's clip, KL by k1 in each token's reward, whitened over the batch;
    # examples/scripts/train_reinforce_llama_ray.sh of OpenRLHF/OpenRLHF at 033a769: 1,024 prompts, steps of 128
    "ReinforcePPConfig": {
        "advantage": "batch", "baseline": "none", "policy_loss": "clip", "aggregation": "token", "group_size": 1,
        "prompts_per_rollout": 1024, "minibatch_size": 128, "steps": 8, **IN_REWARD,
    },
    # Li et al. 2023, arXiv:2310.10505, algorithm 1: one sample and one greedy completion, one step
    "ReMaxConfig": {
        "advantage": "greedy", "policy_loss": "reinforce", "aggregation": "constant", "group_size": 1, "steps": 1, **IN_REWARD,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PAPERS)
def test_a_presets_defaults_are_those_of_its_paper(name):
    config: GRPOConfig = BY_NAME[name]()
    for key, expected in PAPERS[name].items():
        if key == "steps":
            assert config.steps_per_rollout == expected
            continue
        actual: Any = config
        for part in key.split("."):
            actual = getattr(actual, part)
        assert actual == expected, key


PLAIN_GRADIENT = (GRPOConfig, RLOOConfig, ReMaxConfig)
"""Presets whose papers take one step to a rollout: the first clips nothing then, the others have no ratio."""


@pytest.mark.parametrize("preset", [*PRESETS, PPOConfig, VAPOConfig], ids=lambda preset: preset.__name__)
def test_a_preset_that_is_made_of_its_ratio_has_ratios_that_leave_1(preset):
    assert (preset().steps_per_rollout > 1) == (preset not in PLAIN_GRADIENT)


def test_a_last_step_with_fewer_groups_is_a_step():
    sizes = {"group_size": 4, "minibatch_size": 8, "epochs_per_rollout": 3}
    assert GRPOConfig.of({**sizes, "prompts_per_rollout": 5}).steps_per_rollout == 9


def test_every_preset_is_pinned():
    assert {preset.__name__ for preset in PRESETS} == PAPERS.keys()


@pytest.mark.parametrize("name", [*PAPERS, "PPOConfig"])
def test_settings_that_were_written_out_can_be_read_again(name):
    cls = PPOConfig if name == "PPOConfig" else BY_NAME[name]
    assert cls.of(cls().model_dump(mode="json")) == cls()


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("GRPOConfig", {"group_size": 1, "minibatch_size": 1}, "group_size must be at least 2, and is 1"),
        ("RLOOConfig", {"group_size": 1}, "advantage 'leave_one_out' compares completions of one prompt"),
        ("ReinforcePPConfig", {"baseline": "group"}, "group_size must be at least 2"),
        ("GRPOConfig", {"baseline": "group"}, "baseline belongs to the advantage `batch`; the advantage is 'group'"),
        ("ReMaxConfig", {"dynamic_sampling": True}, "the advantage 'greedy' learns from those too"),
        ("ReinforcePPConfig", {"dynamic_sampling": True, "group_size": 2}, "the advantage 'batch' learns from those too"),
        ("GRPOConfig", {"max_sampling_rounds": 2}, "max_sampling_rounds does nothing without dynamic_sampling"),
        ("ReinforcePPConfig", {"policy_loss": "sequence"}, "use `sequence_token`, or put the penalty elsewhere"),
        ("SAPOConfig", {"clip_high": 0.3}, "clip_high does nothing where policy_loss is 'sapo'"),
        ("RLOOConfig", {"clip_low": 0.1}, "clip_low does nothing where policy_loss is 'reinforce'"),
        ("CISPOConfig", {"dual_clip": 9.0}, "dual_clip does nothing where policy_loss is 'cispo'"),
        ("GRPOConfig", {"dual_clip": 1.1}, "dual_clip (1.1) must be above 1 + clip_high (1.2)"),
        ("GRPOConfig", {"gate_temperatures": [2.0, 2.0]}, "It belongs to `sapo`"),
        ("PPOConfig", {"policy_loss": "sequence"}, "the critic gives each token its own; use `sequence_token`"),
        ("GRPOConfig", {"overlong": {"buffer_tokens": 65}}, "overlong.buffer_tokens (65) must be at most"),
        ("GRPOConfig", {"kl": {"controller": "doubling"}}, "adapts the weight to `kl.target`, and there is none"),
        ("GRPOConfig", {"kl": {"controller": "doubling", "target": 1, "coef": 0}}, "multiplies the weight, and kl.coef is 0"),
        ("GRPOConfig", {"kl": {"target": 1, "coef": 0}}, "'proportional' multiplies the weight, and kl.coef is 0"),
        ("GRPOConfig", {"kl": {"unbiased": True, "estimator": "k2"}}, "kl.unbiased weighs the estimate k3 in the loss"),
        ("RLOOConfig", {"kl": {"unbiased": True, "estimator": "k3", "where": "reward"}}, "kl.where is 'reward'"),
        (
            "GRPOConfig",
            {"kl": {"controller": "constraint", "target": 1, "horizon": 5}},
            "kl.horizon belongs to kl.controller 'proportional'; it is 'constraint'",
        ),
        ("GRPOConfig", {"kl": {"target": 1, "step_size": 0.5}}, "kl.step_size belongs to kl.controller 'constraint'"),
        ("GRPOConfig", {"kl": {"estimator": "k1"}}, "k1 pulls nowhere as a loss"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_refused_by_name(name, settings, words):
    cls = PPOConfig if name == "PPOConfig" else BY_NAME[name]
    with pytest.raises(ConfigError) as caught:
        cls.of(settings)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("importance_sampling_level", "sequence", "Did you mean 'policy_loss'? `policy_loss: sequence` is one ratio"),
        ("scale_rewards", False, "Did you mean 'advantage'?"),
        ("loss_type", "dapo", "Did you mean 'policy_loss' or 'aggregation'?"),
        ("vllm_importance_sampling_correction", True, "Did you mean 'importance'?"),
        ("delta", 3.0, "Did you mean 'dual_clip'?"),
        ("num_generations", 8, "Did you mean 'group_size'?"),
        ("epsilon_high", 5.0, "TRL's bound of 5 for CISPO is 4 here"),
        ("dynamic_filtering", True, "Did you mean 'dynamic_sampling'?"),
        ("adv_estimator", "rloo", "Did you mean 'advantage'?"),
    ],
)
def test_other_libraries_keys_are_answered_with_ours(key, value, words):
    with pytest.raises(ConfigError) as caught:
        GRPOConfig.of({key: value})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "buffer"),
    [
        ({}, 12),
        ({"sampling": {"max_new_tokens": 20}}, 4),
        ({"sampling": {"max_new_tokens": 3}}, 1),
        ({"sampling": {"max_new_tokens": "40"}}, 8),
        ({"sampling": {"max_new_tokens": 40.0}}, 8),
        ({"sampling": SamplingConfig(max_new_tokens=40)}, 8),
        ({"sampling": {"max_new_tokens": 40}, "overlong": {"weight": 0.5}}, 8),
        ({"sampling": {"max_new_tokens": 40}, "overlong": {"buffer_tokens": 5}}, 5),
        ({"overlong": None}, None),
    ],
)
def test_dapo_punishes_the_last_fifth_unless_told_otherwise(given, buffer):
    config = DAPOConfig.of(given)
    assert (config.overlong and config.overlong.buffer_before(config.sampling.max_new_tokens)) == buffer


def test_a_limit_that_changes_later_takes_its_fifth_along():
    config = DAPOConfig().updated(sampling=SamplingConfig(max_new_tokens=1000))
    assert config.overlong.buffer_before(config.sampling.max_new_tokens) == 200


def test_a_short_limit_is_no_complaint_about_a_key_that_nobody_wrote():
    assert DAPOConfig.of({"sampling": {"max_new_tokens": "8"}}).overlong.buffer_before(8) == 1


def test_a_wrong_limit_of_dapo_is_the_complaint_about_that_limit():
    with pytest.raises(ConfigError, match="max_new_tokens"):
        DAPOConfig.of({"sampling": {"max_new_tokens": "many"}})
