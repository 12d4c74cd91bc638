from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast

from rlhf.errors import ModelError
from rlhf.rollout.stopping import StopTexts, completion_texts, eos_ids


@pytest.fixture(scope="module")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One id for each byte, so that every character beyond ASCII is cut in pieces."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture(scope="module")
def stripping_tokenizer() -> PreTrainedTokenizerFast:
    """Like SentencePiece: "▁" is a space, and decoding drops it at the start of a text."""
    words = {"<unk>": 0, "▁Once": 1, "▁upon": 2, "▁a": 3, "▁time": 4, "▁": 5, ".": 6}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def first_stop(tokenizer, stop: list[str], text: str) -> int | None:
    """After how many tokens of ``text`` the stop is noticed."""
    watcher = StopTexts(tokenizer, stop)
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    for count in range(1, len(tokens) + 1):
        if watcher.candidates([tokens[count - 1]]) and watcher.reached(tokens[:count]):
            return count
    return None


@pytest.mark.parametrize(
    ("stop", "text", "count"),
    [
        (["\n\n"], "one\ntwo\n\nthree", 9),
        (["wo"], "one two three", 7),
        (["zzz"], "one two three", None),
        (["é"], "caf\u00e9!", 5),  # four letters would be three; é is two bytes
        (["three", "o"], "two three", 3),
        (["é!"], "xxé!é!", 5),
        ([""], "anything", None),
    ],
)
def test_a_stop_text_is_noticed_with_its_last_token(byte_tokenizer, stop, text, count):
    assert first_stop(byte_tokenizer, stop, text) == count


def test_a_stop_text_of_one_space_is_noticed_where_decoding_drops_spaces(stripping_tokenizer):
    watcher = StopTexts(stripping_tokenizer, [" "])
    assert watcher.candidates([3]) == [0]
    assert watcher.reached([1, 3])  # "Once a"


def test_only_tokens_that_can_finish_a_stop_text_are_looked_at(byte_tokenizer):
    watcher = StopTexts(byte_tokenizer, ["b"])
    a, b, half = (byte_tokenizer.convert_tokens_to_ids(c) for c in ("a", "b", "Ã"))
    assert watcher.candidates([a, b, half]) == [1, 2]  # half a character may become anything


def test_without_stop_texts_nothing_is_watched(byte_tokenizer):
    assert not StopTexts(byte_tokenizer, [])
    assert not StopTexts(byte_tokenizer, [""])


def test_a_space_that_decoding_would_drop_is_kept(stripping_tokenizer):
    assert stripping_tokenizer.decode([4, 6]) == "time."
    assert completion_texts(stripping_tokenizer, [1, 2, 3], [[4, 6], [6]]) == [" time.", "."]


def test_a_completion_that_goes_on_within_a_character_is_decoded_alone(byte_tokenizer):
    whole = byte_tokenizer("aéb")["input_ids"]  # a, two bytes of é, b
    (text,) = completion_texts(byte_tokenizer, whole[:2], [whole[2:]])
    assert text.endswith("b")


def test_every_source_of_end_tokens_counts(tiny_llama, tiny_tokenizer):
    tiny_llama.generation_config = GenerationConfig(eos_token_id=[7, 8])
    assert eos_ids(tiny_llama, tiny_tokenizer) == sorted(
        {7, 8, tiny_tokenizer.eos_token_id, tiny_llama.config.eos_token_id}
    )


def test_a_model_that_never_ends_is_refused(tiny_llama, byte_tokenizer):
    tiny_llama.generation_config.eos_token_id = None
    tiny_llama.config.eos_token_id = None
    with pytest.raises(ModelError, match="ends a text"):
        eos_ids(tiny_llama, byte_tokenizer)
