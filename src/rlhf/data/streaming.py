"""Data sets that are read while training goes on, and that go on at the same row after a restart.

Rows are read, tokenized and, where asked for, shuffled in blocks: a block of ``shuffle_buffer`` rows is filled, put in
an order that depends on (seed, epoch, number of the block), and emptied. So the whole state is where the block begins and
how far it was emptied: a few numbers instead of a buffer of rows, and a resumed stream gives the same tokens.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, Unpack, cast

from rlhf.data import plans
from rlhf.data.contracts import Prompt, Row
from rlhf.data.dataset_options import DatasetOptions, opened_with
from rlhf.data.message_text import listed, one_line
from rlhf.data.pack import Group
from rlhf.data.plans import Item, Plan
from rlhf.data.read import Cursor, open_rows
from rlhf.data.row_report import TokenizationReport, nothing_left
from rlhf.data.sources import Source, source_name
from rlhf.errors import CheckpointError, ConfigError, DataError
from rlhf.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ItemT = TypeVar("ItemT", Group, Prompt)
BLOCK_ROWS = 256
"""Rows tokenized together where nothing is shuffled."""


class StreamingDataset(Generic[ItemT]):
    """What the streams have in common; made by one of the classes below.

    Iterating gives one epoch, from wherever the stream stands: after a ``break`` the next loop goes on behind the last
    item, after the last item it begins the next epoch. One loop at a time.
    """

    plan: ClassVar[Plan]
    report: TokenizationReport
    """What happened to the rows of this epoch so far."""

    def __init__(
        self,
        source: Source,
        tokenizer: PreTrainedTokenizerBase,
        *,
        shuffle_buffer: int = 0,
        seed: int = 0,
        **options: Unpack[DatasetOptions],
    ) -> None:
        """Open a source; nothing is read yet.

        Args:
            source: See ``rlhf.data.read.open_rows``.
            tokenizer: See ``TokenizedDataset``.
            shuffle_buffer: Rows shuffled together; 0 keeps the order of the file.
            seed: Of the shuffling.
            options: See ``TokenizedDataset``.
        """
        if shuffle_buffer < 0:
            raise ConfigError(f"shuffle_buffer is {shuffle_buffer}; wanted 0 (no shuffling) or a number of rows.")
        self._plan, self.how, reading = opened_with(self.plan, tokenizer, options, name=type(self).__name__)
        self.report = TokenizationReport()
        self.epoch = 0
        self.seed = seed
        self.shuffle_buffer = shuffle_buffer
        self._skip_bad_rows = reading.get("on_bad_row") == "skip"
        self._name = source_name(source)
        self._stream = open_rows(source, accepts=self._plan.accepts, strings_are=self._plan.strings_are, **reading)
        self._cursor: Cursor = (0, 0)
        self._num_rows = 0
        self._block = 0
        self._done_of_block = 0
        self._report_before = TokenizationReport().to_dict()

    def __iter__(self) -> Iterator[ItemT]:
        while True:
            items, cursor, num_rows = self._read_block()
            while self._done_of_block < len(items):
                row, stored = items[self._done_of_block]
                self._done_of_block += 1  # before the yield: anyone who has the item may save the state
                yield cast(ItemT, stored.item(row))
            self._cursor, self._num_rows = cursor, self._num_rows + num_rows
            self._block += 1
            self._done_of_block = 0
            self._report_before = self.report.to_dict()
            if num_rows < self._block_rows:
                break
        if self.report.num_usable == 0:
            raise DataError(nothing_left(self._name, self.report))
        self.epoch += 1
        self._begin_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, as plain numbers and strings."""
        return {
            "data": self._stream.fingerprints,
            "seed": self.seed,
            "shuffle_buffer": self.shuffle_buffer,
            "epoch": self.epoch,
            "cursor": list(self._cursor),
            "num_rows": self._num_rows,
            "block": self._block,
            "done_of_block": self._done_of_block,
            "report": self._report_before,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the saved stream stood.

        Raises:
            CheckpointError: The state is of other data or another order of rows, or not a whole state.
        """
        for name, value in {"seed": self.seed, "shuffle_buffer": self.shuffle_buffer}.items():
            if state.get(name) != value:
                raise CheckpointError(
                    f"The saved state of the data stream has {name} {state.get(name)!r}, and this stream has "
                    f"{value!r}; resume with the same data and settings, or start over."
                )
        self._check_same_data(state.get("data"))
        try:
            part, place = state["cursor"]
            cursor = (int(part), dict(place) if isinstance(place, dict) else int(place))
            counts = [int(state[name]) for name in ("epoch", "num_rows", "block", "done_of_block")]
            TokenizationReport.from_dict(state["report"])
        except (KeyError, TypeError, ValueError) as err:
            raise CheckpointError(
                f"The saved state of the data stream is not whole ({type(err).__name__}: {one_line(err)}); resume from an "
                "earlier checkpoint, or start over."
            ) from err
        self._cursor = cursor
        self.epoch, self._num_rows, self._block, self._done_of_block = counts
        self._report_before = state["report"]

    def _check_same_data(self, saved: Any) -> None:
        """Refuse a cursor into files that are not what they were: it would point at other rows."""
        mine = self._stream.fingerprints
        if saved == mine:
            return
        theirs = list(saved) if isinstance(saved, list) else []
        advice = "put the old data back, or start over without the checkpoint."
        if len(theirs) != len(mine):
            raise CheckpointError(
                f"The saved state of the data stream is of {len(theirs)} files ({listed(theirs)}), and the data now are "
                f"{len(mine)} ({listed(mine)}); {advice}"
            )
        number = next(number for number, pair in enumerate(zip(theirs, mine, strict=True)) if pair[0] != pair[1])
        raise CheckpointError(
            f"{self._stream.parts[number].where or 'The list of rows'} is not the data that the checkpoint was written "
            f"with: its name and content were {theirs[number]!r} and are {mine[number]!r}; {advice}"
        )

    @property
    def _block_rows(self) -> int:
        return self.shuffle_buffer or BLOCK_ROWS

    def _begin_epoch(self) -> None:
        self._cursor = (0, 0)
        self._num_rows = 0
        self._block = 0
        self._done_of_block = 0
        self._report_before = TokenizationReport().to_dict()

    def _read_block(self) -> tuple[list[Item], Cursor, int]:
        """Items of the block at the cursor in their final order, the cursor behind it, and its number of rows."""
        self.report = TokenizationReport.from_dict(self._report_before)
        self._stream.bad_rows = []
        rows: list[Row] = []
        cursor = self._cursor
        source = self._stream.from_cursor(self._cursor, num_before=self._num_rows)
        for row, behind in itertools.islice(source, self._block_rows):
            rows.append(row)
            cursor = behind
        if callable(cursor[1]):
            cursor = (cursor[0], cursor[1]())
        self.report.num_rows += len(self._stream.bad_rows)
        self.report.bad_rows += self._stream.bad_rows
        items = self._plan.items(rows, self.how, self.report, skip_bad_rows=self._skip_bad_rows)
        if self.shuffle_buffer:
            random.Random(derive_seed(self.seed, "shuffle", self.epoch, self._block)).shuffle(items)
        return items, cursor, len(rows)


class StreamingSFTDataset(StreamingDataset[Group]):
    """``SFTDataset`` as a stream."""

    plan = plans.SFT


class StreamingPreferenceDataset(StreamingDataset[Group]):
    """``PreferenceDataset`` as a stream."""

    plan = plans.PREFERENCE


class StreamingComparisonDataset(StreamingDataset[Group]):
    """``ComparisonDataset`` as a stream."""

    plan = plans.COMPARISON


class StreamingRankingDataset(StreamingDataset[Group]):
    """``RankingDataset`` as a stream."""

    plan = plans.RANKING


class StreamingRatingDataset(StreamingDataset[Group]):
    """``RatingDataset`` as a stream."""

    plan = plans.RATING


class StreamingKTODataset(StreamingDataset[Group]):
    """``KTODataset`` as a stream."""

    plan = plans.KTO


class StreamingStepwiseDataset(StreamingDataset[Group]):
    """``StepwiseDataset`` as a stream."""

    plan = plans.PLANS["stepwise"]


class StreamingGRPODataset(StreamingDataset[Prompt]):
    """``GRPODataset`` as a stream."""

    plan = plans.PROMPT
