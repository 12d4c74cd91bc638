"""Model folders and tokenizers that are wrong: each is one sentence that says what, where, and what to do.

Every folder is a real one with one fault. Nothing in it is changed, nothing is printed beside the sentence, and no code runs.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from rlhf import cli
from rlhf.config.model import ModelConfig
from rlhf.errors import MemoryLimitError, ModelError
from rlhf.models import sources
from rlhf.models.load import load_causal_lm
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.models.value import ValueModel
from tests.fixtures import tiny, toy
from tests.fixtures.refusal import refusal
from tests.fixtures.spoiled_folder import (
    add_code,
    change,
    cut,
    edit,
    edit_index,
    enlarge_tokenizer,
    make_pickle,
    remove,
    set_one,
    shards_of,
    state_of,
    write,
)

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def sharded_folder(tmp_path: Path, tiny_llama: Any, tiny_tokenizer: Any) -> Path:
    folder = tmp_path / "sharded"
    tiny_llama.save_pretrained(folder, max_shard_size="40KB")
    tiny_tokenizer.save_pretrained(folder)
    assert len(shards_of(folder)) > 2
    return folder


@pytest.fixture
def adapter_folder(tmp_path: Path, tiny_model_folder: Path) -> Path:
    config = ModelConfig.of({"path": str(tiny_model_folder), "lora": {"rank": 2}})
    return PolicyModel.from_pretrained(config).save_pretrained(tmp_path / "adapter")


# ---- a folder with one fault: how it is made, and what its user must be told

CONFIGS = {
    "absent": (remove("config.json"), ("has no config.json", "what kind of model", "Copy or download")),
    "empty": (write("config.json", ""), ("config.json is not valid JSON", "empty", "Save it again")),
    "cut": (cut("config.json", keep=40), ("config.json is not valid JSON", "line 3, column 5", "Save it again")),
    "a list": (write("config.json", "[1]"), ("config.json holds a list", "keys and values")),
    "a bomb": (write("config.json", "[" * 100_000), ("config.json is nested too deeply",)),
    "bytes": (write("config.json", b"\xff\xfe\x00\x01"), ("config.json is damaged", "not text in UTF-8")),
    "no family": (edit("config.json", model_type=None), ("names no `model_type`", "llama")),
    "unknown family": (
        edit("config.json", model_type="lama"),
        ("no model_type 'lama'", "Did you mean 'llama'", "newer transformers"),
    ),
    "negative size": (edit("config.json", hidden_size=-5), ("config.json: hidden_size is -5", "1 or more")),
    "size in words": (edit("config.json", hidden_size="big"), ("hidden_size is 'big'", "1 or more")),
    "no heads": (edit("config.json", num_attention_heads=0), ("num_attention_heads is 0",)),
    "eos outside": (edit("config.json", eos_token_id=400), ("eos_token_id is 400", "from 0 to 319")),
    "pad outside": (edit("config.json", pad_token_id=400), ("pad_token_id is 400", "from 0 to 319", "null")),
    "eos in words": (edit("config.json", eos_token_id="<eos>"), ("eos_token_id is '<eos>'", "number of a token")),
    "quantized": (
        edit("config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
        ("config.json has a quantization_config", "'gptq'", "the model that it was made from"),
    ),
    "generation damaged": (write("generation_config.json", "{oops"), ("generation_config.json", "line 1, column 2")),
    "generation eos outside": (
        edit("generation_config.json", eos_token_id=400),
        ("token 400 ends a text", "0 to 319", "generation_config.json"),
    ),
    "generation eos in words": (
        edit("generation_config.json", eos_token_id="<eos>"),
        ("eos_token_id '<eos>'", "number of a token", "generation_config.json"),
    ),
    "a masked language model": (
        edit("config.json", architectures=["BertForMaskedLM"]),
        ("not a language model", "BertForMaskedLM", "from left to right", "Give the folder of"),
    ),
}
WEIGHTS = {
    "absent": (remove("model.safetensors"), ("holds no weights", "model.safetensors", "interrupted?")),
    "empty": (write("model.safetensors", b""), ("model.safetensors is damaged: 0 bytes", "Copy or download")),
    "cut in the header": (cut("model.safetensors", keep=500), ("model.safetensors is damaged: 500 bytes",)),
    "cut in the weights": (cut("model.safetensors", keep=100_000), ("it has 100000 bytes", "its header describes")),
    "something else": (write("model.safetensors", b"\x10" + bytes(200)), ("its header is not JSON", "Copy")),
    "a pointer": (
        write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        ("a pointer of Git LFS", "git lfs pull"),
    ),
    "a weight missing": (change(lambda w: w.pop(UP)), ("lacks 1 of the weights", UP, "random", "damaged copy?")),
    "a weight too many": (
        change(lambda w: w.update({"model.layers.9.mlp.up_proj.weight": torch.zeros(3)})),
        ("holds 1 weights that LlamaForCausalLM has no place for", "model.layers.9.mlp.up_proj.weight"),
    ),
    "fewer layers than saved": (
        edit("config.json", num_hidden_layers=1),
        ("holds 9 weights", "model.layers.1.", "and 6 more", "another model than was saved"),
    ),
    "more layers than saved": (edit("config.json", num_hidden_layers=3), ("lacks 9 of the weights", "model.layers.2.")),
    "other shapes": (
        edit("config.json", intermediate_size=64),
        ("6 weights have another shape", "(32, 48) instead of (32, 64)", "config.json", "from one save"),
    ),
    "NaN": (set_one(UP, float("nan")), ("NaN or infinity in 1 of its weights", UP, "earlier checkpoint")),
    "infinity": (set_one(UP, float("-inf")), ("NaN or infinity in 1 of its weights", UP)),
    **{
        f"quantized numbers, {dtype}": (
            change(lambda w, dtype=dtype: w.update({UP: (w[UP] * 100).to(dtype)})),
            ("model.safetensors: 1 of its 21 tensors", UP, f"({name})", "F32, BF16 or F16"),
        )
        for dtype, name in (
            (torch.int8, "I8"),
            (torch.int32, "I32"),
            (torch.uint8, "U8"),
            (torch.bool, "BOOL"),
            (torch.float8_e4m3fn, "F8_E4M3"),
        )
    },
    "a pickle": (
        make_pickle,
        ("only as pytorch_model.bin, a pickle", "run code", "save_pretrained", "allow_pickle: true"),
    ),
    "a stranger's code": (
        add_code("config.json", model_type="evil", auto_map={"AutoModelForCausalLM": "modeling_evil.Model"}),
        ("config.json asks to run", "modeling_evil.py", "Nothing was run", "trust_remote_code: true"),
    ),
    "a stranger's code elsewhere": (
        add_code("config.json", model_type="evil", auto_map={"AutoModel": "evil/net--modeling_evil.Model"}),
        ("modeling_evil.py of evil/net", "Nothing was run"),
    ),
}
TOKENIZERS = {
    "absent": (
        remove("tokenizer.json", "tokenizer_config.json"),
        ("holds no tokenizer", "tokenizer.json", "`tokenizer: FOLDER`"),
    ),
    "only its settings": (remove("tokenizer.json"), ("holds no tokenizer", "Save the tokenizer")),
    "cut": (cut("tokenizer.json", keep=500), ("tokenizer.json is not valid JSON", "line 27, column 7")),
    "a list": (write("tokenizer.json", "[]"), ("tokenizer.json holds a list",)),
    "something else": (write("tokenizer.json", "{}"), ("tokenizer.json holds no `model`",)),
    "settings damaged": (write("tokenizer_config.json", "{oops"), ("tokenizer_config.json is not valid JSON",)),
    "a stranger's code": (
        add_code(
            "tokenizer_config.json",
            tokenizer_class="Evil",
            auto_map={"AutoTokenizer": ["modeling_evil.Slow", "modeling_evil.Fast"]},
        ),
        ("tokenizer_config.json asks to run", "modeling_evil.py", "Nothing was run"),
    ),
    "larger than the model": (
        enlarge_tokenizer,
        ("up to number 320 ('<surplus>')", "only 320 embeddings", "model's own tokenizer"),
    ),
    "an EOS that it does not have": (edit("tokenizer_config.json", eos_token="<end>"), ("320 ('<end>')", "embeddings")),
}
FAULTS = {
    f"{topic}: {name}": case
    for topic, cases in (("config", CONFIGS), ("weights", WEIGHTS), ("tokenizer", TOKENIZERS))
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_folder_that_is_wrong_is_refused_in_one_sentence(name, tiny_model_folder, capfd, caplog):
    spoil, phrases = FAULTS[name]
    spoil(tiny_model_folder)
    before = state_of(tiny_model_folder)
    capfd.readouterr()
    message = refusal(lambda: load_causal_lm(str(tiny_model_folder), seed=0))
    for phrase in (str(tiny_model_folder), *phrases):
        assert phrase in message, f"{phrase!r} is not in: {message}"
    assert state_of(tiny_model_folder) == before
    assert capfd.readouterr().err + caplog.text == "", "the sentence is all that a user needs"


SHARDS = {
    "a part missing": (
        lambda folder: shards_of(folder)[1].unlink(),
        ("lacks model-00002-of-", "the", "parts that model.safetensors.index.json names are there", "Copy"),
    ),
    "a part cut": (
        lambda folder: shards_of(folder)[1].write_bytes(shards_of(folder)[1].read_bytes()[:-50]),
        ("model-00002-of-", "is damaged: it has", "its header describes"),
    ),
    "parts swapped": (
        lambda folder: shutil.copy(shards_of(folder)[0], shards_of(folder)[1]),
        ("model-00002-of-", "tensors that model.safetensors.index.json says it holds", "different saves"),
    ),
    "the index missing": (
        remove("model.safetensors.index.json"),
        ("parts of a model", "but not model.safetensors.index.json"),
    ),
    "the index cut": (write("model.safetensors.index.json", "{"), ("index.json is not valid JSON",)),
    "the index empty": (write("model.safetensors.index.json", "{}"), ("has no `weight_map`",)),
    "the index outside": (
        edit_index(lambda places: places.update(dict.fromkeys(places, "../../secret.safetensors"))),
        ("names the file '../../secret.safetensors'", ".safetensors"),
    ),
    "the index to a pickle": (
        edit_index(lambda places: places.update(dict.fromkeys(places, "weights.bin"))),
        ("names the file 'weights.bin'", ".safetensors"),
    ),
}


@pytest.mark.parametrize("name", SHARDS)
def test_a_model_in_parts_that_are_not_all_there_is_refused(name, sharded_folder):
    spoil, phrases = SHARDS[name]
    spoil(sharded_folder)
    message = refusal(lambda: load_causal_lm(str(sharded_folder), seed=0))
    for phrase in phrases:
        assert phrase in message, f"{phrase!r} is not in: {message}"


def test_a_model_in_parts_loads_like_one_in_a_piece(sharded_folder, tiny_llama):
    model, _ = load_causal_lm(str(sharded_folder), seed=0)
    assert all(torch.equal(value, tiny_llama.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_model_larger_than_memory_says_what_to_do(tiny_model_folder):
    edit("config.json", vocab_size=10**12)(tiny_model_folder)
    message = refusal(lambda: load_causal_lm(str(tiny_model_folder), seed=0), MemoryLimitError)
    assert "does not fit into memory" in message
    assert "dtype: bfloat16" in message


@pytest.mark.parametrize(
    ("name", "phrases"),
    [
        ("config.json", ("config.json can't be read: Permission denied", "permissions")),
        ("model.safetensors", ("model.safetensors can't be read: Permission denied",)),
        ("tokenizer.json", ("tokenizer.json can't be read: Permission denied",)),
    ],
)
def test_a_file_that_may_not_be_read_is_named(name, phrases, tiny_model_folder, monkeypatch):
    opened = Path.open

    def refuse(self: Path, *args: Any, **kwargs: Any) -> Any:  # the tests may run as root, whom no mode keeps out
        if self.name == name:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refuse)
    message = refusal(lambda: load_causal_lm(str(tiny_model_folder), seed=0))
    assert all(phrase in message for phrase in phrases), message


def test_a_loop_of_links_and_an_endless_name_are_no_folders(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (str(tmp_path / "loop"), "/" + "/".join(["x" * 200] * 25)):
        message = refusal(lambda path=path: load_causal_lm(path, seed=0))
        assert "can't be read" in message or "There is no model folder" in message


def test_an_empty_folder_is_called_empty(tmp_path):
    assert f"{tmp_path} is an empty folder" in refusal(lambda: load_causal_lm(str(tmp_path), seed=0))


# ---- what is allowed, and only when asked


class RunsCode:
    """What a pickle can do when it is opened."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_a_pickle_is_read_when_asked_but_only_for_numbers(tiny_model_folder, tmp_path, tiny_llama):
    allowed = ModelConfig.of({"path": str(tiny_model_folder), "allow_pickle": True})
    make_pickle(tiny_model_folder)
    model, _ = load_causal_lm(allowed, seed=0)
    assert all(torch.equal(value, tiny_llama.state_dict()[name]) for name, value in model.state_dict().items())
    trap = tmp_path / "trap"
    torch.save({UP: RunsCode(f"touch {trap}")}, tiny_model_folder / "pytorch_model.bin")
    message = refusal(lambda: load_causal_lm(allowed, seed=0))
    assert "would run code: don't use it" in message
    assert not trap.exists()


