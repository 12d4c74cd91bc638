"""The embedded world's tokenizer: a small byte-level BPE, trained on the world's own documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rlhf.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BOS, EOS, PAD = "<bos>", "<eos>", "<pad>"
NUM_BYTES = 256
MIN_VOCAB_SIZE = NUM_BYTES + 3

# The same text as language.prompt_text, so that a chat client and a prompt file ask the model the same thing.
CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}
{{- 'User: ' + message['content'] + '\\n' -}}
{%- elif message['role'] == 'assistant' -%}
{{- 'Assistant: ' + message['content'].strip() + eos_token -}}
{%- else -%}
{{- raise_exception('The embedded model knows the roles user and assistant, not ' + message['role'] + '.') -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:' -}}{%- endif -%}"""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE with <bos>, <eos> and <pad> as ids 0, 1 and 2.

    The same texts in the same order give the same tokenizer. Any text can be encoded; encoding puts <bos> in front and
    never adds <eos>, which is the trainer's and the sampler's to place.

    Args:
        texts: Training documents.
        vocab_size: At most this many tokens; fewer where the texts have no more pairs to merge.
    """
    if vocab_size < MIN_VOCAB_SIZE:
        raise ConfigError(
            f"vocab_size is {vocab_size}; a byte-level tokenizer needs at least {MIN_VOCAB_SIZE}: "
            "256 bytes and three special tokens."
        )
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
