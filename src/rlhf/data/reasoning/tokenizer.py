"""The reasoning world's tokenizer: one token for each of its 26 characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf.data.reasoning.problems import LETTERS, OPERATIONS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS, UNKNOWN = "<pad>", "<eos>", "<unk>"
CHARACTERS = f"0123456789{LETTERS}{''.join(OPERATIONS)}:=;A."


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with <pad>, <eos> and <unk> as ids 0, 1 and 2, then the characters in a fixed order.

    There is no token for the beginning: every prompt begins with a digit. Encoding never adds <eos>, which is the
    trainer's and the sampler's to place; a character that is not of this world becomes <unk>.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {token: number for number, token in enumerate((PAD, EOS, UNKNOWN, *CHARACTERS))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    # Not a dot, which leaves line breaks out: they are characters too, if unknown ones.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )
