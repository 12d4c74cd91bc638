"""One token for each character, and the world's files go through the data room with it."""

from __future__ import annotations

import pytest

from rlhf.data.datasets import GRPODataset, KTODataset, SFTDataset
from rlhf.data.reasoning import build_reasoning
from rlhf.data.reasoning.tokenizer import CHARACTERS, build_tokenizer

TEXT = "9a+6b*9c-4:a9+6=5;b5*9=5;c5-4=1;A1."


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reasoning")
    build_reasoning(51, folder, num_demonstrations=70, num_prompts=14, num_test_prompts=7)
    return folder


def test_there_are_26_characters_and_three_special_tokens(tokenizer):
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 26
    assert len(tokenizer) == 29
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)


def test_text_becomes_one_id_a_character_and_comes_back(tokenizer):
    ids = tokenizer(TEXT)["input_ids"]
    assert len(ids) == len(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == TEXT


@pytest.mark.parametrize("text", [" ", "\n", "ä", "x", "A 1."])
def test_a_foreign_character_is_unknown_and_nothing_else(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    assert [number == tokenizer.unk_token_id for number in ids] == [character not in CHARACTERS for character in text]


def test_it_is_saved_and_loaded_unchanged(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(TEXT)["input_ids"] == tokenizer(TEXT)["input_ids"]
    assert loaded.decode(loaded(TEXT)["input_ids"]) == TEXT
    assert loaded.get_vocab() == tokenizer.get_vocab()


def test_the_worlds_files_are_read_by_the_data_sets(tokenizer, world):
    demonstrations = SFTDataset(str(world / "sft.jsonl"), tokenizer)
    assert len(demonstrations) == 70
    for row, group in zip(demonstrations.rows, demonstrations, strict=True):
        assert tokenizer.decode(group.prefix) == row.prompt
        assert tokenizer.decode(group.branches[0].tokens) == row.completion + "<eos>"
    prompts = GRPODataset(str(world / "prompts.jsonl"), tokenizer)
    assert [prompt.columns["answer"] for prompt in prompts] == [row.columns["answer"] for row in prompts.rows]
    assert all(len(prompt.ids) == len(prompt.text) for prompt in prompts)
    assert len(KTODataset(str(world / "outcome.jsonl"), tokenizer)) == 70
