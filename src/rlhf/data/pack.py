"""The packed batch: sequences that may share a prefix, every distinct token once, no padding.

Axes, here and in the whole library:

    [N]  tokens of the packed row: all prefixes and branches, end to end
    [M]  scored tokens: those whose log-probability a loss or a metric asks for
    [S]  sequences: a sequence is a prefix followed by one branch
    [G]  groups: the sequences of a group share their prefix
    [V]  vocabulary        [H]  hidden width

A preference pair is one group with two branches, a GRPO group one with G branches, an SFT row one with a single branch.

    prefix 0      branch 0.0  branch 0.1   prefix 1        branch 1.0
    a b c         d e         f g h        p q             r s
    0 1 2         3 4         3 4 5        0 1             2 3          <- positions
        `-----------^-----------^ the last prefix row predicts the first token of every branch
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf.errors import DataError


@dataclass(frozen=True, slots=True)
class Branch:
    """What follows a prefix."""

    tokens: Sequence[int]
    """Token ids, at least one."""
    scored: Sequence[bool] | None = None
    """Which of them a loss may see; None for all. In a chat only the assistant's own turns are scored."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences that share a prefix, as token ids: what tokenization gives and packing takes."""

    prefix: Sequence[int]
    """Shared token ids, at least one (nothing predicts the first token of a text, so it is never scored)."""
    branches: Sequence[Branch]
    """At least one."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the row carries: id, margin, label, reward columns ..."""

    @property
    def num_tokens(self) -> int:
        """Distinct tokens, which is what the group costs in a packed row."""
        return len(self.prefix) + sum(len(branch.tokens) for branch in self.branches)

    @property
    def num_scored(self) -> int:
        """Tokens that a loss sees."""
        return sum(len(b.tokens) if b.scored is None else sum(b.scored) for b in self.branches)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """See the top of this file. Immutable; ``to`` and ``with_columns`` give changed copies."""

    tokens: Tensor
    """int64 [N] all prefixes and branches, end to end."""
    positions: Tensor
    """int64 [N] position inside the full sequence; a branch goes on from its prefix's length."""
    prefix_start: Tensor
    """int32 [S] first row of the sequence's prefix."""
    prefix_len: Tensor
    """int32 [S]."""
    start: Tensor
    """int32 [S] first row of the sequence's branch."""
    length: Tensor
    """int32 [S] tokens in the branch."""
    group: Tensor
    """int64 [S] which group each sequence belongs to, 0 .. G-1 in order."""
    score_at: Tensor
    """int64 [M] row of ``tokens`` whose hidden state predicts the scored token."""
    score_token: Tensor
    """int64 [M] the token being scored."""
    score_seq: Tensor
    """int64 [M] the sequence it belongs to; never decreases."""
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    """[S, ...] per-sequence values: rewards, labels, margins."""
    token_columns: Mapping[str, Tensor] = field(default_factory=dict)
    """[M, ...] per-scored-token values: old_logprobs, advantages, returns."""
    ids: tuple[str, ...] = ()
    """[G] what messages call each row; empty where nobody said."""
    derived: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """What others computed from the layout alone (attention buckets); shared by copies with other columns."""

    @property
    def num_tokens(self) -> int:
        """N."""
        return self.tokens.numel()

    @property
    def num_scored(self) -> int:
        """M."""
        return self.score_at.numel()

    @property
    def num_sequences(self) -> int:
        """S."""
        return self.start.numel()

    @property
    def num_groups(self) -> int:
        """G."""
        return int(self.group[-1]) + 1

    @property
    def last(self) -> Tensor:
        """int64 [S] row of each sequence's last token: where a reward model reads its score."""
        return (self.start + self.length - 1).long()

    def at_last_tokens(self) -> PackedBatch:
        """The same tokens, with the state *after* each sequence's last token as the only one that is looked at: M = S.

        What a critic says of it is the value of going on, where a completion was cut.
        """
        sequences = torch.arange(self.num_sequences, device=self.tokens.device)
        # which token is scored there makes no difference to a value; the last one is at hand
        last = self.last
        return replace(self, score_at=last, score_token=self.tokens[last], score_seq=sequences, token_columns={})

    def to(self, device: torch.device | str) -> PackedBatch:
        """The same batch with every tensor on ``device``."""
        if self.tokens.device == torch.device(device):
            return self
        moved: dict[str, Any] = {}
        for name in self.__slots__:
            if name == "derived":
                continue
            value = getattr(self, name)
            if isinstance(value, Mapping):
                value = {k: v.to(device) for k, v in value.items()}
            moved[name] = value.to(device) if isinstance(value, Tensor) else value
        return PackedBatch(**moved)

    def with_columns(self, **columns: Tensor) -> PackedBatch:
        """A copy with more per-sequence columns, each [S, ...]."""
        for name, value in columns.items():
            assert len(value) == self.num_sequences, (
                f"column {name} has {len(value)} rows for {self.num_sequences} sequences"
            )
        return replace(self, columns={**self.columns, **columns})

    def with_token_columns(self, **columns: Tensor) -> PackedBatch:
        """A copy with more per-token columns, each [M, ...]."""
        for name, value in columns.items():
            assert len(value) == self.num_scored, (
                f"token column {name} has {len(value)} rows for {self.num_scored} tokens"
            )
        return replace(self, token_columns={**self.token_columns, **columns})

    def split(self) -> list[PackedBatch]:
        """One batch for each group, in order: what to look at when one row of a batch must be found."""
        parts = []
        for number in range(self.num_groups):
            of_sequence = self.group == number
            of_score = of_sequence[self.score_seq]
            chosen = of_sequence.nonzero().flatten()
            first = int(self.prefix_start[chosen[0]])
            end = int((self.start + self.length)[chosen[-1]])
            part = PackedBatch(
                tokens=self.tokens[first:end],
                positions=self.positions[first:end],
                prefix_start=self.prefix_start[chosen] - first,
                prefix_len=self.prefix_len[chosen],
                start=self.start[chosen] - first,
                length=self.length[chosen],
                group=torch.zeros_like(chosen),
                score_at=self.score_at[of_score] - first,
                score_token=self.score_token[of_score],
                score_seq=self.score_seq[of_score] - chosen[0],
                columns={name: value[chosen] for name, value in self.columns.items()},
                token_columns={name: value[of_score] for name, value in self.token_columns.items()},
                ids=self.ids[number : number + 1],
            )
            parts.append(part)
        return parts

    def check(self) -> None:
        """Raise AssertionError where the parts contradict each other; used by tests and ``rlhf doctor``."""
        num_tokens = self.num_tokens
        assert self.positions.shape == (num_tokens,)
        assert bool((self.prefix_len > 0).all())
        assert bool((self.length > 0).all())
        assert bool((self.start + self.length <= num_tokens).all())
        assert bool((self.score_at < num_tokens).all())
        assert bool((self.score_seq.diff() >= 0).all())
        first = self.positions[self.start.long()]
        assert torch.equal(first, self.prefix_len.long()), "a branch must go on from its prefix's length"
        row = self.score_at
        inside = (row >= self.start[self.score_seq]) & (row < (self.start + self.length)[self.score_seq])
        boundary = row == (self.prefix_start + self.prefix_len - 1)[self.score_seq]
        assert bool((inside | boundary).all()), "a token must be predicted from its own sequence"
        for name, value in self.columns.items():
            assert len(value) == self.num_sequences, name
        for name, value in self.token_columns.items():
            assert len(value) == self.num_scored, name