def test_a_known_family_needs_no_stranger(tiny_model_folder):
    add_code("config.json", auto_map={"AutoModelForCausalLM": "modeling_evil.Model"})(tiny_model_folder)
    model, _ = load_causal_lm(str(tiny_model_folder), seed=0)
    assert type(model).__module__.startswith("transformers.")


def test_a_strangers_code_runs_only_when_trusted(tiny_model_folder, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tiny_model_folder / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    edit("config.json", model_type="own", auto_map=auto_map, architectures=["OwnModel"])(tiny_model_folder)
    assert "own.py" in refusal(lambda: load_causal_lm(str(tiny_model_folder), seed=0))
    model, _ = load_causal_lm(ModelConfig.of({"path": str(tiny_model_folder), "trust_remote_code": True}), seed=0)
    assert type(model).__name__ == "OwnModel"


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "v_head.summary.weight"])
def test_what_older_tools_save_beside_the_weights_is_let_pass(name, tiny_model_folder):
    change(lambda weights: weights.update({name: torch.ones(4)}))(tiny_model_folder)
    load_causal_lm(str(tiny_model_folder), seed=0)


def test_an_embedding_padded_beyond_the_vocabulary_is_fine(tmp_path, tiny_tokenizer):
    tiny.build_llama(vocab_size=384).save_pretrained(tmp_path / "padded")
    tiny_tokenizer.save_pretrained(tmp_path / "padded")
    model, tokenizer = load_causal_lm(str(tmp_path / "padded"), seed=0)
    assert (model.config.vocab_size, len(tokenizer)) == (384, 320)


