from __future__ import annotations

import json

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf.config.model import ModelConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ModelError
from rlhf.models.policy import PolicyModel, evaluating, merged
from tests.unit.models.families import row_by_row

pytestmark = pytest.mark.numeric

GROUPS = [Group([0, 10, 11], [Branch([12, 13, 1]), Branch([14, 1])]), Group([0], [Branch([20, 21, 22, 23])])]
BATCH = pack(GROUPS)


@pytest.fixture
def policy(tiny_model_folder):
    return PolicyModel.from_pretrained(str(tiny_model_folder))


@pytest.fixture
def lora_policy(tiny_model_folder):
    """With an adapter that changes the numbers."""
    policy = PolicyModel.from_pretrained(ModelConfig.of({"path": str(tiny_model_folder), "lora": {"rank": 2}}))
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.3, generator=draw)
    return policy


def test_the_first_batch_chooses_the_path(policy):
    assert policy.path is None
    scores = policy.score(BATCH)
    assert policy.path == "packed"
    policy.model.set_attn_implementation("eager")
    torch.testing.assert_close(scores.logprobs, row_by_row(policy.model, GROUPS), rtol=0, atol=1e-5)


def test_a_chosen_path_is_kept(policy):
    choice = policy.choose_path(GROUPS)
    policy.score(BATCH)
    assert policy.choice is choice


def test_the_score_is_differentiable_and_logprobs_are_not(policy):
    assert policy.score(BATCH).logprobs.requires_grad
    assert not policy.logprobs(BATCH).requires_grad
    assert torch.equal(policy.logprobs(BATCH), policy.score(BATCH).logprobs.detach())


def test_logprobs_are_without_dropout_and_leave_the_mode(tiny_model_folder):
    folder = ModelConfig.of({"path": str(tiny_model_folder), "lora": {"rank": 2, "dropout": 0.5}})
    policy = PolicyModel.from_pretrained(folder)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B." in name:
                parameter.fill_(0.1)
    policy.train()
    assert not torch.equal(policy.score(BATCH).logprobs, policy.score(BATCH).logprobs)
    assert torch.equal(policy.logprobs(BATCH), policy.logprobs(BATCH))
    assert all(module.training for module in policy.model.modules())


def test_temperature_reaches_the_softmax(policy):
    hot = policy.score(BATCH, temperature=1e6).logprobs
    vocabulary = policy.model.config.vocab_size
    torch.testing.assert_close(hot, torch.full_like(hot, -float(torch.tensor(vocabulary).log())), rtol=0, atol=1e-4)
    assert torch.equal(policy.logprobs(BATCH, temperature=2.0), policy.score(BATCH, temperature=2.0).logprobs.detach())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_saved_policy_comes_back_bit_for_bit(tmp_path, tiny_model_folder, dtype):
    policy = PolicyModel.from_pretrained(ModelConfig.of({"path": str(tiny_model_folder), "dtype": dtype}))
    folder = policy.save_pretrained(tmp_path / "model")
    again = PolicyModel.from_pretrained(ModelConfig.of({"path": str(folder), "dtype": dtype}))
    assert again.fingerprint() == policy.fingerprint()
    assert torch.equal(again.logprobs(BATCH), policy.logprobs(BATCH))
    assert again.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    assert again.tokenizer.chat_template == policy.tokenizer.chat_template


