"""Rows tokenized in several processes, with the items, their order, the counts and the errors of one process.

Batches go round the processes, one at a time to each, and come back in their order. Each process is a fresh interpreter and not a
fork, which would inherit torch's and the tokenizer's threads in whatever state they are. What a process can't do, because a row is
bad, is done again here, so that the error is the one that a single process raises.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from rlhf.data.contracts import Row
from rlhf.data.dataset_options import opened_with
from rlhf.data.message_text import one_line
from rlhf.data.plans import PLANS, Item, Plan
from rlhf.data.row_report import TokenizationReport
from rlhf.data.tokenization import Tokenization
from rlhf.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

START = "import sys; from rlhf.data.worker_pool import main; main(int(sys.argv[1]))"
"""Not ``-m``: the messages' classes must have their own module's name when they are pickled, not ``__main__``'s."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a process is sent first."""

    plan: str
    """Key of ``PLANS``."""
    tokenizer: PreTrainedTokenizerBase
    options: Mapping[str, Any]
    """``DatasetOptions``."""


class WorkerPool:
    """So many processes, each started when there is a first batch for it.

    Args:
        num_workers: Processes, 2 or more.
        plan: Of the kind of data set, as it is in ``PLANS``.
        tokenizer: Its ids are what the model knows.
        options: ``DatasetOptions``.

    Raises:
        ConfigError: The kind of data set or the tokenizer can't be sent to another process.
    """

    def __init__(
        self, num_workers: int, plan: Plan, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any]
    ) -> None:
        name = next((name for name, known in PLANS.items() if known is plan), None)
        if name is None:
            raise ConfigError("workers are for the data sets of this library; leave workers out for one of your own.")
        try:
            self._start = pickle.dumps(Start(name, tokenizer, options))
        except Exception as err:  # whatever a tokenizer of one's own raises
            raise ConfigError(
                f"The tokenizer can't be sent to another process ({type(err).__name__}: {one_line(err)}); leave workers out."
            ) from err
        self._workers: list[_Worker | None] = [None] * num_workers

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.end()

    def items(
        self,
        batches: Iterable[Sequence[Row]],
        plan: Plan,
        how: Tokenization,
        report: TokenizationReport,
        *,
        skip_bad_rows: bool,
    ) -> Iterator[list[Item]]:
        """What ``plan.items`` gives for each batch, in order; the counts are added to ``report``.

        Raises:
            DataError: As ``plan.items``, or reading ``batches``, raises it; or a process ended.
        """
        waiting: deque[tuple[Sequence[Row], _Worker]] = deque()
        source, number, unread = iter(batches), 0, None
        is_over = False
        while True:
            while not is_over and len(waiting) < len(self._workers):
                try:
                    batch = next(source)
                except StopIteration:
                    is_over = True
                except Exception as err:  # after what was read before it: an error there comes first
                    is_over, unread = True, err
                else:
                    waiting.append((batch, self._send(number, batch)))
                    number += 1
            if not waiting:
                break
            batch, worker = waiting.popleft()
            done = worker.receive()
            if done is None:
                yield plan.items(batch, how, report, skip_bad_rows=skip_bad_rows)
                continue
            items, counts = done
            report.add(counts)
            for row in batch:
                report.count_columns(row)  # here: only the first hundred names of all rows count
            yield items
        if unread is not None:
            raise unread

    def _send(self, number: int, batch: Sequence[Row]) -> _Worker:
        place = number % len(self._workers)
        worker = self._workers[place]
        if worker is None:
            worker = self._workers[place] = _Worker(self._start)
        worker.send(batch)
        return worker


class _Worker:
    """A process that has at most one batch."""

    def __init__(self, start: bytes) -> None:
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a library prints there must not mix with what a command prints
                start_new_session=True,
                env=os.environ
                | {
                    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                    "TOKENIZERS_PARALLELISM": "false",
                    "OMP_NUM_THREADS": "1",
                },
            )
        self._pipe: Connection = ours
        self._end = weakref.finalize(self, _kill, self._process)
        self._can_be_sent = True
        with self._naming():
            ours.send_bytes(start)

    def send(self, batch: Sequence[Row]) -> None:
        """A batch; ``receive`` comes next."""
        try:
            message = pickle.dumps(batch)
        except Exception:  # a column that is not a plain value
            self._can_be_sent = False
            return
        with self._naming():
            self._pipe.send_bytes(message)

    def receive(self) -> tuple[list[Item], TokenizationReport] | None:
        """Items and counts; None where the batch must be done here.

        Raises:
            DataError: The process ended.
        """
        if not self._can_be_sent:
            self._can_be_sent = True
            return None
        with self._naming():
            answer: tuple[list[Item], TokenizationReport] | None = pickle.loads(self._pipe.recv_bytes())
        return answer

    def end(self) -> None:
        """Whatever is under way."""
        self._pipe.close()
        self._end()

    def _naming(self) -> _Naming:
        return _Naming(self._process)


class _Naming:
    """Inside, a broken pipe is an error that says how the process ended."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, EOFError | OSError):
            status = self._process.wait(timeout=10)
            how = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
            raise DataError(
                f"A process that tokenizes rows {how}; what it printed says why. With fewer workers less memory is needed."
            ) from error


def main(descriptor: int) -> None:
    """Serve batches until the other end of the pipe closes.

    Args:
        descriptor: Of the pipe.
    """
    pipe = Connection(descriptor)
    try:
        start: Start = pickle.loads(pipe.recv_bytes())
        plan, how, reading = opened_with(PLANS[start.plan], start.tokenizer, start.options, name="worker")
        skip = reading.get("on_bad_row") == "skip"
        while True:
            batch: Sequence[Row] = pickle.loads(pipe.recv_bytes())
            report = TokenizationReport()
            try:
                answer: bytes = pickle.dumps((plan.items(batch, how, report, skip_bad_rows=skip), report))
            except Exception:  # done again where the run is, which says what is wrong
                answer = pickle.dumps(None)
            pipe.send_bytes(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