# ---- weights that are whole numbers


def to_int8(file: Path, name: str) -> None:
    weights = load_file(file)
    save_file({**weights, name: (weights[name] * 100).to(torch.int8)}, file, metadata={"format": "pt"})


def test_whole_numbers_are_refused_in_every_kind_of_model(tmp_path, adapter_folder):
    policy = toy.build_policy()
    reward = RewardModel.from_policy(policy).save_pretrained(tmp_path / "reward")
    value = ValueModel.shared(policy).save_pretrained(tmp_path / "value")
    adapter_weights = sorted(load_file(adapter_folder / "adapter_model.safetensors"))
    for load, file, name in (
        (RewardModel.from_pretrained, reward / "model.safetensors", "score.weight"),
        (ValueModel.from_pretrained, value / "value_head.safetensors", sorted(load_file(value / "value_head.safetensors"))[0]),
        (PolicyModel.from_pretrained, adapter_folder / "adapter_model.safetensors", adapter_weights[0]),
    ):  # fmt: skip
        to_int8(file, name)
        message = refusal(lambda load=load, file=file: load(str(file.parent)))
        assert all(phrase in message for phrase in (str(file), name, "(I8)")), message


@pytest.mark.parametrize(("dtype", "called"), [(torch.int8, "int8"), (torch.float8_e5m2, "F8")])
def test_quantized_numbers_in_a_pickle_are_refused_where_pickles_are_allowed(dtype, called, tiny_model_folder):
    change(lambda w: w.update({UP: (w[UP] * 100).to(dtype)}))(tiny_model_folder)
    make_pickle(tiny_model_folder)
    config = ModelConfig.of({"path": str(tiny_model_folder), "allow_pickle": True})
    message = refusal(lambda: load_causal_lm(config, seed=0))
    assert all(phrase in message for phrase in ("pytorch_model.bin", UP, f"({called})")), message


