"""The token ids that a written model is compared with its original on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rlhf.config.policy import SamplingConfig
from rlhf.data.accepted import ACCEPTED
from rlhf.data.contracts import TextRow
from rlhf.data.datasets import SFTDataset
from rlhf.data.read import read_rows
from rlhf.data.sources import Source
from rlhf.errors import DataError
from rlhf.export.source_model import SourceModel
from rlhf.models.score import context_length
from rlhf.rollout.local import LocalEngine
from rlhf.seeds import derive_seed

NUM_ROWS = 16
ROW_TOKENS = 128
"""Longest row."""


@dataclass(frozen=True, slots=True)
class _Start:
    """A prompt of one token."""

    id: str
    ids: list[int]


def comparison_rows(
    source: SourceModel, texts: Source | None, *, num_rows: int = NUM_ROWS, seed: int = 0
) -> tuple[list[list[int]], str]:
    """Rows of at least two token ids, and what they are, for people.

    Args:
        source: Whose tokenizer and context count.
        texts: Texts, demonstrations or dialogues; None for what the language model itself samples, or random tokens for a reward
            model.
        num_rows: Most rows.
        seed: Of what is sampled or drawn.

    Raises:
        DataError: The texts hold no row of two tokens.
    """
    longest = min(context_length(source.network) or ROW_TOKENS, ROW_TOKENS)
    if texts is not None:
        rows = [row[:longest] for row in _rows_of(source, texts, num_rows)]
        rows = [row for row in rows if len(row) > 1]
        if not rows:
            raise DataError("The texts hold no row of at least two tokens to compare the exported model on.")
        return rows, "rows of the given texts"
    if source.policy is None:
        generator = torch.Generator().manual_seed(derive_seed(seed, "export"))
        vocabulary = int(source.network.config.get_text_config().vocab_size)
        lengths = torch.randint(2, longest + 1, (num_rows,), generator=generator).tolist()
        return [
            torch.randint(0, vocabulary, (length,), generator=generator).tolist() for length in lengths
        ], "rows of random tokens"
    first = _first_token(source)
    starts = [_Start(f"export-{number}", [first]) for number in range(num_rows)]
    sampling = SamplingConfig(max_new_tokens=longest - 1)
    groups = LocalEngine(source.policy).generate(starts, num_samples=1, sampling=sampling, seed=seed, rollout_index=0)
    return [[first, *group[0].tokens] for group in groups], "rows that the model sampled itself"


def _rows_of(source: SourceModel, texts: Source, num_rows: int) -> list[list[int]]:
    tokenizer: Any = source.tokenizer
    rows = []
    for row in read_rows(texts, accepts=ACCEPTED["sft"], limit=num_rows):
        if isinstance(row, TextRow):
            rows.append(
                [_first_token(source), *tokenizer(row.text, add_special_tokens=False, verbose=False)["input_ids"]]
            )
        else:
            group = SFTDataset([row], tokenizer, add_eos=False)[0]
            rows.append([*group.prefix, *group.branches[0].tokens])
    return rows


def _first_token(source: SourceModel) -> int:
    tokenizer: Any = source.tokenizer
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    return 0
