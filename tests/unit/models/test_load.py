from __future__ import annotations

import json
import logging
import shutil
import sys

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from rlhf.config.model import ModelConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.distributed.ranks import Ranks
from rlhf.errors import MissingExtraError, ModelError
from rlhf.models.adapter_base import adapter_base
from rlhf.models.load import load_causal_lm
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.models.score import score
from rlhf.models.tokens import load_tokenizer
from tests.fixtures import tiny

BATCH = pack([Group([0, 10, 11], [Branch([12, 13, 1]), Branch([14, 1])])])
INIT = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2}  # fmt: skip


def edit_json(path, **changes):
    """Sets keys; None removes one."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def same_weights(first, second):
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def new_model(folder, *, seed=0, **changes):
    config = ModelConfig.of({"init": {**INIT, **changes}, "tokenizer": str(folder)})
    return load_causal_lm(config, seed=seed)[0]


# ---- what loads


def test_a_folder_loads_bit_for_bit_in_evaluation_mode(tiny_model_folder, tiny_llama):
    model, tokenizer = load_causal_lm(str(tiny_model_folder), seed=0)
    assert same_weights(model, tiny_llama)
    assert not any(module.training for module in model.modules())
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2)


def test_weights_come_in_the_type_that_was_asked_for(tiny_model_folder):
    config = ModelConfig.of({"path": str(tiny_model_folder), "dtype": "bfloat16"})
    model, _ = load_causal_lm(config, seed=0)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_half_precision_on_disk_is_float32_in_memory_unless_asked_otherwise(tmp_path, tiny_llama, tiny_tokenizer):
    tiny_llama.half().save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    model, _ = load_causal_lm(str(tmp_path), seed=0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_the_embedded_model_loads_and_prefers_words_to_noise():
    model, tokenizer = load_causal_lm("embedded", seed=0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert tokenizer.eos_token_id not in (None, tokenizer.pad_token_id)
    text = tokenizer("the", add_special_tokens=False).input_ids
    assert text, "the tokenizer must know a word"
    batch = pack([Group([tokenizer.bos_token_id or tokenizer.eos_token_id], [Branch(text)])])
    assert torch.isfinite(score(model, batch).logprobs).all()


def test_a_new_model_is_the_same_for_a_seed_and_leaves_torchs_generator_alone(tiny_model_folder):
    before = torch.random.get_rng_state()
    first, again = new_model(tiny_model_folder, seed=3), new_model(tiny_model_folder, seed=3)
    other = new_model(tiny_model_folder, seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert same_weights(first, again)
    assert not same_weights(first, other)


def test_a_new_model_takes_vocabulary_and_special_tokens_from_the_tokenizer(tiny_model_folder, tiny_tokenizer):
    config = new_model(tiny_model_folder).config
    assert config.vocab_size == len(tiny_tokenizer)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 1, 2)


def test_a_chat_template_of_the_users_own_is_kept_with_the_tokenizer(tiny_model_folder):
    config = ModelConfig.of({"path": str(tiny_model_folder), "chat_template": "{{ messages[0].content }}!"})
    tokenizer = load_tokenizer(config)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert rendered == "Hi!"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loaded_weights_lie_where_torch_would_put_them(tiny_model_folder, dtype):
    """Matrix kernels may sum in another order at odd addresses: equal weights would give unequal numbers."""
    model, _ = load_causal_lm(ModelConfig.of({"path": str(tiny_model_folder), "dtype": dtype}), seed=0)
    assert {parameter.data_ptr() % 64 for parameter in model.parameters()} == {0}


def test_tied_weights_stay_tied(tmp_path, tiny_tokenizer):
    tiny.build_llama(vocab_size=len(tiny_tokenizer), tie_word_embeddings=True).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    model, _ = load_causal_lm(str(tmp_path), seed=0)
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


# ---- where a text ends


def test_padding_never_becomes_end_of_text(tiny_model_folder):
    edit_json(tiny_model_folder / "tokenizer_config.json", pad_token=None)
    edit_json(tiny_model_folder / "config.json", pad_token_id=None)
    model, tokenizer = load_causal_lm(str(tiny_model_folder), seed=0)
    assert tokenizer.pad_token_id is None
    assert model.config.pad_token_id is None


def test_the_tokenizers_end_of_text_joins_the_models(tiny_model_folder):
    """Else a saved model would run on past the token it was taught to end with."""
    edit_json(tiny_model_folder / "generation_config.json", eos_token_id=7)
    model, _ = load_causal_lm(str(tiny_model_folder), seed=0)
    assert model.generation_config.eos_token_id == [1, 7]


def test_an_end_of_text_that_only_the_model_knows_is_taken_with_a_warning(tiny_model_folder, caplog):
    edit_json(tiny_model_folder / "tokenizer_config.json", eos_token=None)
    _, tokenizer = load_causal_lm(str(tiny_model_folder), seed=0)
    assert tokenizer.eos_token_id == 1
    assert "names no end-of-text token" in caplog.text
    assert "from the model's generation_config.json" in caplog.text


@pytest.mark.parametrize(
    ("left_in", "told"),
    [("config.json", "from the model's config.json"), (None, "from transformers' default for LlamaConfig, as the model's config.json has no")],
)  # fmt: skip
def test_the_true_source_of_an_end_token_is_told(tiny_model_folder, caplog, left_in, told):
    edit_json(tiny_model_folder / "tokenizer_config.json", eos_token=None)
    (tiny_model_folder / "generation_config.json").unlink()
    if left_in is None:
        config = json.loads((tiny_model_folder / "config.json").read_text())
        del config["eos_token_id"]
        (tiny_model_folder / "config.json").write_text(json.dumps(config))
    _model, tokenizer = load_causal_lm(str(tiny_model_folder), seed=0)
    assert tokenizer.eos_token_id == (1 if left_in else 2)
    assert told in caplog.text


def test_without_any_end_of_text_nothing_loads(tiny_model_folder):
    edit_json(tiny_model_folder / "tokenizer_config.json", eos_token=None)
    edit_json(tiny_model_folder / "generation_config.json", eos_token_id=None)
    config = json.loads((tiny_model_folder / "config.json").read_text())
    (tiny_model_folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    with pytest.raises(ModelError, match=r"`eos_token`.*tokenizer_config\.json"):
        load_causal_lm(str(tiny_model_folder), seed=0)


def test_a_tokenizer_larger_than_the_model_is_refused_with_both_sizes(tmp_path, tiny_tokenizer):
    highest = len(tiny_tokenizer) - 1
    tiny.build_llama(vocab_size=highest).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=rf"{highest} \('\w+'\).*{highest} embeddings"):
        load_causal_lm(str(tmp_path), seed=0)


# ---- what does not load, and what it says


def test_a_misspelled_folder_names_its_neighbors(tiny_model_folder):
    with pytest.raises(ModelError, match=r"tiny_modle.*'tiny_model'"):
        load_causal_lm(str(tiny_model_folder.parent / "tiny_modle"), seed=0)


def test_a_file_is_no_model(tiny_model_folder):
    with pytest.raises(ModelError, match=r"file; .*folder"):
        load_causal_lm(str(tiny_model_folder / "config.json"), seed=0)


def test_a_folder_of_something_else_is_no_model(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load_causal_lm(str(tmp_path), seed=0)


def test_a_stage_outside_a_pipeline_is_refused():
    with pytest.raises(ModelError, match="'stage:sft'"):
        load_causal_lm("stage:sft", seed=0)


def test_a_folder_without_weights_is_refused(tiny_model_folder):
    (tiny_model_folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="holds no weights"):
        load_causal_lm(str(tiny_model_folder), seed=0)


def test_pickled_weights_are_read_only_where_allowed(tiny_model_folder, tiny_llama):
    (tiny_model_folder / "model.safetensors").unlink()
    torch.save(tiny_llama.state_dict(), tiny_model_folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin.*pickle"):
        load_causal_lm(str(tiny_model_folder), seed=0)
    model, _ = load_causal_lm(ModelConfig.of({"path": str(tiny_model_folder), "allow_pickle": True}), seed=0)
    assert same_weights(model, tiny_llama)


def test_a_missing_weight_is_never_drawn_at_random(tiny_model_folder):
    weights = load_file(tiny_model_folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tiny_model_folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks 1 .*: model\.layers\.1\.mlp\.up_proj\.weight"):
        load_causal_lm(str(tiny_model_folder), seed=0)


def test_damaged_weights_are_one_clear_sentence(tiny_model_folder):
    path = tiny_model_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"model\.safetensors is damaged: 1000 bytes"):
        load_causal_lm(str(tiny_model_folder), seed=0)


def test_a_hub_name_without_a_hub_says_so():
    with pytest.raises(ModelError, match=r"'nobody/nothing'.*HF_HUB_OFFLINE.*hf download"):
        load_causal_lm("nobody/nothing", seed=0)


def test_code_from_a_repository_is_refused_unless_asked_for(tiny_model_folder):
    (tiny_model_folder / "evil.py").write_text("raise SystemExit('it ran')\n")
    edit_json(
        tiny_model_folder / "config.json",
        model_type="evil",
        auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"},
    )
    with pytest.raises(ModelError, match=r"config\.json.*evil\.py.*Nothing was run"):
        load_causal_lm(str(tiny_model_folder), seed=0)


def four_bit(folder):
    return ModelConfig.of({"path": str(folder), "lora": {"quantize_4bit": True}})


def test_four_bits_over_ranks_are_refused(tiny_model_folder, monkeypatch):
    monkeypatch.setattr(Ranks, "size", 2)
    with pytest.raises(ModelError, match=r"quantize_4bit.*one process"):
        load_causal_lm(four_bit(tiny_model_folder), seed=0)


def test_four_bits_without_bitsandbytes_name_the_extra(tiny_model_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '.+\[quant\]'"):
        load_causal_lm(four_bit(tiny_model_folder), seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hiden_size": 16}, r"llama config has no key 'hiden_size'. Did you mean 'hidden_size'"),
        ({"model_type": "lama"}, r"no model_type 'lama'. Did you mean 'llama'"),
        ({"model_type": None}, "needs `model_type`"),
        ({"hidden_size": True}, "config's 'hidden_size' should be a number, such as 4096, and is true"),
        (
            {"hidden_size": 17, "num_attention_heads": 4},
            r"config of the new llama model is not valid: .*hidden size \(17\) is not a multiple",
        ),
    ],
)
def test_a_wrong_config_for_a_new_model_is_named(tiny_model_folder, changes, message):
    with pytest.raises(ModelError, match=message):
        new_model(tiny_model_folder, **changes)


# ---- adapters, checkpointing, compilation


def with_lora(folder, **lora):
    return ModelConfig.of({"path": str(folder), "lora": {"rank": 2, **lora}})


def teach(policy, seed=0):
    """An adapter that does something."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.3, generator=draw)
    return policy


