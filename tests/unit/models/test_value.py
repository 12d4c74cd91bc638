from __future__ import annotations

import json

import pytest
import torch

from rlhf.config.model import LoRAConfig
from rlhf.config.policy import PPOConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, ModelError
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.models.value import ValueModel

pytestmark = pytest.mark.numeric

GROUPS = [Group([0, 10, 11], [Branch([12, 13, 1]), Branch([14, 1])]), Group([0], [Branch([20, 21, 22, 23])])]
BATCH = pack(GROUPS)


@pytest.fixture
def policy(tiny_model_folder):
    return PolicyModel.from_pretrained(str(tiny_model_folder))


@pytest.fixture
def reward(policy):
    reward = RewardModel.from_policy(policy)
    reward.set_normalization(torch.tensor([0.3]), torch.tensor([2.0]))
    return reward


def values(critic, policy, batch=BATCH):
    if critic.is_shared:
        return critic.values(batch, policy.score(batch, with_hidden=True).hidden)
    return critic.values(batch)


def make(form, policy, head="random"):
    return ValueModel.shared(policy, head=head) if form == "shared" else ValueModel.from_policy(policy, head=head)


both = pytest.mark.parametrize("form", ["separate", "shared"])


@both
def test_a_zero_head_expects_nothing_and_can_learn(policy, form):
    critic = make(form, policy, head="zero")
    actual = values(critic, policy)
    assert actual.tolist() == [0.0] * BATCH.num_scored
    (actual - 1).pow(2).sum().backward()
    gradients = [p.grad for p in critic.trainable_parameters().values() if p.grad is not None]
    assert any(bool(gradient.any()) for gradient in gradients)


@both
def test_a_value_is_read_before_its_token(policy, form):
    """Changing the token itself changes nothing; changing the one before it does."""
    critic = make(form, policy)
    changed = pack([Group([0, 10, 11], [Branch([12, 99, 1]), Branch([14, 1])]), GROUPS[1]])
    same = values(critic, policy) == values(critic, policy, changed)
    torch.testing.assert_close(values(critic, policy)[:2], values(critic, policy, changed)[:2], rtol=0, atol=1e-6)
    assert not same[2]
    torch.testing.assert_close(values(critic, policy)[3:], values(critic, policy, changed)[3:], rtol=0, atol=1e-6)


@both
def test_the_final_value_is_the_one_before_a_token_that_would_come_next(policy, form):
    """One number a sequence; it knows the last token, which no value at tokens does."""
    critic = make(form, policy)
    longer = pack(
        [
            Group(g.prefix, [Branch([*b.tokens, 9], [False] * len(b.tokens) + [True]) for b in g.branches])
            for g in GROUPS
        ]
    )
    hidden = policy.score(BATCH.at_last_tokens(), with_hidden=True).hidden if critic.is_shared else None
    final = critic.values(BATCH, hidden, at="final")
    torch.testing.assert_close(final, values(critic, policy, longer), rtol=0, atol=1e-6)
    assert final.shape == (BATCH.num_sequences,)


def test_final_values_of_a_shared_critic_need_the_states_of_last_tokens(policy):
    critic = ValueModel.shared(policy)
    with pytest.raises(ModelError, match="9 hidden states for 3 values"):
        critic.values(BATCH, policy.score(BATCH, with_hidden=True).hidden, at="final")
    with pytest.raises(ModelError, match="'last'"):
        critic.values(BATCH, at="last")


@both
def test_the_first_value_of_branches_with_one_prefix_is_the_same(policy, form):
    actual = values(make(form, policy), policy)
    assert actual[0] == actual[3]


def test_a_separate_value_is_the_head_on_the_hidden_state_that_predicts(policy):
    critic = ValueModel.from_policy(policy, head="random")
    head = critic.model.score.out
    hidden = policy.score(BATCH, with_hidden=True).hidden
    torch.testing.assert_close(critic.values(BATCH), hidden @ head.weight[0] + head.bias, rtol=0, atol=1e-5)