def pack(
    groups: Sequence[Group],
    *,
    columns: Mapping[str, Sequence[float] | Tensor] | None = None,
    token_columns: Mapping[str, Sequence[Sequence[float]]] | None = None,
) -> PackedBatch:
    """Lay groups end to end.

    Args:
        groups: At least one.
        columns: Per-sequence values, one for each branch in order.
        token_columns: Per-sequence lists with one value for each *scored* token of the branch, in order.

    Returns:
        The packed batch, on the CPU.

    Raises:
        DataError: A group without prefix, without branches, or with an empty branch.
    """
    if not groups:
        raise DataError("There is nothing to pack: the list of groups is empty.")
    tokens: list[int] = []
    positions: list[np.ndarray] = []
    prefix_start: list[int] = []
    prefix_len: list[int] = []
    start: list[int] = []
    length: list[int] = []
    group_of: list[int] = []
    score_at: list[np.ndarray] = []
    score_token: list[np.ndarray] = []
    score_seq: list[np.ndarray] = []
    for number, group in enumerate(groups):
        _check_group(group, number)
        first = len(tokens)
        size = len(group.prefix)
        tokens.extend(group.prefix)
        positions.append(np.arange(size))
        for branch in group.branches:
            here, count = len(tokens), len(branch.tokens)
            sequence = len(start)
            tokens.extend(branch.tokens)
            positions.append(np.arange(size, size + count))
            prefix_start.append(first)
            prefix_len.append(size)
            start.append(here)
            length.append(count)
            group_of.append(number)
            rows = np.arange(here - 1, here + count - 1)
            rows[0] = first + size - 1
            ids = np.asarray(branch.tokens, dtype=np.int64)
            if branch.scored is not None:
                mask = np.asarray(branch.scored, dtype=bool)
                rows, ids = rows[mask], ids[mask]
            score_at.append(rows)
            score_token.append(ids)
            score_seq.append(np.full(len(rows), sequence))
    return PackedBatch(
        tokens=torch.tensor(tokens, dtype=torch.int64),
        positions=torch.from_numpy(np.concatenate(positions).astype(np.int64)),
        prefix_start=torch.tensor(prefix_start, dtype=torch.int32),
        prefix_len=torch.tensor(prefix_len, dtype=torch.int32),
        start=torch.tensor(start, dtype=torch.int32),
        length=torch.tensor(length, dtype=torch.int32),
        group=torch.tensor(group_of, dtype=torch.int64),
        score_at=torch.from_numpy(np.concatenate(score_at).astype(np.int64)),
        score_token=torch.from_numpy(np.concatenate(score_token).astype(np.int64)),
        score_seq=torch.from_numpy(np.concatenate(score_seq).astype(np.int64)),
        columns={name: torch.as_tensor(value) for name, value in (columns or {}).items()},
        token_columns={
            name: torch.tensor([number for row in rows for number in row], dtype=torch.float32)
            for name, rows in (token_columns or {}).items()
        },
        ids=tuple(str(group.columns.get("id", number)) for number, group in enumerate(groups)),
    )


def _check_group(group: Group, number: int) -> None:
    where = group.columns.get("id", f"number {number}")
    if not len(group.prefix):
        raise DataError(f"Group {where} has an empty prefix; give it at least one token, such as BOS.")
    if not group.branches:
        raise DataError(f"Group {where} has no completion; give it at least one.")
    for branch in group.branches:
        if not len(branch.tokens):
            raise DataError(f"Group {where} has an empty completion; give it at least one token, such as EOS.")
        if branch.scored is not None and len(branch.scored) != len(branch.tokens):
            raise DataError(
                f"Group {where} has {len(branch.scored)} score marks for {len(branch.tokens)} tokens; give one for each token."
            )


def split_by_tokens(groups: Iterable[Group], *, max_tokens: int) -> list[list[Group]]:
    """Cut a list into consecutive runs of at most ``max_tokens`` distinct tokens; a larger group stands alone.

    The order is kept, so the result of training does not depend on where the cuts fall.
    """
    runs: list[list[Group]] = []
    room = 0
    for group in groups:
        if not runs or group.num_tokens > room:
            runs.append([])
            room = max_tokens
        runs[-1].append(group)
        room -= group.num_tokens
    return runs
