"""Tokens that are parts of characters: their bytes make up the text, as with OpenAI."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlhf.serving.token_texts import token_bytes, token_text


@pytest.fixture
def sentence_piece():
    """Llama 2's way: a mark for spaces, and bytes for what has no token."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581dog", "\u2581", "dog", "s", "\u2581\u2581"]
    vocabulary = [(piece, -float(number)) for number, piece in enumerate(pieces)]
    model = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<unk>")


@pytest.mark.parametrize("text", ["Once upon", " naïve dogs", "a 👋🏽 b", "日本語\n"])
def test_the_bytes_of_all_tokens_are_the_text(tokenizer, text):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert b"".join(token_bytes(tokenizer, token) for token in ids).decode() == text


def test_bytes_and_spaces_of_the_other_kind(sentence_piece):
    ids = sentence_piece("dogs 👋", add_special_tokens=False)["input_ids"]
    assert b"".join(token_bytes(sentence_piece, token) for token in ids).decode() == " dogs 👋"


def test_a_part_of_a_character_is_written_as_openai_does():
    """The first three bytes of a waving hand."""
    assert token_text("👋".encode()[:3]) == "\\xf0\\x9f\\x91"
    assert token_text("👋".encode()) == "👋"


def test_a_token_that_the_tokenizer_does_not_have_has_bytes_all_the_same(tokenizer):
    assert token_bytes(tokenizer, len(tokenizer) + 5) == b""


@pytest.mark.parametrize(
    ("piece", "text"), [("\u2581", " "), ("\u2581\u2581", "  "), ("\u2581dog", " dog"), ("dog", "dog")]
)
def test_a_token_keeps_each_of_its_spaces(sentence_piece, piece, text):
    assert token_bytes(sentence_piece, sentence_piece.convert_tokens_to_ids(piece)).decode() == text