@pytest.mark.parametrize(
    ("spoil", "phrases"),
    [
        (change(lambda w: w.update({UP: (w[UP] * 100).to(torch.int8)})), ("model.safetensors", UP, "(I8)")),
        (edit("config.json", quantization_config={"quant_method": "half-bit"}), ("config.json", "'half-bit'")),
    ],
)
def test_whole_numbers_that_the_hub_sent_are_refused(spoil, phrases, tmp_path, tiny_model_folder, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    sources._hub_has.cache_clear()
    here = tmp_path / "hub" / "models--some--model"
    (here / "refs").mkdir(parents=True)
    (here / "refs" / "main").write_text("0" * 40)
    shutil.copytree(tiny_model_folder, here / "snapshots" / ("0" * 40))
    load_causal_lm("some/model", seed=0)
    spoil(here / "snapshots" / ("0" * 40))
    message = refusal(lambda: load_causal_lm("some/model", seed=0))
    assert all(phrase in message for phrase in phrases), message
    sources._hub_has.cache_clear()


def test_masks_and_positions_may_be_whole_numbers(tmp_path, tiny_tokenizer):
    folder = toy.build_policy().save_pretrained(tmp_path / "gpt2")
    masks = {
        "transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8),
        "h.0.attn.bias": torch.ones(2).bool(),
    }
    change(lambda weights: weights.update(masks))(folder)
    load_causal_lm(str(folder), seed=0)


# ---- one kind of model where another is wanted


def test_models_of_another_kind_are_told_apart(tmp_path, tiny_model_folder):
    policy = PolicyModel.from_pretrained(str(tiny_model_folder))
    reward = str(RewardModel.from_policy(policy).save_pretrained(tmp_path / "reward"))
    value = str(ValueModel.from_policy(policy).save_pretrained(tmp_path / "value"))
    for load, path, phrases in (
        (PolicyModel.from_pretrained, reward, ("not a language model", "returns scores, not text", "policy")),
        (PolicyModel.from_pretrained, value, ("is a value model", "values, not text", "policy's folder")),
        (
            RewardModel.from_pretrained,
            str(tiny_model_folder),
            ("not a reward model", "LlamaForCausalLM", "rlhf reward"),
        ),
        (RewardModel.from_pretrained, value, ("is a value model", "rlhf reward")),
        (ValueModel.from_pretrained, reward, ("not a value model", "ValueModel.from_policy")),
    ):
        message = refusal(lambda load=load, path=path: load(path))
        assert all(phrase in message for phrase in (path, *phrases)), message


@pytest.mark.parametrize(
    ("spoil", "phrases"),
    [
        (
            edit("rlhf_reward.json", mean=[0.0, 1.0]),
            ("rlhf_reward.json: Normalization has (2,) means and (1,) deviations",),
        ),
        (
            edit("rlhf_reward.json", std=None),
            ("rlhf_reward.json describes no model: it has no 'std'", "Save the model"),
        ),
        (edit("rlhf_reward.json", num_models="two"), ("rlhf_reward.json describes no model", "'two'")),
        (edit("rlhf_reward.json", num_models=2), ("an ensemble of 2 reward models, but member-0 is missing",)),
        (edit("rlhf_reward.json", head={"shape": "round"}), ("rlhf_reward.json describes no model", "'shape'")),
        (set_one("score.weight", float("nan")), ("NaN or infinity in 1 of its weights: score.weight",)),
        (cut("model.safetensors", keep=9000), ("model.safetensors is damaged: it has 9000 bytes",)),
    ],
)
def test_a_damaged_reward_model_is_refused(spoil, phrases, tmp_path):
    folder = RewardModel.from_policy(toy.build_policy()).save_pretrained(tmp_path / "reward")
    spoil(folder)
    message = refusal(lambda: RewardModel.from_pretrained(str(folder)))
    assert all(phrase in message for phrase in phrases), message


@pytest.mark.parametrize(
    ("spoil", "phrases"),
    [
        (remove("value_head.safetensors"), ("value_head.safetensors can't be read: No such file",)),
        (cut("value_head.safetensors", keep=20), ("value_head.safetensors is damaged: 20 bytes",)),
        (edit("rlhf_value.json", hidden_size=None), ("rlhf_value.json describes no model: it has no 'hidden_size'",)),
        (edit("rlhf_value.json", hidden_size=5), ("the value head", "size mismatch")),
    ],
)
def test_a_damaged_value_head_is_refused(spoil, phrases, tmp_path):
    folder = ValueModel.shared(toy.build_policy()).save_pretrained(tmp_path / "value")
    spoil(folder)
    message = refusal(lambda: ValueModel.from_pretrained(str(folder)))
    assert all(phrase in message for phrase in phrases), message


# ---- adapters


def test_an_adapter_without_its_base_says_where_to_write_the_new_place(adapter_folder, tiny_model_folder):
    tiny_model_folder.rename(tiny_model_folder.with_name("moved"))
    message = refusal(lambda: load_causal_lm(str(adapter_folder), seed=0))
    for phrase in (str(adapter_folder), "is an adapter", str(tiny_model_folder), "base_model_name_or_path in"):
        assert phrase in message


@pytest.mark.parametrize(
    ("spoil", "phrases"),
    [
        (remove("adapter_model.safetensors"), ("holds no weights: there is no adapter_model.safetensors",)),
        (cut("adapter_model.safetensors", keep=3000), ("adapter_model.safetensors is damaged",)),
        (edit("adapter_config.json", peft_type="WHISPER"), ("peft knows no peft_type 'WHISPER'", "LORA")),
        (write("adapter_config.json", "{"), ("adapter_config.json is not valid JSON",)),
        (edit("adapter_config.json", r=3), ("Can't load the adapter", "size mismatch")),
        (edit("adapter_config.json", target_modules=["q_proj"]), ("does not fit", "there is no layer for", "too many")),
    ],
)
def test_a_damaged_adapter_is_refused(spoil, phrases, adapter_folder):
    spoil(adapter_folder)
    message = refusal(lambda: load_causal_lm(str(adapter_folder), seed=0))
    assert all(phrase in message for phrase in phrases), message


def test_an_adapter_for_other_layers_is_never_half_put_on(tiny_model_folder, tmp_path, tiny_tokenizer):
    """peft itself leaves what has no layer unread, and starts what has no weights at zero."""
    lora = {"rank": 2, "target_modules": ["q_proj", "v_proj"]}
    policy = PolicyModel.from_pretrained(ModelConfig.of({"path": str(tiny_model_folder), "lora": lora}))
    adapter_folder = policy.save_pretrained(tmp_path / "adapter")
    for layers, phrase in ((1, "there is no layer for"), (3, "it has nothing for")):
        base = tmp_path / f"base-{layers}"
        tiny.build_llama(vocab_size=320, num_hidden_layers=layers).save_pretrained(base)
        tiny_tokenizer.save_pretrained(base)
        edit("adapter_config.json", base_model_name_or_path=str(base))(adapter_folder)
        (adapter_folder / "rlhf_base.json").unlink(missing_ok=True)  # as peft alone leaves it
        message = refusal(lambda: load_causal_lm(str(adapter_folder), seed=0))
        assert phrase in message
        assert str(base) in message
        assert "the base model it was trained on" in message


def test_a_pickled_adapter_is_refused(adapter_folder):
    torch.save(load_file(adapter_folder / "adapter_model.safetensors"), adapter_folder / "adapter_model.bin")
    (adapter_folder / "adapter_model.safetensors").unlink()
    message = refusal(lambda: load_causal_lm(str(adapter_folder), seed=0))
    assert "only as adapter_model.bin, a pickle" in message
    assert "allow_pickle: true" in message
    load_causal_lm(ModelConfig.of({"path": str(adapter_folder), "allow_pickle": True}), seed=0)


# ---- as the command line says it


def test_the_command_line_prints_the_sentence_and_leaves_with_its_own_code(
    tiny_model_folder, tmp_path, monkeypatch, capsys
):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "a", "completion": "b"}\n')
    earlier = tmp_path / "run" / "earlier" / "model"
    shutil.copytree(tiny_model_folder, earlier)
    before = state_of(earlier)
    cut("model.safetensors", keep=1000)(tiny_model_folder)
    monkeypatch.delenv("RLHF_DEBUG", raising=False)
    settings = [f"model={tiny_model_folder}", f"data={data}", "max_steps=1"]
    monkeypatch.setattr(sys, "argv", ["rlhf", "sft", *settings, "-o", str(tmp_path / "run"), "--quiet"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    shown = capsys.readouterr().err
    assert left.value.code == ModelError.exit_code == 4
    assert "error: " in shown
    told = " ".join(shown.split())
    assert (
        f"stages.sft.model: {tiny_model_folder}/model.safetensors is not a safetensors file, or was cut short" in told
    )
    assert "Copy or download it again" in told
    assert "Traceback" not in shown
    assert state_of(earlier) == before
    assert not list((tmp_path / "run").glob("sft/model*")), "nothing half-made is left"
