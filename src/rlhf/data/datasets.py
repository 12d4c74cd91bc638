"""Data sets in memory: every row is tokenized when the data set is made, so that errors show before training.

Ids are stored as 32-bit arrays (100,000 rows of 300 tokens are 120 MB) and become a ``Group`` or ``Prompt`` on access.
Data too large for that streams: see ``streaming``.
"""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Generic, Self, TypeVar, Unpack, cast, overload

from rlhf.data import plans
from rlhf.data.contracts import Prompt, Row
from rlhf.data.dataset_options import DatasetOptions, opened_with
from rlhf.data.dedup import duplicate_groups, row_text
from rlhf.data.pack import Group
from rlhf.data.plans import Item, Plan
from rlhf.data.read import open_rows
from rlhf.data.row_report import TokenizationReport, nothing_left
from rlhf.data.sources import Source, source_name
from rlhf.data.split import SplitBy, held_out_numbers
from rlhf.data.tokenization import Tokenization
from rlhf.data.worker_pool import WorkerPool
from rlhf.data.write import columns_of, write_rows
from rlhf.errors import ConfigError, DataError

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

ItemT = TypeVar("ItemT", Group, Prompt)
ROWS_AT_ONCE = 1000
"""Rows given to the tokenizer together: enough for its threads, little for memory."""