def test_a_new_adapter_changes_nothing_and_alone_is_trained(tiny_model_folder, tiny_llama):
    model, _ = load_causal_lm(with_lora(tiny_model_folder), seed=0)
    assert isinstance(model, PeftModel)
    assert torch.equal(score(model, BATCH).logprobs, score(tiny_llama, BATCH).logprobs)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)


def test_adapters_differ_only_by_their_seed(tiny_model_folder):
    first, again, other = (load_causal_lm(with_lora(tiny_model_folder), seed=seed)[0] for seed in (0, 0, 1))
    assert same_weights(first, again)
    assert not same_weights(first, other)


def test_an_adapter_for_layers_that_do_not_exist_lists_those_that_do(tiny_model_folder):
    with pytest.raises(ModelError, match=r"\['query'\].*q_proj"):
        load_causal_lm(with_lora(tiny_model_folder, target_modules=["query"]), seed=0)


def test_an_adapter_folder_loads_on_its_base_and_goes_on_training(tmp_path, tiny_model_folder):
    policy = teach(PolicyModel.from_pretrained(with_lora(tiny_model_folder)))
    folder = policy.save_pretrained(tmp_path / "adapter")
    assert adapter_base(str(folder)) == str(tiny_model_folder)
    model, _ = load_causal_lm(str(folder), seed=0)
    assert same_weights(model, policy.model)
    assert [n for n, p in model.named_parameters() if p.requires_grad] == list(policy.trainable_parameters())


