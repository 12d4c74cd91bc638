"""A token's text and bytes, as OpenAI reports them with log-probabilities; also of one that is a part of a character."""

from __future__ import annotations

import re

from transformers import PreTrainedTokenizerBase

from rlhf.rollout.stopping import REPLACEMENT

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How tokenizers of SentencePiece's kind write a byte that no token has."""
SPACE = "\u2581"
"""What stands for a space at the beginning of a token there."""


def _bytes_of_characters() -> dict[str, int]:
    """The characters that byte-level tokenizers write bytes as (Radford et al. 2019, GPT-2): those that print, and 256 on for the rest."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


BYTES = _bytes_of_characters()


def token_bytes(tokenizer: PreTrainedTokenizerBase, token: int) -> bytes:
    """What a token adds to a text, in UTF-8; the bytes of a completion's tokens make up its text, beside those that texts leave out, which
    have the bytes of their names."""
    piece = tokenizer.convert_ids_to_tokens(token)
    text = str(tokenizer.decode([token]))
    if not isinstance(piece, str):  # the model has more tokens than its tokenizer
        return text.encode("utf-8", "surrogatepass")
    if match := BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    if REPLACEMENT in text and all(character in BYTES for character in piece):
        return bytes(BYTES[character] for character in piece)
    spaced = piece.replace(SPACE, " ")
    if piece.startswith(SPACE) and text == spaced[1:]:  # decoders leave one out where a text begins
        text = spaced
    return text.encode("utf-8", "surrogatepass")


def is_left_out(tokenizer: PreTrainedTokenizerBase, token: int) -> bool:
    """Whether texts do not show a token, such as the one that ends a completion."""
    return bool(tokenizer.decode([token])) and not tokenizer.decode([token], skip_special_tokens=True)


def token_text(data: bytes) -> str:
    """A token's text; of bytes that are no whole characters what OpenAI writes, such as ``\\\\xf0\\\\x9f``."""
    try:
        return data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)
