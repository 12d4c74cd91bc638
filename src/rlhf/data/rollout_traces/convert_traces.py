"""``rlhf data traces``: rollouts or traces, from file to file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rlhf.data.json_rows import read_jsonl
from rlhf.data.message_text import counted, printable
from rlhf.data.raw import Unreadable
from rlhf.data.rollout_traces.rollout_episodes import Decode, NeedsTokenizerError, episode_of_row, is_rollout_row
from rlhf.data.rollout_traces.trace_format import TracedEpisode, TraceFormatError, read_episode
from rlhf.data.rollout_traces.training_rows import ROW_WRITERS, LeftOut, check_least_reward
from rlhf.data.write import write_rows
from rlhf.errors import ConfigError, DataError, look_up

ROLLOUTS = "rollouts.jsonl"
TRACES = "traces"
TARGETS = {TRACES: TRACES, **{name: name for name in ROW_WRITERS}}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceReport:
    """What was written, and what was not."""

    source: str
    written: str
    to: str
    num_read: int
    """Completions or traces."""
    num_written: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Reason -> how many traces or groups of them."""

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    def to_text(self) -> str:
        """One line, then one for each reason."""
        noun = {TRACES: "episode"}.get(self.to, f"{self.to} row")
        line = f"{self.source}: {counted(self.num_read, 'episode')} read, {counted(self.num_written, noun)} written to {self.written}"
        return "\n".join([line, *(f"  left out: {count:,}, {why}" for why, count in self.left_out.items())])


def run_traces(
    source: Path,
    out: Path,
    *,
    to: str = TRACES,
    load_decoder: Callable[[], Decode] | None = None,
    least_reward: float | None = None,
) -> TraceReport:
    """Write episodes as traces, as demonstrations or as pairs.

    Args:
        source: The folder of a policy stage, a ``rollouts.jsonl``, or a file of traces.
        out: File to write, ``.jsonl``.
        to: ``traces``, or a name in ``ROW_WRITERS``.
        load_decoder: Asked once, where an episode has turns of an environment: gives what makes texts of token ids.
        least_reward: See ``rlhf.data.rollout_traces.training_rows``.

    Raises:
        DataError: A line is damaged; names the file, the line and the key. Nothing was written. Or nothing is left to write.
        ConfigError: An option that does nothing, a name that is not ``.jsonl``, or an unknown ``to``.
    """
    look_up(TARGETS, to, kind="target of `--to`")
    check_least_reward(to, least_reward)
    path, called = _file_of(source)
    if not printable(out).endswith((".jsonl", ".jsonl.gz")):
        raise ConfigError(
            f"{printable(out)} has one object on each line; give it a name that ends in .jsonl or .jsonl.gz."
        )
    if out.resolve() == path.resolve():
        raise ConfigError(f"{printable(out)} is the file that is read; give the output another name.")
    episodes, left_out = EpisodeFile(path, called, load_decoder), LeftOut()
    rows = (
        (episode.to_record() for episode in episodes)
        if to == TRACES
        else ROW_WRITERS[to](episodes, left_out, least_reward)
    )
    num_written = _write(out, rows, episodes, left_out)
    return TraceReport(
        source=printable(path), written=printable(out), to=to,
        num_read=episodes.num_read, num_written=num_written, left_out=dict(left_out.reasons),
    )  # fmt: skip


def _write(out: Path, rows: Iterator[dict[str, Any]], episodes: EpisodeFile, left_out: LeftOut) -> int:
    """The rows; nothing is written where there is none."""
    first = next(rows, None)
    if first is None:
        why = "; ".join(f"{count:,}: {reason}" for reason, count in left_out.reasons.items())
        raise DataError(
            f"{printable(episodes.path)}: nothing is left of {counted(episodes.num_read, 'episode')} to write{f' ({why})' if why else ''}."
        )

    def all_rows() -> Iterator[dict[str, Any]]:
        yield first
        yield from rows

    return write_rows(out, all_rows())


class EpisodeFile:
    """The episodes of a file, one after the other."""

    def __init__(self, path: Path, called: str, load_decoder: Callable[[], Decode] | None) -> None:
        self.path = path
        self.called = called
        self.load_decoder = load_decoder
        self.num_read = 0
        self._decode: Decode | None = None

    def __iter__(self) -> Iterator[TracedEpisode]:
        for raw in read_jsonl(self.path, 0):
            where = f"{printable(self.path)}:{raw.place}"
            if isinstance(raw.value, Unreadable):
                raise DataError(f"{where}: {raw.value.reason}")
            try:
                episode = self._episode(raw.value)
            except NeedsTokenizerError as err:
                raise ConfigError(f"{where}: {err}; name the policy's tokenizer with --tokenizer.") from None
            except TraceFormatError as err:
                raise DataError(f"{where}: {err}{'' if str(err).endswith(('.', '?')) else '.'}") from None
            self.num_read += max(1, len(episode.traces))
            yield episode
        if not self.num_read:
            raise DataError(f"{printable(self.path)} holds no rows; wanted rollouts of a policy stage, or traces.")

    def _episode(self, value: Any) -> TracedEpisode:
        if not is_rollout_row(value):
            return read_episode(value)
        try:
            return episode_of_row(value, source=self.called, decode=self._decode)
        except NeedsTokenizerError:
            if self.load_decoder is None:
                raise
            self._decode = self.load_decoder()
            return episode_of_row(value, source=self.called, decode=self._decode)


def _file_of(source: Path) -> tuple[Path, str]:
    """The file, and what the policy in it is called: run and stage."""
    path = source / ROLLOUTS if source.is_dir() else source
    if not path.is_file():
        inside = sorted(str(each.parent.name) for each in source.glob(f"*/{ROLLOUTS}")) if source.is_dir() else []
        hint = f" It is a run: give one of its stages, such as {source / inside[0]}." if inside else ""
        raise DataError(
            f"There is no file {printable(path)}."
            + (hint or " Policy stages (ppo, grpo ...) write rollouts.jsonl; a file of traces has one on each line.")
        )
    folder = path.resolve().parent
    return path, f"{folder.parent.name}/{folder.name}"
