"""Process reward models: where they are read, what they are made of, and that they come back from disk."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from rlhf.config.model import LoRAConfig
from rlhf.data.datasets import StepwiseDataset
from rlhf.data.pack import Branch, Group
from rlhf.errors import ConfigError, DataError, ModelError
from rlhf.models.policy import PolicyModel
from rlhf.models.process_reward import ProcessRewardModel, pack_steps, step_rows
from rlhf.models.reward import RewardModel
from rlhf.models.scalar_model import PROCESS_SETTINGS_FILE
from rlhf.models.score import evaluating
from tests.fixtures import tiny, toy

pytestmark = pytest.mark.numeric

ROWS = [
    {"prompt": "Question: 1+2*3\nAnswer: ", "completions": ["2*3=6", "1+6=8", "so 8"], "labels": [True, False, False]},
    {"prompt": "Question: 4\nAnswer: ", "completions": ["4"], "labels": [True]},
]


@pytest.fixture
def policy(tiny_llama, tiny_tokenizer) -> PolicyModel:
    return PolicyModel(tiny_llama, tiny_tokenizer)


@pytest.fixture
def model(policy) -> ProcessRewardModel:
    return ProcessRewardModel.from_policy(policy, seed=1)


@pytest.fixture
def groups(tiny_tokenizer) -> list[Group]:
    return list(StepwiseDataset(ROWS, tiny_tokenizer))


def alone(model: ProcessRewardModel, ids: list[int]) -> float:
    """What the head says of a text's last token, by the family's own code."""
    with evaluating(model), torch.no_grad():
        hidden = model.member.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1]
        return float(model.member.score(hidden))


def test_a_step_is_read_at_its_own_last_token(model, groups):
    expected = [
        alone(model, [*group.prefix, *group.branches[0].tokens[: end + 1]])
        for group in groups
        for end in group.columns["step_ends"][0]
    ]
    with torch.no_grad():
        step_scores = model.step_scores(pack_steps(groups))
    assert step_scores.tolist() == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) == 4, "the model says the same of everything: the test shows nothing"
    probabilities = model.step_probabilities(groups, max_tokens=1)
    assert [len(each) for each in probabilities] == [3, 1]
    step_scores = [one for each in probabilities for one in each]
    assert step_scores == pytest.approx(torch.tensor(expected).sigmoid().tolist(), abs=1e-5)


def test_a_padding_token_that_is_eos_changes_nothing(tiny_llama, groups):
    """Looking for the last token that is not a padding would read a row too early where the step ends with it."""
    tokenizer = tiny.build_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    model, eos = ProcessRewardModel.from_policy(PolicyModel(tiny_llama, tokenizer), seed=1), tokenizer.eos_token_id
    ended = Group(groups[0].prefix, [Branch([*groups[0].branches[0].tokens, eos])], {"labels": [True]})
    ended.columns["step_ends"] = [[len(ended.branches[0].tokens) - 1]]
    model.choose_path(groups)
    with torch.no_grad():
        step_scores = model.step_scores(pack_steps([ended]))
    assert step_scores.tolist() == pytest.approx([alone(model, [*ended.prefix, *ended.branches[0].tokens])], abs=1e-5)


def test_a_first_token_can_be_a_step(model):
    """Its own row stands behind its prefix and not behind the row that predicts it."""
    two = Group([5, 6], [Branch([7, 8]), Branch([9])], {"step_ends": [[0, 1], [0]]})
    rows, sequences = step_rows(pack_steps([two]))
    assert (rows.tolist(), sequences.tolist()) == ([2, 3, 4], [0, 0, 1])
    with torch.no_grad():
        step_scores = model.step_scores(pack_steps([two]))
    assert step_scores.tolist() == pytest.approx(
        [alone(model, ids) for ids in ([5, 6, 7], [5, 6, 7, 8], [5, 6, 9])], abs=1e-5
    )


def test_tokens_know_the_label_of_their_step():
    group = Group([5], [Branch([6, 7, 8, 9])], {"step_ends": [[1, 2]], "labels": [False, True]})
    batch = pack_steps([group])
    assert batch.token_columns["step_end"].tolist() == [False, True, True, False]
    assert batch.token_columns["step_label"].tolist() == [0, 0, 1, 0]
    assert batch.token_columns["in_right_step"].tolist() == [False, False, True, False], (
        "nothing is known behind the last"
    )


def test_a_row_without_steps_is_named():
    with pytest.raises(DataError, match=r"pairs\.jsonl:3: .*steps"):
        pack_steps([Group([5], [Branch([6])], {"id": "pairs.jsonl:3"})])


def test_it_comes_back_from_disk_bit_for_bit(model, groups, tmp_path):
    model.aggregate, model.step_separator = "min", ";"
    folder = model.save_pretrained(tmp_path / "prm")
    loaded = ProcessRewardModel.from_pretrained(str(folder))
    assert loaded.fingerprint() == model.fingerprint()
    assert (loaded.aggregate, loaded.step_separator) == ("min", ";")
    with torch.no_grad():
        assert torch.equal(loaded.step_scores(pack_steps(groups)), model.step_scores(pack_steps(groups)))
    assert "log-odds that a step is right" in (folder / "README.md").read_text()


def test_it_is_told_from_other_models(policy, model, tmp_path):
    judge = model.save_pretrained(tmp_path / "prm")
    with pytest.raises(ModelError, match="a process reward model"):
        RewardModel.from_pretrained(str(judge))
    other = RewardModel.from_policy(policy).save_pretrained(tmp_path / "rm")
    with pytest.raises(ModelError, match="not a process reward model"):
        ProcessRewardModel.from_pretrained(str(other))
    with pytest.raises(ModelError, match="scores, not text"):
        PolicyModel.from_pretrained(str(judge))


@pytest.mark.parametrize(
    "change", [{"head": {"kind": "linear", "depth": 3}}, {"aggregate": None}, {"aggregate": "sum"}]
)
def test_a_damaged_description_is_named_by_its_file(model, tmp_path, change):
    folder = model.save_pretrained(tmp_path / "prm")
    path = folder / PROCESS_SETTINGS_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match=PROCESS_SETTINGS_FILE):
        ProcessRewardModel.from_pretrained(str(folder))


def build_qwen(vocab_size: int) -> Qwen2ForCausalLM:
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=vocab_size, num_key_value_heads=2, **shape)).eval()


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2"])
def test_extra_layers_change_nothing_until_they_are_trained(family, tiny_tokenizer, tmp_path):
    size = len(tiny_tokenizer)
    network = {
        "llama": lambda: tiny.build_llama(vocab_size=size),
        "gpt2": lambda: toy.build_policy().model,
        "qwen2": lambda: build_qwen(size),
    }[family]()
    policy = PolicyModel(network, tiny_tokenizer)
    plain, deep = (ProcessRewardModel.from_policy(policy, extra_layers=n, seed=1) for n in (0, 2))
    groups = list(StepwiseDataset(ROWS, tiny_tokenizer))
    batch = pack_steps(groups)
    with torch.no_grad():
        assert torch.equal(deep.step_scores(batch), plain.step_scores(batch))
    assert deep.member.config.num_hidden_layers == plain.member.config.num_hidden_layers + 2
    deep.step_scores(batch).sum().backward()
    written = {n for n, p in deep.member.named_parameters() if p.grad is not None and bool(p.grad.any())}
    last = plain.member.config.num_hidden_layers + 1
    assert any(f".{last}." in name for name in written), "the last layer learns from the first step on"
    loaded = ProcessRewardModel.from_pretrained(str(deep.save_pretrained(tmp_path / "prm")))
    assert loaded.fingerprint() == deep.fingerprint()
    assert policy.model.config.num_hidden_layers == plain.member.config.num_hidden_layers, "the policy stays as it is"


def test_extra_layers_and_an_adapter_contradict_each_other(policy):
    with pytest.raises(ConfigError, match="extra_layers"):
        ProcessRewardModel.from_policy(policy, extra_layers=1, lora=LoRAConfig(rank=2))


def test_the_language_head_gives_the_policys_own_logprobs(policy, groups):
    kept = ProcessRewardModel.from_policy(policy, keep_language_head=True)
    batch = pack_steps(groups)
    with torch.no_grad():
        _, logprobs = kept.step_scores_and_logprobs(batch)
        assert torch.allclose(logprobs, policy.score(batch).logprobs, atol=1e-6)
    with pytest.raises(ModelError, match="no language head"):
        ProcessRewardModel.from_policy(policy).step_scores_and_logprobs(batch)


def test_an_adapter_and_the_head_alone_are_trained(policy, groups):
    model = ProcessRewardModel.from_policy(policy, lora=LoRAConfig(rank=2))
    model.step_scores(pack_steps(groups)).sum().backward()
    touched = {name for name, p in model.member.named_parameters() if p.requires_grad}
    assert all("lora_" in name or "score" in name for name in touched)
    assert any("score" in name for name in touched)
