"""The plan carried out: tensor by tensor into shards of a hidden folder, which is renamed when everything is in it.

    .OUT.merging/plan.json                what is being merged; another plan starts over
    .OUT.merging/model-0000N-of-0000M.safetensors
    .OUT.merging/.done/N.json             numbers of a shard that is complete and on the disk

A process that was killed leaves the folder; the same merge goes on with the first shard that is not complete. Each tensor depends on
nothing but its parents and the seed, so the bits are those of an unbroken merge.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.config.merging import MergeConfig
from rlhf.config.threads import check_threads, usable_cores
from rlhf.errors import ConfigError, ModelError, RLHFError, RunBusyError, StorageError, check_number, check_type
from rlhf.files import check_space, delete, fsync, make_folder, sha256_once, storage_errors, write_json
from rlhf.merging.adapter_merge import merge_adapters, plan_adapters
from rlhf.merging.combine import is_by_parts, is_read_by_parts, merge_tensor, survey
from rlhf.merging.merge_plan import MergePlan, TensorTask, count_of, plan_merge
from rlhf.merging.merge_report import REPORT_FILE, MergeReport, report_of
from rlhf.merging.method_table import code_of
from rlhf.merging.output_folder import check_empty, finished
from rlhf.merging.safetensors_file import Files, laid_out, write_tensor
from rlhf.merging.side_files import write_side_files
from rlhf.version import __version__

SHARD_BYTES = 5 * 10**9
PLAN, DONE = "plan.json", ".done"
NOT_HASHED = "not hashed"
INDEX = "model.safetensors.index.json"
Progress = Callable[[int, int], None]
"""Called with how many tensors are done and how many there are."""


class ModelMerger:
    """Merges model folders into a new one.

        ModelMerger("merge.yaml").merge("merged")
        ModelMerger(MergeConfig(merge_method="slerp", ...)).merge("merged")

    Args:
        config: A merge, or the YAML file or mapping that describes it.
        threads: Tensors that are merged at a time, as far as they need no more memory together than the largest alone; by default one
            for each processor.
        shard_bytes: Most bytes of one file of weights.
        hashes: Whether the card and the report name the parents' files by their hashes, which takes about as long as a plain average; a
            file that this process hashed before takes no time.
    """

    def __init__(
        self,
        config: MergeConfig | Mapping[str, Any] | Path | str,
        *,
        threads: int | None = None,
        shard_bytes: int = SHARD_BYTES,
        hashes: bool = True,
    ) -> None:
        check_type(
            config,
            (MergeConfig, Mapping, Path, str),
            name="config",
            expected="a MergeConfig, a mapping, or a YAML file",
        )
        if isinstance(config, Path | str):
            config = MergeConfig.read(config)
        self.config = config if isinstance(config, MergeConfig) else MergeConfig.of(config)
        for name, number in (("shard_bytes", shard_bytes), ("threads", threads)):
            if number is not None:
                check_number(number, name=name, expected="a whole number, 1 or more", whole=True)
        if shard_bytes < 1 or (threads is not None and threads < 1):
            raise ConfigError(f"threads and shard_bytes are at least 1; got {threads} and {shard_bytes}.")
        check_threads(threads)
        self.threads = threads or usable_cores()
        self.shard_bytes, self.hashes = shard_bytes, hashes

    def plan(self) -> MergePlan:
        """What every tensor will be made of; nothing is written.

        Raises:
            ConfigError: The settings ask for what there is not.
            ModelError: The models don't fit together.
        """
        return plan_merge(self.config)

    def dry_run(self, folder: Path | str) -> dict[str, Any]:
        """Find what ``merge`` would find before it writes: settings, models, the folder, and room on its disk; nothing is written.

        Returns:
            What would be written, for JSON: ``folder``, ``method``, ``output``, ``parents``, ``num_tensors``, ``nbytes`` (of an adapter about
            that many), ``finished`` (this very merge is there already), ``dropped`` and ``notes``.

        Raises:
            ConfigError: As of ``merge``, as all others are.
        """
        folder = Path(os.path.abspath(folder))
        summary: dict[str, Any] = {
            "folder": str(folder),
            "method": self.config.merge_method,
            "output": self.config.output,
            "parents": [reference.text for reference in self.config.references()],
        }
        if self.config.output == "adapter":
            adapters = plan_adapters(self.config)
            key, nbytes = adapters.key(adapters.hashed()), adapters.nbytes
            summary |= {"num_tensors": 2 * len(adapters.settings), "nbytes": nbytes, "dropped": [], "notes": []}
        else:
            plan = self.plan()
            key, nbytes = self._key(plan), plan.nbytes
            dropped = [asdict(each) for each in plan.dropped]
            summary |= {"num_tensors": len(plan.tasks), "nbytes": nbytes, "dropped": dropped, "notes": plan.notes}
        summary["finished"] = finished(folder, key) is not None
        if not summary["finished"]:
            check_empty(folder)
            check_space(folder.parent, max(0, nbytes - _laid_out(folder)), purpose=f"The merged {self.config.output}")
        return summary

    def merge(self, folder: Path | str, *, progress: Progress | None = None) -> MergeReport:
        """Merge, and rename the finished folder to ``folder``.

        Args:
            folder: Must not exist, or be empty; one that this very merge wrote is left as it is.
            progress: Told of each tensor.

        Raises:
            ConfigError: The settings ask for what there is not.
            ModelError: The models don't fit together, a tensor holds NaN, or the folder holds something else.
            StorageError: The disk is full; before anything is written where that can be known.
            RunBusyError: Another process is merging into this folder.
        """
        folder = Path(os.path.abspath(folder))
        if self.config.output == "adapter":
            return merge_adapters(self.config, folder)
        plan = self.plan()
        key = self._key(plan)
        if (there := finished(folder, key)) is not None:
            return there
        check_empty(folder)
        aside = _aside(folder)
        check_space(folder.parent, max(0, plan.nbytes - _laid_out(folder)), purpose="The merged model")
        with storage_errors(folder), _locked(aside, key):
            shards = _shards(plan.tasks, self.shard_bytes)
            run = _Run(plan, aside, shards, key, threads=self.threads, progress=progress, hashes=self.hashes)
            try:
                report = (None if (aside / PLAN).is_file() else finished(aside, key)) or run.carry_out()
            except StorageError:
                raise  # what is there is kept: after space was made the same command goes on
            except RLHFError:
                delete(aside)
                raise
            except BaseException as err:
                if not isinstance(err, Exception):  # Ctrl-C, whose note the command line prints
                    err.add_note(
                        f"Files of weights that were finished are kept in {aside}: the same merge goes on from there. To give it up, delete "
                        "that folder."
                    )
                raise
            for path in aside.rglob("*"):
                fsync(path)
            os.rename(aside, folder)
            fsync(folder.parent)
        return report

    def _key(self, plan: MergePlan) -> str:
        """Hash of all that decides the result's bits, as far as it can be known without reading weights."""
        files = [(str(file), *_look(file)) for parent in plan.parents.values() for file in parent.files()]
        config = self.config.model_dump(mode="json")
        text = json.dumps(
            [__version__, config, files, self.shard_bytes, code_of(self.config.merge_method)], sort_keys=True
        )
        return hashlib.sha256(text.encode()).hexdigest()


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.merging")