class TokenizedDataset(Generic[ItemT]):
    """What the data sets in memory have in common; made by one of the classes below."""

    plan: ClassVar[Plan]
    how: Tokenization
    """How texts became ids."""
    report: TokenizationReport
    """What happened to the rows on the way, bad ones included."""

    def __init__(
        self,
        source: Source,
        tokenizer: PreTrainedTokenizerBase,
        *,
        workers: int = 1,
        **options: Unpack[DatasetOptions],
    ) -> None:
        """Read and tokenize.

        Args:
            source: See ``rlhf.data.read.open_rows``.
            tokenizer: Its ids are what the model knows. Stepwise rows need a fast one.
            workers: Processes that tokenize; 1 for this one. Items, counts and errors are the same with any number.
            options: ``max_length``, ``max_prompt_length``, ``truncation``, ``chat_template``, ``allow_lost_fields`` and, where the kind has
                them, ``add_eos``, ``train_on`` and ``step_separator``: see ``DatasetOptions``. Of the reading: ``on_bad_row``,
                ``columns``, ``split``, ``subset``, ``limit``.
        """
        if workers < 1:
            raise ConfigError(f"workers is {workers}; wanted at least 1.")
        plan, self.how, reading = opened_with(self.plan, tokenizer, options, name=type(self).__name__)
        self.report = TokenizationReport()
        skip = reading.get("on_bad_row") == "skip"
        self._items: list[Item] = []
        stream = open_rows(source, streaming=False, accepts=plan.accepts, strings_are=plan.strings_are, **reading)
        batches = _batches(stream)
        if workers == 1:
            for batch in batches:
                self._items += plan.items(batch, self.how, self.report, skip_bad_rows=skip)
        else:
            options["allow_lost_fields"] = self.how.chat.allow_lost_fields  # another process does not know the stage's
            with WorkerPool(workers, self.plan, tokenizer, options) as pool:
                for items in pool.items(batches, plan, self.how, self.report, skip_bad_rows=skip):
                    self._items += items
        self.report.num_rows += len(stream.bad_rows)
        self.report.bad_rows = stream.bad_rows + self.report.bad_rows
        if not self._items:
            raise DataError(nothing_left(source_name(source), self.report))
        self._give_each_its_own_id()

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> ItemT: ...
    @overload
    def __getitem__(self, index: slice) -> list[ItemT]: ...
    def __getitem__(self, index: int | slice) -> ItemT | list[ItemT]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        row, stored = self._items[index]
        return cast(ItemT, stored.item(row))

    def __iter__(self) -> Iterator[ItemT]:
        for number in range(len(self)):
            yield self[number]

    @property
    def rows(self) -> list[Row]:
        """The rows as text, in order, one for each item."""
        return [row for row, _ in self._items]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each item's longest sequence."""
        return [stored.length for _, stored in self._items]

    def split(self, test_frac: float, seed: int, *, by: SplitBy = "prompt") -> tuple[Self, Self]:
        """Part the data into train and test, so that nothing leaks.

        Which rows are for testing depends on the rows and the seed alone, not on the order of rows.

        Args:
            test_frac: Share of items for testing, in (0, 1); at least one.
            seed: Of this split.
            by: ``prompt`` keeps rows with the same prompt on one side; ``row`` is for data in which all have the same.

        Raises:
            DataError: All items have the same prompt (or, by row, the same texts), so one side would be empty.
        """
        if not 0 < test_frac < 1:
            raise ConfigError(f"test_frac is {test_frac}; wanted a share between 0 and 1.")
        test = held_out_numbers(self.rows, test_frac, seed=seed, by=by)
        for_testing = set(test)
        train = [number for number in range(len(self)) if number not in for_testing]
        return self._subset(train), self._subset(test)

    def filter_length(self, *, min_tokens: int = 0, max_tokens: int | None = None) -> Self:
        """Only the items whose longest sequence has from ``min_tokens`` to ``max_tokens`` tokens."""
        kept = [
            number
            for number, length in enumerate(self.lengths)
            if length >= min_tokens and (max_tokens is None or length <= max_tokens)
        ]
        if not kept:
            raise DataError(
                f"No item has {min_tokens} to {max_tokens} tokens; the shortest has {min(self.lengths)}, "
                f"the longest {max(self.lengths)}."
            )
        return self._subset(kept)

    def deduplicate(self, *, near: float | None = None) -> Self:
        """The first of every set of equal rows; with ``near`` also of rows at least so similar (Jaccard, 0 to 1)."""
        groups = duplicate_groups([row_text(row) for row in self.rows], near=near)
        dropped = {number for group in groups for number in group[1:]}
        return self._subset([number for number in range(len(self)) if number not in dropped])

    def save_jsonl(self, path: str | os.PathLike[str]) -> int:
        """Write the rows as text, one JSON object a line; returns how many."""
        return write_rows(path, self.rows)

    def to_datasets(self) -> Dataset:
        """The rows as a ``datasets.Dataset``."""
        import datasets

        rows = [row.to_dict() for row in self.rows]
        return datasets.Dataset.from_dict({name: [row.get(name) for row in rows] for name in columns_of(rows)})

    def _subset(self, numbers: Sequence[int]) -> Self:
        part = copy.copy(self)
        part._items = [self._items[number] for number in numbers]
        return part

    def _give_each_its_own_id(self) -> None:
        """Seeds of samples and cached scores depend on ids, so two items must not share one."""
        seen: dict[str, int] = {}
        for number, (row, stored) in enumerate(self._items):
            count = seen[row.id] = seen.get(row.id, 0) + 1
            if count > 1:
                self.report.repeated_ids += 1
                new = f"{row.id}#{count}"
                while new in seen:
                    count += 1
                    new = f"{row.id}#{count}"
                seen[new] = 1
                self._items[number] = (replace(row, id=new), stored)


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in lists of ``ROWS_AT_ONCE``."""
    source = iter(rows)
    while batch := list(itertools.islice(source, ROWS_AT_ONCE)):
        yield batch


class SFTDataset(TokenizedDataset[Group]):
    """Demonstrations, dialogues or texts: each a group with one branch.

    Takes completion, messages, text and preference rows (of a pair, the chosen side).
    """

    plan = plans.SFT


class PreferenceDataset(TokenizedDataset[Group]):
    """Pairs: each a group with two branches, chosen first.

    Takes preference, comparison and ranking rows. Ties and pairs of equal texts are left out and counted.
    """

    plan = plans.PREFERENCE


class ComparisonDataset(TokenizedDataset[Group]):
    """Pairs and ties: each a group with two branches, chosen first, or with the column ``tied``.

    Takes what ``PreferenceDataset`` takes, and keeps comparisons without a winner and equal ranks.
    """

    plan = plans.COMPARISON


class RankingDataset(TokenizedDataset[Group]):
    """Rankings: each a group with a branch for each completion, and the column ``ranks`` (smaller is better).

    Takes ranking rows, and preference and comparison rows as rankings of two. A ranking of equals is left out and counted.
    """

    plan = plans.RANKING


class RatingDataset(TokenizedDataset[Group]):
    """Rated completions: each a group with one branch and the column ``rating`` (1 to 5).

    Takes rating rows, and every completion of a ranking row with ratings.
    """

    plan = plans.RATING


class KTODataset(TokenizedDataset[Group]):
    """Single completions with a verdict: each a group with one branch and the column ``label`` (True = desirable).

    Takes unpaired rows, and both sides of preference and comparison rows.
    """

    plan = plans.KTO


class StepwiseDataset(TokenizedDataset[Group]):
    """Solutions in steps: each a group with one branch and the columns ``step_ends`` and ``labels``.

    Takes stepwise rows. EOS is not part of a step, so none is added.
    """

    plan = plans.PLANS["stepwise"]


class GRPODataset(TokenizedDataset[Prompt]):
    """Prompts to sample from, with whatever columns the reward functions want.

    Takes prompt rows and bare strings, and the prompt of any other row that has one.
    """

    plan = plans.PROMPT
