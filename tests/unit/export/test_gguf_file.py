from __future__ import annotations

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf.errors import ModelError
from rlhf.export import gguf_architecture, gguf_file
from rlhf.export.export_model import export_model
from rlhf.models.policy import PolicyModel
from tests.fixtures.exported import FAMILIES, tiny_policy


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_transformers_own_reader_finds_the_same_model(tmp_path, family):
    # Another program's reader, with its own table of names and its own order of rows.
    policy = tiny_policy(FAMILIES[family])
    report = export_model(policy, "gguf", output_path=tmp_path / "out", check=False)
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file=report.files[0])
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        assert torch.allclose(read(ids).logits, policy.model(ids).logits, atol=1e-4)


def test_the_file_says_what_it_is(tmp_path):
    PolicyModel.from_pretrained("embedded").save_pretrained(
        tmp_path / "m", card={"license": "mit", "base_model": "a/b"}
    )
    report = export_model(tmp_path / "m", "gguf", "int8", tmp_path / "out", num_rows=2)
    reader = gguf.GGUFReader(tmp_path / "out" / report.files[0])

    def value(key: str) -> object:
        return reader.fields[key].contents()

    assert value("general.architecture") == "llama"
    assert (value("general.license"), value("general.base_model.0.name")) == ("mit", "a/b")
    assert value("general.file_type") == gguf.LlamaFileType.MOSTLY_Q8_0
    assert str(value("general.description")).endswith(report.origin["weights"])
    assert value("llama.block_count") == 3
    assert value("tokenizer.ggml.add_bos_token") is True
    assert "User: " in str(value("tokenizer.chat_template"))
    types = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    assert "output.weight" not in types, "the head is the embedding"
    assert (types["token_embd.weight"], types["blk.0.attn_norm.weight"]) == ("Q8_0", "F32")
    assert report.outputs is not None
    assert report.outputs.perplexity_after == pytest.approx(report.outputs.perplexity_before, rel=0.02)
    assert (tmp_path / "out" / "Modelfile").read_text().splitlines()[1] == f"FROM ./{report.files[0]}"


def test_rows_in_the_wrong_order_are_noticed(tmp_path, monkeypatch):
    # Written without the order that is taken away when the file is read: every number is there, the model is another one.
    monkeypatch.setattr(gguf_architecture, "_permuted", lambda value, heads: value)
    with pytest.raises(ModelError, match="Nothing was written"):
        export_model(tiny_policy(FAMILIES["llama"]), "gguf", output_path=tmp_path / "out", num_rows=2)
    assert not any(tmp_path.iterdir())


def test_a_number_that_was_written_wrong_is_named(tmp_path, monkeypatch):
    right = gguf_file.stored

    def wrong(value, kind):
        data, type_ = right(value, kind)
        if value.ndim == 2 and value.shape[0] == 96:
            data = data.copy()
            data.flat[7] += 0.5
        return data, type_

    monkeypatch.setattr(gguf_file, "stored", wrong)
    with pytest.raises(ModelError, match=r"ffn_\w+\.weight .*differs by 0\.5"):
        export_model(tiny_policy(FAMILIES["llama"]), "gguf", output_path=tmp_path / "out", check=False)
    assert not any(tmp_path.iterdir())


def test_a_type_that_is_too_coarse_for_a_model_is_not_kept(tmp_path):
    with pytest.raises(ModelError, match=r"perplexity rises .*max-increase"):
        export_model("embedded", "gguf", "q4_0", tmp_path / "out", num_rows=4, max_increase=1e-4)
    assert not any(tmp_path.iterdir())