def _laid_out(folder: Path) -> int:
    """Bytes on the disk of a merge that was killed; what is laid out and not written takes no room yet."""
    return sum(512 * path.stat().st_blocks for path in _aside(folder).glob("*.safetensors"))


@dataclass(frozen=True, slots=True)
class _Shard:
    name: str
    tasks: tuple[TensorTask, ...]


class _Run:
    """One merge in its hidden folder."""

    def __init__(
        self,
        plan: MergePlan,
        folder: Path,
        shards: Sequence[_Shard],
        key: str,
        *,
        threads: int,
        progress: Progress | None,
        hashes: bool,
    ) -> None:
        self._hashes = hashes
        self._plan, self._folder, self._shards, self._key = plan, folder, shards, key
        self._threads, self._progress = threads, progress
        self._budget = _Budget(max((_cost(plan, task) for task in plan.tasks), default=0))
        self._stop = threading.Event()
        self._count = 0
        self._lock = threading.Lock()

    def carry_out(self) -> MergeReport:
        started = time.monotonic()
        make_folder(self._folder / DONE)
        looks = {file: _look(file) for parent in self._plan.parents.values() for file in parent.files()}
        with (
            Files() as files,
            _threads_restored(),
            ThreadPoolExecutor(1) as aside,
            ThreadPoolExecutor(self._threads) as pool,
        ):
            hashes = aside.submit(self._hashed, looks)
            try:
                surveyed = survey(self._plan, files)
                rows = [
                    row for number in range(len(self._shards)) for row in self._shard(number, surveyed, files, pool)
                ]
                digests = hashes.result()
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        changed = next((file for file, look in looks.items() if _look(file) != look), None)
        if changed is not None:
            raise ModelError(f"{changed} was changed while it was merged; merge again.")
        report = report_of(self._plan, rows, digests, key=self._key, seconds=time.monotonic() - started)
        self._write_index()
        write_side_files(self._plan, report, self._folder)
        for name in (DONE, PLAN):
            delete(self._folder / name)
        return report

    def _hashed(self, files: Iterable[Path]) -> dict[Path, str]:
        if not self._hashes:
            return dict.fromkeys(files, NOT_HASHED)
        return {file: sha256_once(file) for file in files if not self._stop.is_set()}

    def _shard(
        self, number: int, surveyed: Mapping[str, Mapping[str, float]], files: Files, pool: ThreadPoolExecutor
    ) -> list[dict[str, Any]]:
        """Numbers of a shard's tensors, which are on the disk then."""
        shard = self._shards[number]
        record = self._folder / DONE / f"{number}.json"
        path = self._folder / shard.name
        if record.is_file() and path.is_file():
            rows: list[dict[str, Any]] = json.loads(record.read_text(encoding="utf-8"))
            self._tell(len(rows))
            return rows
        header, places = laid_out(path, [(task.name, task.dtype, task.shape) for task in shard.tasks])
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            os.pwrite(handle, header, 0)
            end = max((place.start + place.length for place in places.values()), default=len(header))
            os.truncate(handle, end)

            def work(task: TensorTask) -> dict[str, Any]:
                if self._stop.is_set():
                    raise ModelError("The merge was stopped.")
                place = places[task.name]

                def write(first: int, part: Tensor) -> None:
                    write_tensor(handle, place, part, first)

                with self._budget.taken(cost := _cost(self._plan, task)):
                    alone = 2 * cost > self._budget.total and not is_by_parts(self._plan, task)
                    torch.set_num_threads(self._threads if alone else 1)
                    row = merge_tensor(self._plan, task, surveyed, files, write)
                self._tell(1)
                return row

            largest_first = sorted(shard.tasks, key=lambda task: -task.nbytes)
            futures = {task.name: pool.submit(work, task) for task in largest_first}
            rows = _results([futures[task.name] for task in shard.tasks])
            os.fsync(handle)
        finally:
            os.close(handle)
        write_json(record, rows)
        return rows

    def _tell(self, more: int) -> None:
        with self._lock:
            self._count += more
            if self._progress is not None:
                self._progress(self._count, len(self._plan.tasks))

    def _write_index(self) -> None:
        if len(self._shards) > 1:
            table = {task.name: shard.name for shard in self._shards for task in shard.tasks}
            write_json(self._folder / INDEX, {"metadata": {"total_size": self._plan.nbytes}, "weight_map": table})


