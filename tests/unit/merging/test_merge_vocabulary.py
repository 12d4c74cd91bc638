"""Tokens that models number differently: each row follows its token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf.errors import ModelError
from rlhf.merging.merger import ModelMerger
from rlhf.merging.vocabulary import tokens_of
from tests.fixtures.merging import LETTERS, merge_tree, tensors_of, write_family, write_tokenizer

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def parents(tmp_path) -> dict[str, Path]:
    """A base with letters; ``a`` with digits in place of the last six; ``b`` with the letters backwards."""
    family = write_family(tmp_path, "llama", ("base", "a", "b"))
    write_tokenizer(family["a"], [*LETTERS[:20], *"012345"])
    write_tokenizer(family["b"], [*reversed(LETTERS)])
    return family


def merged(parents: dict[str, Path], out: Path, **settings: Any) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    models = {parents[name]: {"weight": weight} for name, weight in (("base", 1.0), ("a", 1.0), ("b", 2.0))}
    ModelMerger(merge_tree("linear", models, base_model=parents["base"], **settings)).merge(out)
    return tensors_of(out), tokens_of(out)


def row_of(parents: dict[str, Path], name: str, token: str, tensor: str = EMBEDDING) -> torch.Tensor:
    return tensors_of(parents[name])[tensor][tokens_of(parents[name])[token]]


@pytest.mark.parametrize("tensor", [EMBEDDING, HEAD])
def test_a_union_has_every_token_and_each_row_follows_its_token(parents, tmp_path, tensor):
    tensors, tokens = merged(parents, tmp_path / "out", tokenizer_source="union")
    assert set(tokens) == {"<eos>", "<unk>", *LETTERS, *"012345"}
    assert tensors[tensor].shape[0] == len(tokens) == 34
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 34

    def row(name: str, token: str) -> torch.Tensor:
        return row_of(parents, name, token, tensor)

    everybody = (row("base", "c") + row("a", "c") + 2 * row("b", "c")) / 4
    assert torch.allclose(tensors[tensor][tokens["c"]], everybody, atol=1e-6)
    only_a = row("a", "3")  # those that lack it take it over
    assert torch.allclose(tensors[tensor][tokens["3"]], only_a, atol=1e-6)
    not_a = (row("base", "z") + row("base", "z") + 2 * row("b", "z")) / 4  # a takes the base's
    assert torch.allclose(tensors[tensor][tokens["z"]], not_a, atol=1e-6)


def test_without_a_base_a_lacking_model_takes_the_mean(parents, tmp_path):
    models = {parents[name]: {"weight": 1.0} for name in ("a", "base", "b")}
    ModelMerger(merge_tree("linear", models, tokenizer_source="union")).merge(tmp_path / "out")
    row = tensors_of(tmp_path / "out")[EMBEDDING][tokens_of(tmp_path / "out")["z"]]
    assert torch.allclose(row, (row_of(parents, "base", "z") + row_of(parents, "b", "z")) / 2, atol=1e-6)


def test_tokens_that_the_output_lacks_are_lines(parents, tmp_path):
    models = {parents["a"]: {"weight": 1.0}}
    report = ModelMerger(
        merge_tree("task_arithmetic", models, base_model=parents["base"], tokenizer_source="base")
    ).merge(tmp_path / "out")
    assert tokens_of(tmp_path / "out") == tokens_of(parents["base"])
    assert [note for note in report.notes if "6 tokens" in note and str(parents["a"]) in note]


def test_chosen_embeddings_and_padding(parents, tmp_path):
    of_b = str(parents["b"])
    tokens_wanted = {
        "new": {"source": {"kind": "model_token", "model": of_b, "token": "q"}}, "c": {"source": of_b, "force": True},
        "3": {"source": {"kind": "zero"}}, "none": {"source": {"kind": "zero"}},
    }  # fmt: skip
    tensors, tokens = merged(
        parents, tmp_path / "out", tokenizer={"source": "union", "tokens": tokens_wanted, "pad_to_multiple_of": 32}
    )
    table = tensors[EMBEDDING]
    assert table.shape[0] == 64
    assert torch.allclose(table[tokens["new"]], row_of(parents, "b", "q"), atol=1e-6)
    assert torch.allclose(table[tokens["c"]], row_of(parents, "b", "c"), atol=1e-6)
    assert torch.allclose(table[tokens["3"]], row_of(parents, "a", "3") / 4, atol=1e-6)  # the others have zeros
    assert not table[tokens["none"]].any()
    assert torch.allclose(table[len(tokens) :], table[: len(tokens)].mean(dim=0), atol=1e-5)


@pytest.mark.parametrize("source", [{"kind": "model_token", "model": "BASE", "token": "nothing"}, "ELSEWHERE"])
def test_a_source_that_lacks_the_token(parents, tmp_path, source):
    text = json.dumps(source).replace("BASE", str(parents["base"])).replace("ELSEWHERE", "no-such-model")
    tree = {"source": "union", "tokens": {"new": {"source": json.loads(text)}}}
    with pytest.raises(ModelError, match="'new'"):
        merged(parents, tmp_path / "out", tokenizer=tree)
    assert not (tmp_path / "out").exists()


def test_a_chat_template_is_the_most_frequent_or_the_one_given(parents, tmp_path):
    from transformers import AutoTokenizer

    for name, text in (("base", "{{ 1 }}"), ("a", "{{ 2 }}"), ("b", "{{ 2 }}")):
        write_tokenizer(parents[name])
        (parents[name] / "chat_template.jinja").write_text(text, encoding="utf-8")
    for wanted, expected in (("auto", "{{ 2 }}"), ("{{ 3 }}", "{{ 3 }}"), (None, "{{ 1 }}")):
        out = tmp_path / f"out-{expected[3]}"
        merged(parents, out, **({} if wanted is None else {"chat_template": wanted}))
        assert AutoTokenizer.from_pretrained(out).chat_template == expected