@pytest.fixture
def lora_run(tmp_path, tiny_model_folder):
    """A run whose second stage trained an adapter on the first's model."""
    run = tmp_path / "runs" / "mine"
    shutil.copytree(tiny_model_folder, run / "sft" / "model")
    teach(PolicyModel.from_pretrained(with_lora(run / "sft" / "model"))).save_pretrained(run / "dpo" / "model")
    return run


def other_weights(folder):
    weights = load_file(folder / "model.safetensors")
    save_file({n: w * 2 for n, w in weights.items()}, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_run_that_is_moved_or_copied_loads_the_base_that_moved_with_it(tmp_path, lora_run):
    expected = score(load_causal_lm(str(lora_run / "dpo" / "model"), seed=0)[0], BATCH).logprobs
    copy = shutil.copytree(lora_run, tmp_path / "copy")
    other_weights(lora_run / "sft" / "model")
    assert adapter_base(str(copy / "dpo" / "model")) == str(copy / "sft" / "model")
    model, _ = load_causal_lm(str(copy / "dpo" / "model"), seed=0)
    assert torch.equal(score(model, BATCH).logprobs, expected)
    again = teach(PolicyModel.from_pretrained(str(copy / "dpo" / "model"))).save_pretrained(
        copy / "more" / "best" / "model"
    )
    assert adapter_base(str(again)) == str(copy / "sft" / "model"), "trained on from another depth"
    with pytest.raises(
        ModelError,
        match=r"dpo/model .*sft/model.*\b[0-9a-f]{16}\b.* expects [0-9a-f]{16}",
    ):
        load_causal_lm(str(lora_run / "dpo" / "model"), seed=0)
    shutil.rmtree(copy / "sft")
    with pytest.raises(ModelError, match=r"base model.*copy/sft/model"):
        load_causal_lm(str(copy / "dpo" / "model"), seed=0)


def test_a_base_outside_of_the_run_is_named_by_its_place_and_held_to_its_hash(tmp_path, tiny_model_folder):
    base = shutil.copytree(tiny_model_folder, tmp_path / "models" / "tiny")
    folder = PolicyModel.from_pretrained(with_lora(base)).save_pretrained(tmp_path / "runs" / "mine" / "sft" / "model")
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "far" / "adapter")
    assert adapter_base(str(copy)) == str(base)
    other_weights(base)
    with pytest.raises(ModelError, match="other weights than"):
        adapter_base(str(copy))