def test_a_separate_critic_learns_without_touching_the_policy(policy):
    before = policy.fingerprint()
    critic = ValueModel.from_policy(policy)
    optimizer = torch.optim.Adam(critic.trainable_parameters().values(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        loss = (critic.values(BATCH) - 2).pow(2).mean()
        loss.backward()
        optimizer.step()
    assert loss < 0.5 < 4
    assert policy.fingerprint() == before


def test_a_shared_critic_sends_gradient_into_the_policy(policy):
    critic = ValueModel.shared(policy, head="random")
    values(critic, policy).sum().backward()
    assert policy.model.model.layers[0].mlp.up_proj.weight.grad.any()
    assert set(critic.trainable_parameters()) == {"head.out.weight", "head.out.bias"}


def test_a_shared_critic_needs_the_policys_hidden_states(policy):
    critic = ValueModel.shared(policy)
    with pytest.raises(ModelError, match="with_hidden=True"):
        critic.values(BATCH)
    with pytest.raises(ModelError, match="no separate path"):
        critic.choose_path(GROUPS)


def test_seeds_make_heads(policy):
    prints = [ValueModel.from_policy(policy, head="random", seed=seed).fingerprint() for seed in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


def test_a_critic_from_a_reward_model_begins_as_its_normalized_scores(reward):
    critic = ValueModel.from_reward(reward, head="reward")
    prefix, branch = GROUPS[0].prefix, GROUPS[0].branches[0].tokens
    actual = critic.values(BATCH)
    for number in range(len(branch)):
        text = [*prefix, *branch[:number]]  # all that is known before token `number`
        score = reward.scores(pack([Group(text[:-1], [Branch(text[-1:])])]))
        torch.testing.assert_close(actual[number : number + 1], score, rtol=0, atol=1e-5)


def test_a_critic_from_a_reward_model_may_begin_at_zero(reward):
    assert ValueModel.from_reward(reward).values(BATCH).tolist() == [0.0] * BATCH.num_scored


@pytest.mark.parametrize("form", [{"head": "mlp"}, {"num_heads": 2}], ids=str)
def test_only_a_single_linear_reward_head_becomes_a_value_head(policy, form):
    with pytest.raises(ModelError, match="single linear reward head"):
        ValueModel.from_reward(RewardModel.from_policy(policy, **form), head="reward")


def test_a_critic_with_an_adapter_trains_adapter_and_head_only(policy):
    critic = ValueModel.from_policy(policy, lora=LoRAConfig(rank=2))
    names = list(critic.trainable_parameters())
    assert any(".lora_" in name for name in names)
    assert all(".lora_" in name or ".score.modules_to_save." in name for name in names)
    critic.values(BATCH).sum().backward()
    assert any(".score." in name and p.grad is not None and p.grad.any() for name, p in critic.named_parameters())


MLP = {"value_head": "mlp", "head_hidden_size": 5}


@pytest.mark.parametrize("make_one", [ValueModel.from_policy, ValueModel.shared])
def test_a_critic_with_a_hidden_layer_begins_at_zero_and_learns(policy, make_one):
    critic = make_one(policy, **MLP)
    assert values(critic, policy).tolist() == [0.0] * BATCH.num_scored
    values(critic, policy).sum().backward()
    assert critic._head.out.weight.grad.any()
    assert critic._head.hidden.weight.shape == (5, 32)


@pytest.mark.parametrize("form", ["separate", "shared", "lora", "reward"])
def test_a_saved_critic_with_a_hidden_layer_comes_back_bit_for_bit(tmp_path, policy, reward, form):
    critic = {
        "separate": lambda: ValueModel.from_policy(policy, head="random", **MLP),
        "shared": lambda: ValueModel.shared(policy, head="random", **MLP),
        "lora": lambda: ValueModel.from_policy(policy, head="random", lora=LoRAConfig(rank=2), **MLP),
        "reward": lambda: ValueModel.from_reward(reward, head="random", **MLP),
    }[form]()
    again = ValueModel.from_pretrained(str(critic.save_pretrained(tmp_path / "value")))
    assert torch.equal(values(again, policy), values(critic, policy))
    assert values(critic, policy).abs().min() > 0


def test_the_file_of_a_linear_critic_is_what_it_was(tmp_path, policy):
    folder = ValueModel.from_policy(policy).save_pretrained(tmp_path / "value")
    assert json.loads((folder / "rlhf_value.json").read_text()).keys() >= {"shared", "hidden_size"}
    assert "head" not in json.loads((folder / "rlhf_value.json").read_text())


def test_forms_of_a_critic_that_do_not_fit_are_refused(policy, reward):
    with pytest.raises(ModelError, match="head_hidden_size"):
        ValueModel.from_policy(policy, head_hidden_size=5)
    with pytest.raises(ModelError, match="single linear reward head"):
        ValueModel.from_reward(reward, head="reward", value_head="mlp")
    with pytest.raises(ConfigError, match="head_hidden_size"):
        PPOConfig.of({"head_hidden_size": 5})


@pytest.mark.parametrize("form", ["separate", "shared", "lora", "reward", "reward and lora"])
def test_a_saved_critic_comes_back_bit_for_bit(tmp_path, policy, reward, form):
    if form.startswith("reward"):
        lora = LoRAConfig(rank=2) if "lora" in form else None
        critic = ValueModel.from_reward(reward, head="reward", lora=lora)
    elif form == "lora":
        critic = ValueModel.from_policy(policy, head="random", lora=LoRAConfig(rank=2))
    else:
        critic = make(form, policy)
    folder = critic.save_pretrained(tmp_path / "value", card={"stage": "ppo"})
    again = ValueModel.from_pretrained(str(folder))
    assert again.is_shared == critic.is_shared
    assert torch.equal(values(again, policy), values(critic, policy))
    assert "- **Stage:** ppo" in (folder / "README.md").read_text()


def test_a_policy_folder_is_no_value_model(tiny_model_folder):
    with pytest.raises(ModelError, match=r"rlhf_value\.json.*ValueModel\.from_policy"):
        ValueModel.from_pretrained(str(tiny_model_folder))
