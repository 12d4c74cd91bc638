"""The world's tokenizer: deterministic, loses nothing, and parts prompt from completion cleanly."""

from __future__ import annotations

import random

import pytest

from rlhf.data.world import train_tokenizer
from rlhf.data.world.build import demonstration_rows, pretraining_rows
from rlhf.data.world.language import PROMPTS
from rlhf.errors import ConfigError


@pytest.fixture(scope="module")
def texts():
    return [row["text"] for row in pretraining_rows(4000, seed=51)]


@pytest.fixture(scope="module")
def tokenizer(texts):
    return train_tokenizer(texts, 1024)


def test_the_same_texts_give_the_same_tokenizer(texts, tokenizer):
    again = train_tokenizer(texts, 1024)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_bos_eos_and_pad_are_three_tokens(tokenizer):
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 1, 2)
    assert tokenizer.decode([0, 1, 2], skip_special_tokens=True) == ""


def test_encoding_puts_bos_in_front_and_no_eos_behind(tokenizer):
    ids = tokenizer("A cow eats grass.").input_ids
    assert ids[0] == tokenizer.bos_token_id
    assert tokenizer.eos_token_id not in ids
    assert tokenizer("A cow eats grass.", add_special_tokens=False).input_ids == ids[1:]


def test_the_ids_of_a_prompt_begin_the_ids_of_prompt_and_completion(tokenizer):
    for row in demonstration_rows(PROMPTS, seed=51):
        prompt = tokenizer(row["prompt"]).input_ids
        completion = tokenizer(row["completion"], add_special_tokens=False).input_ids
        assert tokenizer(row["prompt"] + row["completion"]).input_ids == prompt + completion
        assert tokenizer.decode(completion) == row["completion"]


def test_every_demonstration_fits_into_40_tokens_with_its_eos(tokenizer):
    longest = max(
        len(tokenizer(row["completion"], add_special_tokens=False).input_ids)
        for seed in range(51, 54)
        for row in demonstration_rows(PROMPTS, seed)
    )
    assert longest + 1 <= 40


def test_any_text_survives_encoding(tokenizer):
    draw = random.Random(1)
    for _ in range(50):
        text = "".join(
            chr(draw.choice([draw.randrange(32, 127), draw.randrange(160, 0xD7FF), 0x1F600])) for _ in range(30)
        )
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids) == text


def test_a_chat_is_the_same_text_as_a_prompt(tokenizer):
    chat = [{"role": "user", "content": "Hello! Where is Peru?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<bos>User: Hello! Where is Peru?\nAssistant:"
    whole = tokenizer.apply_chat_template(
        [*chat, {"role": "assistant", "content": "Peru is in South America."}], tokenize=False
    )
    assert whole == "<bos>User: Hello! Where is Peru?\nAssistant: Peru is in South America.<eos>"
    with pytest.raises(Exception, match="not system"):
        tokenizer.apply_chat_template([{"role": "system", "content": "Be kind."}], tokenize=False)


def test_it_survives_saving(tokenizer, tmp_path):
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "User: Where is Peru?\nAssistant: Peru is in South America."
    assert loaded(text).input_ids == tokenizer(text).input_ids
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (0, 1, 2)


def test_a_vocabulary_too_small_for_bytes_is_refused():
    with pytest.raises(ConfigError, match="vocab_size is 200"):
        train_tokenizer(["a"], 200)