def _results(futures: Sequence[Future[dict[str, Any]]]) -> list[dict[str, Any]]:
    """All results in order, or the first error as soon as there is one."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in futures:
        if future in done and (err := future.exception()) is not None:
            raise err
    return [future.result() for future in futures]


class _Budget:
    """So much memory for tensors at a time; one that needs it all has it for itself."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, cost: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._free >= cost)
            self._free -= cost
        try:
            yield
        finally:
            with self._changed:
                self._free += cost
                self._changed.notify_all()


def _cost(plan: MergePlan, task: TensorTask) -> int:
    """Bytes for a task beyond a few parts: each parent's tensor as it is worked on and the result, or what the method holds of them."""
    count = count_of(task.shape)
    held = plan.method.held_bytes * len(task.models) if is_by_parts(plan, task) else 0
    if is_read_by_parts(plan, task):
        return count * held
    return count * (held + task.working.itemsize * (len(task.sources) + 2))


@contextlib.contextmanager
def _threads_restored() -> Iterator[None]:
    """torch's own threads at the end as before: workers set theirs, and new threads take over the last number set."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _shards(tasks: Sequence[TensorTask], most: int) -> list[_Shard]:
    parts: list[list[TensorTask]] = [[]]
    size = 0
    for task in tasks:
        if parts[-1] and size + task.nbytes > most:
            parts.append([])
            size = 0
        parts[-1].append(task)
        size += task.nbytes
    if len(parts) == 1:
        return [_Shard("model.safetensors", tuple(parts[0]))]
    return [_Shard(f"model-{i:05d}-of-{len(parts):05d}.safetensors", tuple(part)) for i, part in enumerate(parts, 1)]


@contextlib.contextmanager
def _locked(aside: Path, key: str) -> Iterator[None]:
    """The hidden folder for this process alone; what another plan left in it is removed."""
    make_folder(aside.parent)
    lock = aside.with_name(f"{aside.name}.lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunBusyError(
                f"Another process is merging into {aside.name.removeprefix('.').removesuffix('.merging')}; wait for it."
            ) from None
        try:
            if _key_in(aside / PLAN) != key and _key_in(aside / REPORT_FILE) != key:
                if aside.is_dir():
                    delete(aside)
                make_folder(aside)
                write_json(aside / PLAN, {"key": key})
            yield
        finally:
            lock.unlink(missing_ok=True)


def _key_in(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["key"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _look(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_size, status.st_mtime_ns