def test_transformers_loads_what_was_saved_and_gives_the_same(tmp_path, policy):
    folder = policy.save_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    torch.testing.assert_close(row_by_row(model, GROUPS), policy.logprobs(BATCH), rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained(folder).eos_token_id == policy.tokenizer.eos_token_id


def test_saving_replaces_the_folder_whole(tmp_path, policy):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "left_over.safetensors").write_text("of an earlier model")
    policy.save_pretrained(folder)
    assert not (folder / "left_over.safetensors").exists()
    assert (folder / "model.safetensors").is_file()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_save_that_fails_leaves_what_was_there(tmp_path, policy, monkeypatch):
    folder = policy.save_pretrained(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(*args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(policy.tokenizer, "save_pretrained", full)
    with torch.no_grad():
        policy.model.lm_head.weight.zero_()
    with pytest.raises(OSError, match="No space left"):
        policy.save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_file_is_not_overwritten_by_a_folder(tmp_path, policy):
    (tmp_path / "model").write_text("notes")
    with pytest.raises(ModelError, match="file of that name"):
        policy.save_pretrained(tmp_path / "model")


def test_the_card_says_what_it_was_told_and_where_it_comes_from(tmp_path, policy, tiny_model_folder):
    folder = policy.save_pretrained(
        tmp_path / "model", card={"stage": "dpo", "metrics": {"win rate": 0.625, "kl": None}}
    )
    text = (folder / "README.md").read_text()
    assert f"base_model: {tiny_model_folder}" in text
    assert "| win rate | 0.625 |" in text
    assert "| kl" not in text
    assert "AutoModelForCausalLM" in text


def test_the_same_adapter_is_the_same_bytes_in_every_process(tmp_path, lora_policy):
    folder = lora_policy.save_pretrained(tmp_path / "adapter")
    settings = json.loads((folder / "adapter_config.json").read_text())
    # peft writes a set, whose order hangs on the process
    assert len(settings["target_modules"]) > 1
    assert settings["target_modules"] == sorted(settings["target_modules"])
    assert list(settings) == sorted(settings)


def test_an_adapter_is_saved_as_an_adapter_and_comes_back_bit_for_bit(tmp_path, lora_policy, monkeypatch):
    folder = lora_policy.save_pretrained(tmp_path / "adapter")
    assert (folder / "adapter_config.json").is_file()
    assert not (folder / "model.safetensors").exists()
    again = PolicyModel.from_pretrained(str(folder))
    assert again.has_adapter
    assert again.fingerprint() == lora_policy.fingerprint()
    assert torch.equal(again.logprobs(BATCH), lora_policy.logprobs(BATCH))
    monkeypatch.chdir(folder)  # peft takes a relative base relative to the working directory
    theirs = AutoPeftModelForCausalLM.from_pretrained(folder)
    assert torch.equal(PolicyModel(theirs, again.tokenizer).logprobs(BATCH), lora_policy.logprobs(BATCH))


def test_an_adapter_on_a_model_that_no_folder_holds_is_saved_merged(tmp_path, tiny_model_folder):
    init = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip
    config = ModelConfig.of({"init": init, "tokenizer": str(tiny_model_folder), "lora": {"rank": 2}})
    policy = PolicyModel.from_pretrained(config)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B." in name:
                parameter.fill_(0.05)
    expected = policy.logprobs(BATCH)
    folder = policy.save_pretrained(tmp_path / "model")
    assert (folder / "model.safetensors").is_file()
    again = PolicyModel.from_pretrained(str(folder))
    torch.testing.assert_close(again.logprobs(BATCH), expected, rtol=0, atol=1e-5)
    assert policy.has_adapter, "saving changes nothing in memory"
    assert torch.equal(policy.logprobs(BATCH), expected)


def test_merging_keeps_the_numbers_and_the_original(lora_policy):
    before = lora_policy.fingerprint()
    plain = PolicyModel(merged(lora_policy.model), lora_policy.tokenizer)
    torch.testing.assert_close(plain.logprobs(BATCH), lora_policy.logprobs(BATCH), rtol=0, atol=1e-5)
    assert not plain.has_adapter
    assert lora_policy.fingerprint() == before


def test_with_the_adapter_off_the_policy_is_its_base(policy, lora_policy):
    with lora_policy.adapter_off():
        assert torch.equal(lora_policy.logprobs(BATCH), policy.logprobs(BATCH))
    assert (lora_policy.logprobs(BATCH) - policy.logprobs(BATCH)).abs().max() > 1e-2


@pytest.mark.parametrize("fails", [False, True], ids=["ends well", "ends in an error"])
def test_the_adapter_is_on_and_trained_again_afterwards(lora_policy, fails):
    """The same parameters as before: peft would thaw every adapter weight, and freeze all others."""
    next(p for name, p in lora_policy.model.named_parameters() if ".lora_A." in name).requires_grad_(False)
    lora_policy.model.get_base_model().model.norm.weight.requires_grad_(True)
    trained, expected = list(lora_policy.trainable_parameters()), lora_policy.logprobs(BATCH)
    try:
        with lora_policy.adapter_off():
            if fails:
                raise InterruptedError
    except InterruptedError:
        pass
    assert list(lora_policy.trainable_parameters()) == trained
    assert torch.equal(lora_policy.logprobs(BATCH), expected)


def test_there_is_no_adapter_to_switch_off_in_a_plain_policy(policy):
    with pytest.raises(ModelError, match="no adapter"), policy.adapter_off():
        pass


def test_the_fingerprint_sees_one_changed_bit_and_nothing_else(policy):
    before = policy.fingerprint()
    policy.logprobs(BATCH)
    policy.train()
    assert policy.fingerprint() == before
    weight = policy.model.model.norm.weight
    with torch.no_grad():
        weight[0] = torch.nextafter(weight[0], weight[0] + 1)
    assert policy.fingerprint() != before


def test_tied_weights_are_counted_once(tiny_tokenizer):
    from tests.fixtures import tiny

    free = PolicyModel(tiny.build_llama(vocab_size=320), tiny_tokenizer)
    tied = PolicyModel(tiny.build_llama(vocab_size=320, tie_word_embeddings=True), tiny_tokenizer)
    assert free.num_parameters - tied.num_parameters == 320 * 32


def test_evaluating_restores_every_modules_own_mode(policy):
    policy.train()
    policy.model.model.layers[1].eval()
    modes = [module.training for module in policy.model.modules()]
    try:
        with evaluating(policy.model):
            assert not any(module.training for module in policy.model.modules())
            raise InterruptedError
    except InterruptedError:
        pass
    assert [module.training for module in policy.model.modules()] == modes
