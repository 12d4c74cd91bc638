"""Tokenizers of the kinds that break careless code, made here and never downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LINES = (
    "Question: What does the cow eat?\nAnswer: The cow eats grass. I hope this helps!",
    "Human: Where does the fox live?\n\nAssistant: The fox lives in a den, as far as I know.",
    "<system> be kind; the quick brown fox jumps over the lazy dog 0123456789 times.",
)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""No generation marks, a turn ends with a special token and white space of the template's own."""

MARKED = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<|im_start|>assistant\n"
    "{% generation %}{{ message['content'] }}<|im_end|>{% endgeneration %}\n"
    "{% else %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The same text, the assistant's words marked."""

FORGETFUL = (
    "{% for message in messages %}{% if loop.last or message['role'] != 'assistant' %}"
    "{{ message['role'] }}: {{ message['content'] }}\n{% else %}assistant: ...\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
"""Rewrites the assistant's earlier turns, as reasoning models' templates do."""


def build_tokenizer(
    *,
    lines: tuple[str, ...] = LINES,
    vocab_size: int = 340,
    split_words: bool = True,
    trim_offsets: bool = False,
    add_bos: bool = False,
    merges: tuple[str, ...] = (),
    special: tuple[str, ...] = ("<bos>", "<eos>", "<pad>", "<|im_start|>", "<|im_end|>"),
    **roles: Any,
) -> PreTrainedTokenizerFast:
    """Byte-level BPE; with ``split_words=False`` merges cross spaces, so no boundary is safe.

    ``merges`` are pairs of letters to merge, in order, instead of trained ones.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*special, *alphabet, *merges])}
    core = Tokenizer(models.BPE(vocabulary, [(pair[0], pair[1]) for pair in merges]) if merges else models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split_words)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(special))
    if not merges:
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
        )
        core.train_from_iterator(lines, trainer)
    steps: list[Any] = [processors.ByteLevel(trim_offsets=trim_offsets)]
    if add_bos:
        bos = roles["bos_token"]
        steps.append(processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, core.token_to_id(bos))]))
    core.post_processor = processors.Sequence(steps)
    return PreTrainedTokenizerFast(tokenizer_object=core, **roles)


DISTINCT = {
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
}


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """BOS, EOS and pad are three tokens; puts BOS in front by itself, as Llama's does."""
    return build_tokenizer(add_bos=True, **DISTINCT)


@pytest.fixture(scope="session")
def plain_tokenizer() -> Any:
    """The same tokens, but nothing is put in front, as with GPT-2."""
    return build_tokenizer(**DISTINCT)


@pytest.fixture(scope="session")
def one_special_tokenizer() -> Any:
    """BOS, EOS and pad are one and the same token."""
    roles = dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<end>")
    return build_tokenizer(special=("<end>",), **roles)


@pytest.fixture(scope="session")
def merging_tokenizer() -> Any:
    """Knows only the bytes and the merges trained on one line, words and spaces together."""
    return build_tokenizer(lines=("the cow eats grass ",) * 50, vocab_size=300, split_words=False, **DISTINCT)


@pytest.fixture(scope="session")
def chat_tokenizer() -> Any:
    """ChatML without generation marks."""
    return build_tokenizer(chat_template=CHATML, **DISTINCT)


@pytest.fixture(scope="session")
def marked_tokenizer() -> Any:
    """ChatML with generation marks."""
    return build_tokenizer(chat_template=MARKED, **DISTINCT)
