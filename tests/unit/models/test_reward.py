from __future__ import annotations

import json

import pytest
import torch
from peft import AutoPeftModelForSequenceClassification
from transformers import AutoModelForSequenceClassification, LlamaForSequenceClassification

from rlhf.config.model import LoRAConfig, ModelConfig
from rlhf.config.reward_model import RewardModelConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, ModelError
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from tests.unit.models.families import build, family

pytestmark = pytest.mark.numeric

EOS = 1
GROUPS = [
    Group([0, 10, 11], [Branch([12, 13, EOS]), Branch([14, EOS])]),
    Group([0], [Branch([20, 21, 22, 23])]),
    Group([0, 30, 31, 32, 33], [Branch([EOS]), Branch([40, EOS, 41, EOS, EOS])]),
]
BATCH = pack(GROUPS)
ROWS = [[*group.prefix, *branch.tokens] for group in GROUPS for branch in group.branches]


@pytest.fixture
def policy(tiny_model_folder):
    return PolicyModel.from_pretrained(str(tiny_model_folder))


def alone(model, rows=ROWS):
    """[S] the score transformers gives each row by itself."""
    model.eval()
    with torch.no_grad():
        return torch.stack([model(input_ids=torch.tensor([ids])).logits[0, 0] for ids in rows])


def learn(reward, steps=3):
    optimizer = torch.optim.SGD([p for p in reward.parameters() if p.requires_grad], lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        reward.raw_scores(BATCH)[:, 0].sum().neg().backward()
        optimizer.step()


# ---- where and how a score is read


def test_the_score_is_the_head_on_the_last_hidden_state(policy):
    reward = RewardModel.from_policy(policy)
    weight = reward.members[0].score.weight
    hidden = [policy.model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1] for ids in ROWS]
    torch.testing.assert_close(reward.raw_scores(BATCH)[0], torch.stack(hidden) @ weight[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("pad", [None, "<pad>", "<eos>"])
def test_padding_that_equals_end_of_text_does_not_move_the_score(policy, pad):
    """transformers would read before trailing pads; a completion that ends in EOS is scored at its EOS whatever pad is."""
    from tests.fixtures import tiny

    reward = RewardModel.from_policy(policy)
    expected = reward.scores(BATCH)
    tokenizer = tiny.build_tokenizer()
    tokenizer.pad_token = pad
    policy = PolicyModel(policy.model, tokenizer)
    policy.model.config.pad_token_id = tokenizer.pad_token_id
    assert torch.equal(RewardModel.from_policy(policy).scores(BATCH), expected)


def test_the_card_warns_of_a_padding_token_that_equals_end_of_text(tmp_path, policy):
    from tests.fixtures import tiny

    tokenizer = tiny.build_tokenizer()
    tokenizer.pad_token = "<eos>"
    folder = RewardModel.from_policy(PolicyModel(policy.model, tokenizer)).save_pretrained(tmp_path / "reward")
    assert "no padding token of its own" in (folder / "README.md").read_text()


@pytest.mark.parametrize("title", ["gpt2", "bloom", "mamba", "gpt_oss, sliding window, sinks, experts"])
def test_other_families_score_a_row_the_same_in_any_batch_and_after_a_round_trip(tmp_path, title, tiny_tokenizer):
    """Some have no sequence classification in transformers, or can't be packed."""
    kind = family(title)
    model = build(type(kind)(kind.name, {**kind.settings, "vocab_size": len(tiny_tokenizer)}))
    reward = RewardModel.from_policy(PolicyModel(model, tiny_tokenizer))
    together = reward.scores(BATCH)
    assert reward.path == kind.path
    single = [reward.scores(pack([Group(ids[:-1], [Branch(ids[-1:])])])) for ids in ROWS]
    torch.testing.assert_close(together, torch.cat(single), rtol=0, atol=2e-5)
    again = RewardModel.from_pretrained(str(reward.save_pretrained(tmp_path / "reward")))
    assert torch.equal(again.scores(BATCH), together)


def test_a_bfloat16_backbone_gives_float32_scores(tiny_model_folder):
    config = ModelConfig.of({"path": str(tiny_model_folder), "dtype": "bfloat16"})
    low, exact = RewardModel.from_policy(config), RewardModel.from_policy(str(tiny_model_folder))
    assert low.scores(BATCH).dtype == torch.float32
    assert (low.scores(BATCH) - exact.scores(BATCH)).abs().max() < 0.1


def test_training_reaches_backbone_and_head_and_leaves_the_policy(policy):
    before = policy.fingerprint()
    reward = RewardModel.from_policy(policy)
    first = reward.raw_scores(BATCH).detach()
    learn(reward)
    assert (reward.raw_scores(BATCH)[0, 0] - first[0, 0]) > 0.1
    assert reward.members[0].model.layers[0].mlp.up_proj.weight.grad.any()
    assert policy.fingerprint() == before


def test_head_dropout_acts_in_training_only(policy):
    reward = RewardModel.from_policy(policy, head_dropout=0.5)
    plain = RewardModel.from_policy(policy)
    assert torch.equal(reward.scores(BATCH), plain.scores(BATCH))
    reward.train()
    assert not torch.equal(reward.raw_scores(BATCH), reward.raw_scores(BATCH))


# ---- folders


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"head": "mlp", "head_dropout": 0.1},
        {"num_heads": 3},
        {"head": "mlp", "num_heads": 2},
        {"head": "mlp", "num_heads": 2, "head_hidden_size": 5},
        {"num_models": 2},
        {"lora": LoRAConfig(rank=2)},
        {"lora": LoRAConfig(rank=2), "head": "mlp"},
        {"lora": LoRAConfig(rank=2), "head": "mlp", "head_hidden_size": 5},
        {"lora": LoRAConfig(rank=2), "num_models": 2, "num_heads": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("source", ["in memory", "on disk"])
def test_a_saved_reward_model_comes_back_bit_for_bit(tmp_path, policy, tiny_model_folder, form, source):
    reward = RewardModel.from_policy(policy if source == "in memory" else str(tiny_model_folder), **form)
    learn(reward)
    draw = torch.Generator().manual_seed(0)
    reward.fit_normalization(torch.randn(reward.num_scores, 20, generator=draw))
    folder = reward.save_pretrained(tmp_path / "reward")
    again = RewardModel.from_pretrained(str(folder))
    assert torch.equal(again.mean, reward.mean)
    assert torch.equal(again.std, reward.std)
    # A trained adapter on a base that is in no folder is merged, which rounds once; then it is bit for bit.
    once = {"rtol": 0, "atol": 1e-5 if "lora" in form and source == "in memory" else 0}
    torch.testing.assert_close(again.member_scores(BATCH), reward.member_scores(BATCH), **once)
    third = RewardModel.from_pretrained(str(again.save_pretrained(tmp_path / "again")))
    assert torch.equal(third.member_scores(BATCH), again.member_scores(BATCH))
    assert third.head_dropout == reward.head_dropout


def test_transformers_gives_the_raw_score_of_a_linear_head(tmp_path, policy):
    reward = RewardModel.from_policy(policy)
    learn(reward)
    reward.set_normalization(torch.tensor([0.3]), torch.tensor([2.0]))
    folder = reward.save_pretrained(tmp_path / "reward")
    theirs = AutoModelForSequenceClassification.from_pretrained(folder)
    assert theirs.config.num_labels == 1
    torch.testing.assert_close(alone(theirs), reward.raw_scores(BATCH)[0].detach(), rtol=0, atol=1e-5)
    assert "transformers and other tools give the raw score" in " ".join((folder / "README.md").read_text().split())


def test_peft_gives_the_raw_score_of_a_saved_adapter(tmp_path, tiny_model_folder, monkeypatch):
    reward = RewardModel.from_policy(str(tiny_model_folder), lora=LoRAConfig(rank=2))
    learn(reward)
    folder = reward.save_pretrained(tmp_path / "reward")
    assert (folder / "adapter_config.json").is_file()
    monkeypatch.chdir(folder)  # peft takes a relative base relative to the working directory
    theirs = AutoPeftModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    torch.testing.assert_close(alone(theirs), reward.raw_scores(BATCH)[0].detach(), rtol=0, atol=1e-5)


def test_a_reward_model_that_transformers_saved_loads(tmp_path, tiny_llama, tiny_tokenizer):
    torch.manual_seed(0)
    theirs = LlamaForSequenceClassification(tiny_llama.config)
    theirs.config.num_labels = 1
    theirs = LlamaForSequenceClassification(theirs.config)
    theirs.save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    reward = RewardModel.from_pretrained(str(tmp_path))
    torch.testing.assert_close(reward.scores(BATCH), alone(theirs), rtol=0, atol=1e-5)


def test_a_classifier_of_two_labels_is_no_reward_model(tmp_path, tiny_llama, tiny_tokenizer):
    tiny_llama.config.num_labels = 2
    LlamaForSequenceClassification(tiny_llama.config).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"LlamaForSequenceClassification.*2 outputs"):
        RewardModel.from_pretrained(str(tmp_path))


def test_a_language_model_is_no_reward_model(tiny_model_folder):
    edited = json.loads((tiny_model_folder / "config.json").read_text()) | {"id2label": {"0": "score"}}
    (tiny_model_folder / "config.json").write_text(json.dumps(edited))
    with pytest.raises(ModelError, match=r"lacks 1 .*: score\.weight"):
        RewardModel.from_pretrained(str(tiny_model_folder))


def test_a_damaged_settings_file_is_named(tmp_path, policy):
    folder = RewardModel.from_policy(policy).save_pretrained(tmp_path / "reward")
    (folder / "rlhf_reward.json").write_text('{"mean": [0.0')
    with pytest.raises(ModelError, match=r"rlhf_reward\.json is damaged"):
        RewardModel.from_pretrained(str(folder))


def test_a_new_adapter_on_a_saved_reward_model_begins_with_its_scores(tmp_path, policy):
    reward = RewardModel.from_policy(policy)
    learn(reward)
    folder = reward.save_pretrained(tmp_path / "reward")
    adapted = RewardModel.from_pretrained(ModelConfig.of({"path": str(folder), "lora": {"rank": 2}}))
    assert torch.equal(adapted.scores(BATCH), reward.scores(BATCH))
    trained = {name for name, parameter in adapted.named_parameters() if parameter.requires_grad}
    assert all(".lora_" in name or ".score.modules_to_save." in name for name in trained)


# ---- normalization and ensembles


def test_normalized_scores_are_shifted_and_scaled(policy):
    reward = RewardModel.from_policy(policy)
    raw = reward.raw_scores(BATCH)[0]
    reward.set_normalization(torch.tensor([2.0]), torch.tensor([4.0]))
    torch.testing.assert_close(reward.scores(BATCH), (raw - 2) / 4)


def test_fitting_gives_mean_0_and_deviation_1_to_the_average_too(policy):
    reward = RewardModel.from_policy(policy, num_heads=3)
    raw = reward.raw_scores(BATCH)
    reward.fit_normalization(raw)
    scores = reward.scores(BATCH)
    assert scores.mean().item() == pytest.approx(0, abs=1e-5)
    assert scores.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    means = reward.member_scores(BATCH).mean(1)
    torch.testing.assert_close(means, torch.zeros(3), rtol=0, atol=1e-5)


def test_a_model_that_scores_everything_the_same_cannot_be_normalized(policy):
    with pytest.raises(ModelError, match="has learned nothing"):
        RewardModel.from_policy(policy).fit_normalization(torch.full((1, 5), 3.0))


@pytest.mark.parametrize("raw", [[[1.0, float("nan"), 2.0]], [[1.0, float("inf"), 2.0]]])
def test_scores_that_are_no_numbers_cannot_be_normalized(policy, raw):
    with pytest.raises(ModelError, match="can't be normalized"):
        RewardModel.from_policy(policy).fit_normalization(torch.tensor(raw))


def test_normalization_of_another_ensemble_is_refused(policy):
    with pytest.raises(ModelError, match=r"\(2,\) means and \(2,\) deviations for 1 "):
        RewardModel.from_policy(policy).set_normalization(torch.zeros(2), torch.ones(2))


@pytest.mark.parametrize("form", [{"num_models": 3}, {"num_heads": 3}, {"num_heads": 3, "head": "mlp"}], ids=str)
def test_the_members_of_an_ensemble_disagree_and_their_mean_is_the_score(policy, form):
    reward = RewardModel.from_policy(policy, **form)
    each = reward.member_scores(BATCH)
    assert each.shape == (3, len(ROWS))
    assert (each[0] - each[1]).abs().max() > 1e-3
    mean = reward.scores(BATCH)

    torch.testing.assert_close(mean, (each[0] + each[1] + each[2]) / 3)
    assert (each.std(0) > 0).all()


def test_one_model_does_not_disagree_with_itself(policy):
    reward = RewardModel.from_policy(policy)
    assert torch.equal(reward.member_scores(BATCH)[0], reward.scores(BATCH))


def test_an_mlp_head_has_the_width_that_was_asked_for_and_computes_its_formula(policy):
    reward = RewardModel.from_policy(policy, head="mlp", num_heads=2, head_hidden_size=5)
    head = reward.members[0].score.double()
    assert (head.hidden.weight.shape, head.out.weight.shape) == ((10, 32), (2, 5))
    hidden = torch.randn(3, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    middle = torch.nn.functional.gelu(hidden @ head.hidden.weight.T + head.hidden.bias)
    expected = torch.stack([middle[:, :5] @ head.out.weight[0], middle[:, 5:] @ head.out.weight[1]], 1) + head.out.bias
    torch.testing.assert_close(head(hidden), expected, rtol=1e-12, atol=1e-12)


def test_without_a_width_an_mlp_head_has_the_model_s_and_the_same_bits(policy):
    first, again = (RewardModel.from_policy(policy, head="mlp", head_hidden_size=width) for width in (None, 32))
    assert first.fingerprint() == again.fingerprint()


@pytest.mark.parametrize("form", [{"head_hidden_size": 5}, {"head": "mlp", "head_hidden_size": 0}], ids=str)
def test_a_width_of_no_hidden_layer_is_refused(policy, form):
    with pytest.raises(ModelError, match="head_hidden_size"):
        RewardModel.from_policy(policy, **form)
    with pytest.raises(ConfigError, match="head_hidden_size"):
        RewardModelConfig.of(form)


def test_heads_of_an_mlp_ensemble_are_independent(policy):
    reward = RewardModel.from_policy(policy, num_heads=2, head="mlp")
    reward.raw_scores(BATCH)[0].sum().backward()
    head = reward.members[0].score
    first, second = head.hidden.weight.grad.split(32)
    assert first.any()
    assert not second.any()


def test_seeds_make_heads_and_the_same_seed_the_same(policy):
    first, again, other = (RewardModel.from_policy(policy, seed=seed) for seed in (1, 1, 2))
    assert first.fingerprint() == again.fingerprint()
    assert first.fingerprint() != other.fingerprint()


def test_a_member_by_itself_shares_weights_and_normalization(policy):
    reward = RewardModel.from_policy(policy, num_models=2, num_heads=2)
    reward.set_normalization(torch.arange(4.0), torch.arange(1.0, 5.0))
    second = reward.member(1)
    torch.testing.assert_close(second.member_scores(BATCH), reward.member_scores(BATCH)[2:])
    learn(second)
    torch.testing.assert_close(second.member_scores(BATCH), reward.member_scores(BATCH)[2:])


def test_its_state_carries_the_normalization(policy):
    reward, other = RewardModel.from_policy(policy, seed=1), RewardModel.from_policy(policy, seed=2)
    reward.set_normalization(torch.tensor([2.0]), torch.tensor([4.0]))
    other.load_state_dict(reward.state_dict())
    assert torch.equal(other.scores(BATCH), reward.scores(BATCH))