def test_the_base_of_a_reward_model_moves_with_its_run(tmp_path, tiny_model_folder):
    run = tmp_path / "runs" / "mine"
    base = shutil.copytree(tiny_model_folder, run / "sft" / "model")
    RewardModel.from_policy(with_lora(base), num_models=2).save_pretrained(run / "reward" / "model")
    copy = shutil.copytree(run, tmp_path / "copy")
    other_weights(base)
    for member in (copy / "reward" / "model").glob("member-*"):
        assert adapter_base(str(member)) == str(copy / "sft" / "model")
    RewardModel.from_pretrained(str(copy / "reward" / "model"))


def test_peft_alone_loads_an_adapter_of_ours(lora_run, monkeypatch):
    """As docs/models.md says: with the base given, or from the adapter's own folder."""
    expected = score(load_causal_lm(str(lora_run / "dpo" / "model"), seed=0)[0], BATCH).logprobs
    base = LlamaForCausalLM.from_pretrained(lora_run / "sft" / "model")
    given = PeftModel.from_pretrained(base, str(lora_run / "dpo" / "model")).eval()
    assert torch.equal(score(given, BATCH).logprobs, expected)
    monkeypatch.chdir(lora_run / "dpo" / "model")
    actual = AutoPeftModelForCausalLM.from_pretrained(".").eval()
    torch.testing.assert_close(score(actual, BATCH).logprobs, expected)


def test_a_new_adapter_on_an_adapter_folder_starts_from_both_merged(tmp_path, tiny_model_folder):
    policy = teach(PolicyModel.from_pretrained(with_lora(tiny_model_folder)))
    expected = policy.score(BATCH).logprobs
    folder = policy.save_pretrained(tmp_path / "adapter")
    model, _ = load_causal_lm(with_lora(folder, rank=1), seed=0)
    torch.testing.assert_close(score(model, BATCH).logprobs, expected, rtol=0, atol=1e-5)
    with model.disable_adapter():
        torch.testing.assert_close(score(model, BATCH).logprobs, expected, rtol=0, atol=1e-5)


def test_an_adapter_that_names_no_base_is_refused(tmp_path, tiny_model_folder):
    folder = PolicyModel.from_pretrained(with_lora(tiny_model_folder)).save_pretrained(tmp_path / "adapter")
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": None}))
    with pytest.raises(ModelError, match="name its base"):
        load_causal_lm(str(folder), seed=0)


def test_checkpointing_is_switched_on_in_every_layer(tiny_model_folder):
    config = ModelConfig.of({"path": str(tiny_model_folder), "gradient_checkpointing": True})
    model, _ = load_causal_lm(config, seed=0)
    assert all(layer.gradient_checkpointing for layer in model.model.layers)


def test_lora_with_checkpointing_still_gives_the_adapter_gradients(tiny_model_folder):
    config = with_lora(tiny_model_folder).updated(gradient_checkpointing=True)
    policy = PolicyModel.from_pretrained(config).train()
    policy.score(BATCH).logprobs.sum().backward()
    gradients = {name: p.grad for name, p in policy.trainable_parameters().items() if ".lora_B." in name}
    assert all(gradient is not None and bool(gradient.any()) for gradient in gradients.values())


def test_the_compile_switch_wraps_the_backbone_and_renames_no_weight(tiny_model_folder, tiny_llama, monkeypatch):
    settings, calls = [], []

    def wrap(function, **kwargs):
        settings.append(kwargs)

        def compiled(*args, **kwargs):
            calls.append(1)
            return function(*args, **kwargs)

        return compiled

    monkeypatch.setattr(torch, "compile", wrap)
    config = ModelConfig.of({"path": str(tiny_model_folder), "compile": True})
    model, _ = load_causal_lm(config, seed=0)
    assert settings == [{"dynamic": True}]
    assert same_weights(model, tiny_llama)
    assert torch.equal(score(model, BATCH).logprobs, score(tiny_llama, BATCH).logprobs)
    assert len(calls) == 1


def test_loading_is_quiet(tiny_model_folder, caplog, capfd):
    with caplog.at_level(logging.WARNING):
        load_causal_lm(str(tiny_model_folder), seed=0)
    assert caplog.text == ""
    assert capfd.readouterr().err == ""
