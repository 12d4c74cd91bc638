"""Log-likelihood of given texts: each token scored once, with the bytes it stands for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rlhf.data.accepted import ACCEPTED
from rlhf.data.contracts import Row, TextRow
from rlhf.data.datasets import SFTDataset
from rlhf.data.pack import Branch, Group, pack, split_by_tokens
from rlhf.data.read import read_rows
from rlhf.data.sources import Source
from rlhf.errors import DataError
from rlhf.evaluation.intervals import Array
from rlhf.evaluation.measures import TOKENS_PER_BATCH
from rlhf.losses import segment_sum
from rlhf.models.policy import PolicyModel
from rlhf.models.score import base_model, context_length, evaluating

MAX_WINDOW = 2048
"""Tokens read at once of a plain text that is longer, where the model has no limit or a higher one."""


@dataclass(frozen=True, slots=True)
class TextLikelihood:
    """Of U texts."""

    nll: Array
    """[U] negative log-likelihood of all scored tokens of a text, nats."""
    num_tokens: Array
    """[U] how many those are."""
    num_bytes: Array
    """[U] UTF-8 bytes that they stand for; special tokens stand for none."""
    window: int
    """Tokens read at once of a plain text."""


@torch.no_grad()
def text_likelihood(model: PolicyModel, source: Source, *, limit: int | None = None) -> TextLikelihood:
    """Score texts, demonstrations or dialogues.

    A plain text is scored whole, its first token after BOS (EOS where there is no BOS); a longer one than the window in windows that
    overlap by half, so that each token is scored once and has at least half a window of context. Of demonstrations the completions are
    scored, of dialogues the assistant's turns, as in SFT, without an EOS that the text does not hold.

    Args:
        model: Who reads.
        source: Rows of the kinds that SFT takes; bare strings are texts.
        limit: Use only this many rows.

    Raises:
        DataError: A demonstration or dialogue is longer than the model's context, or nothing in a row can be scored.
    """
    rows = list(read_rows(source, accepts=ACCEPTED["sft"], limit=limit))
    longest = context_length(base_model(model.model))
    window = min(longest or MAX_WINDOW, MAX_WINDOW)
    groups, owners, num_bytes = [], [], np.zeros(len(rows))
    for number, (row, row_windows) in enumerate(_groups(model, rows, window, longest)):
        text_bytes = 0
        for group in row_windows:
            groups.append(group)
            owners.append(number)
            text_bytes += _bytes_of(model, group)
        num_bytes[number] = len(row.text.encode()) if isinstance(row, TextRow) else text_bytes
        if not num_bytes[number]:
            raise DataError(f"{row.where or row.id}: there is no text to score; leave the row out.")
    nll, num_tokens = np.zeros(len(rows)), np.zeros(len(rows))
    with evaluating(model.model):
        done = 0
        for part in split_by_tokens(groups, max_tokens=TOKENS_PER_BATCH):
            batch = pack(part)
            logprobs = model.score(batch).logprobs.cpu().double()
            count = batch.num_sequences
            sums = segment_sum(-logprobs, batch.score_seq, count).numpy()
            sizes = np.bincount(batch.score_seq.cpu().numpy(), minlength=count)
            at = owners[done : done + count]
            np.add.at(nll, at, sums)
            np.add.at(num_tokens, at, sizes)
            done += count
    return TextLikelihood(nll, num_tokens, num_bytes, window)


def windows(ids: Sequence[int], first: int, size: int) -> Iterator[Group]:
    """Groups that score each of ``ids`` once: the context of a window is its prefix, which is never scored.

    Args:
        ids: At least one.
        first: Stands before the first of them.
        size: Tokens of a window, context included, at least 2.
    """
    yield Group([first], [Branch(ids[: size - 1])])
    step = max(1, size // 2)
    for start in range(size - 1, len(ids), step):
        context = size - step
        yield Group(ids[start - context : start], [Branch(ids[start : start + step])])


def _groups(
    model: PolicyModel, rows: Sequence[Row], window: int, longest: int | None
) -> Iterator[tuple[Row, list[Group]]]:
    tokenizer: Any = model.tokenizer
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    for row in rows:
        if isinstance(row, TextRow) and first is not None:
            ids = tokenizer(row.text, add_special_tokens=False, verbose=False)["input_ids"]
            if not ids:
                raise DataError(f"{row.where or row.id}: the text is empty; leave the row out.")
            yield row, list(windows(ids, first, window))
        else:
            yield row, list(SFTDataset([row], tokenizer, add_eos=False, max_length=longest))


def _bytes_of(model: PolicyModel, group: Group) -> int:
    """Of the scored tokens; a space that only shows between two tokens counts to the second."""
    tokenizer: Any = model.tokenizer

    def size(ids: Sequence[int]) -> int:
        return len(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False).encode())

    total = 0
    for branch in group.branches:
        if branch.scored is None:
            total += size([*group.prefix, *branch.tokens]) - size(group.prefix)
        else:
            total += size([token for token, scored in zip(branch.tokens, branch.scored, strict=True) if scored])
    return total
