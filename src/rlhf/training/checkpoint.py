"""Rolling checkpoints of a run: at no instant, whatever is the last thing the machine does, is a good one missing.

A checkpoint is written aside, synced, and renamed to its name, and only when that is on disk are older ones given up: they
are renamed aside as well, and deleted when *that* is on disk. So a folder ``checkpoint-00000120`` is always a whole one. A step
that is saved again becomes ``checkpoint-00000120-2`` before the first goes. What a killed process leaves begins with a
dot and is removed by the next one.

A damaged checkpoint (bits turned on the disk, a hand slipped) is passed over for the one before it with a warning that
names the file. It counts for nothing after that, and is removed with the next checkpoint that is written.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlhf.distributed.ranks import Ranks
from rlhf.distributed.sharding import like
from rlhf.errors import CheckpointError, ConfigError, StorageError, check_type
from rlhf.files import check_space, delete, fsync, make_folder, storage_errors
from rlhf.training.checkpoint_folder import Checkpoint, Record, Snapshot
from rlhf.training.checkpoint_names import PREFIX, step_and_number, step_of
from rlhf.training.sharded_checkpoint import bytes_of, write_shards

__all__ = ["ADVICE", "Checkpoint", "CheckpointManager", "load_weights"]

logger = logging.getLogger(__name__)

ADVICE = (
    "Free some space, keep fewer checkpoints (keep_checkpoints, keep_every), or choose another output_dir, then start the "
    "same command again: it goes on from the newest checkpoint."
)


class CheckpointManager:
    """Checkpoints of one training run in one folder.

    Args:
        folder: Made when the first checkpoint is written.
        keep: How many of the newest stay. The newest that was the best when it was written stays besides.
        keep_every: Those of steps that this divides stay for good.
        identity: JSON values that say which run this is; a checkpoint of another run is refused rather than mixed in.
        background: ``save`` returns when everything is copied, and a thread writes it. The files are the same.
        ranks: Rank 0 writes the folder, and each its own shards of what lies in shards; several write before ``save`` returns.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        keep: int = 2,
        keep_every: int | None = None,
        identity: Mapping[str, Any] | None = None,
        background: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        for name, value in {"keep": keep, "keep_every": keep_every}.items():
            if value is not None and value < 1:
                raise ConfigError(f"{name} of the checkpoints in {folder} is {value}; it must be 1 or more.")
        check_type(folder, (str, Path), name="folder", expected="where checkpoints go")
        self.folder = Path(folder)
        self.keep = keep
        self.keep_every = keep_every
        self.identity = json.loads(json.dumps(dict(identity or {})))  # as it will be read back
        self.background = background
        self.ranks = ranks or Ranks()
        self._damaged: set[Path] = set()
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def save(
        self, step: int, modules: Mapping[str, nn.Module], state: Mapping[str, Any], *, best: bool = False
    ) -> None:
        """Write a checkpoint, then remove those that need not stay; what was copied may change as soon as this returns.

        Args:
            step: Names it; a step that is saved again takes the place of the first.
            modules: Their trainable parameters are saved.
            state: Everything else: numbers, text, containers and tensors.
            best: It is the best so far, and stays until a better one comes.

        Raises:
            StorageError: The disk has no room for it or can't be written; the checkpoints before it are all there. In
                the background, what goes wrong is raised by the next ``save``, ``wait`` or ``close``.
            CheckpointError: The state holds what could not be read back.
        """
        self.wait()
        if self.ranks.size > 1:
            self._save_over_ranks(Snapshot.of(modules, state, in_shards=True), step, best=best)
            return
        snapshot = Snapshot.of(modules, state)
        self.clear_leftovers()
        check_space(self.folder, snapshot.num_bytes, purpose=f"The checkpoint of step {step}", advice=ADVICE)
        if not self.background:
            self._write(snapshot, step, best=best)
            return
        self._thread = self._thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing = self._thread.submit(self._write, snapshot, step, best=best)

    def _save_over_ranks(self, snapshot: Snapshot, step: int, *, best: bool) -> None:
        """Rank 0 makes the folder, all of them write into it, and rank 0 gives it its name."""
        num_bytes = snapshot.num_bytes + sum(self.ranks.gather(bytes_of(snapshot.shards)))
        aside = None
        with self._storage_errors():
            if self.ranks.is_main:
                self.clear_leftovers()
                check_space(self.folder, num_bytes, purpose=f"The checkpoint of step {step}", advice=ADVICE)
                make_folder(self.folder)
                aside = self._aside(self._free_name(step).name)
                aside.mkdir()
            folder = self.ranks.gather(aside)[0]
            written = write_shards(folder, snapshot.shards)
            if aside is not None:
                self._finish(snapshot, aside, step, best=best, written=written)

    def wait(self) -> None:
        """Return when everything is on disk, or raise what kept it from there."""
        if self._writing is not None:
            try:
                self._writing.result()
            finally:
                if self._writing.done():  # and not Ctrl-C while we waited
                    self._writing = None

    def close(self) -> None:
        """Wait, and end the thread; a store that is saved to again starts another."""
        try:
            self.wait()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None

    def paths(self) -> list[Path]:
        """Finished checkpoints, oldest step first; of one step, the one written first comes first."""
        names = sorted((key, name) for name in self._names() if (key := step_and_number(name)))
        return [self.folder / name for _, name in names]

    def load_latest(self, *, warn: Callable[[str], None] = logger.warning) -> Checkpoint | None:
        """The newest checkpoint whose files are what was written; None where there is none.

        Args:
            warn: Told of each damaged one that is passed over.

        Raises:
            CheckpointError: A checkpoint belongs to another run, or all of them are damaged.
            StorageError: One can't be read, which does not say that it is damaged.
        """
        self.wait()
        paths = self.paths()
        for path in reversed(paths):
            try:
                return self._read(path)
            except _OtherRunError:
                raise
            except CheckpointError as err:
                warn(f"{err} Trying the checkpoint before it.")
        if paths:
            raise CheckpointError(
                f"All {len(paths)} checkpoints in {self.folder} are damaged; remove them to start from the beginning."
            )
        return None

    def load_last_good(
        self, *, before: int, is_good: Callable[[Checkpoint], bool], name: str, warn: Callable[[str], None]
    ) -> Checkpoint:
        """The newest good checkpoint of an earlier step, else the newest of an earlier step, else the oldest.

        Args:
            before: Only steps below this are earlier.
            is_good: Whether a run may go back to it.
            name: What messages call the run.
            warn: Gets what is wrong with damaged ones, which are left out.

        Raises:
            CheckpointError: No checkpoint is whole.
        """
        whole: list[Checkpoint] = []
        for path in reversed(self.paths()):
            step = step_of(path)
            assert step is not None, f"paths() gave {path}, which is not a checkpoint's name"
            try:
                whole.append(self.load(step))
            except CheckpointError as err:
                warn(str(err))
        if not whole:
            raise CheckpointError(f"{name}: a guard wants to go back, and there is no whole checkpoint to go back to.")
        earlier = [checkpoint for checkpoint in whole if checkpoint.step < before] or whole[-1:]
        return next(filter(is_good, earlier), earlier[0])

    def load(self, step: int) -> Checkpoint:
        """The checkpoint of one step.

        Raises:
            CheckpointError: There is none, it is damaged, or it belongs to another run.
        """
        self.wait()
        paths = self.paths()
        of_step = [path for path in paths if step_of(path) == step]
        if not of_step:
            steps = ", ".join(str(step_of(path)) for path in paths) or "none"
            raise CheckpointError(f"{self.folder} has no checkpoint of step {step}; the steps it has: {steps}.")
        return self._read(of_step[-1])

    def discard_after(self, step: int) -> None:
        """Remove the checkpoints of later steps, newest first: a crash on the way leaves the older ones of them."""
        self.wait()
        if not self.ranks.is_main:
            return
        with self._storage_errors():
            self.clear_leftovers()
            self._remove([path for path in reversed(self.paths()) if (step_of(path) or 0) > step])

    def clear_leftovers(self) -> None:
        """Delete what a killed process half wrote or half deleted; only for the one process that writes here."""
        for path in self.folder.glob(f".{PREFIX}*.tmp") if self.ranks.is_main else ():
            _delete(path)

    def _write(self, snapshot: Snapshot, step: int, *, best: bool) -> None:
        with self._storage_errors():
            make_folder(self.folder)
            aside = self._aside(self._free_name(step).name)
            aside.mkdir()
            self._finish(snapshot, aside, step, best=best)

    def _finish(
        self, snapshot: Snapshot, aside: Path, step: int, *, best: bool, written: Mapping[str, str] | None = None
    ) -> None:
        """Fill the folder, give it its name, and remove what need not stay."""
        final = self._free_name(step)
        try:
            snapshot.write(aside, step=step, identity=self.identity, best=best, written=written)
            os.replace(aside, final)
            fsync(self.folder)
        except BaseException as err:
            if isinstance(err, Exception) and not aside.exists() and not final.exists():
                raise StorageError(
                    f"Something removed {aside} while a checkpoint was written there. Let nothing else remove files in "
                    f"{self.folder}, then start the same command again."
                ) from err
            _delete(aside)
            raise
        self._remove(self._superseded(final))

    def _names(self) -> list[str]:
        """What is in the folder. Not ``glob``: to it, a folder that may not be read looks like an empty one."""
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as err:
            raise StorageError(
                f"Can't look for checkpoints in {self.folder}: {err.strerror}. Make it a folder that this user can read, or "
                "choose another output_dir."
            ) from err

    def _free_name(self, step: int) -> Path:
        """checkpoint-00000120, or with the next number behind it where the step was saved before, damaged or not."""
        taken = [key[1] for name in self._names() if (key := step_and_number(name)) and key[0] == step]
        number = max(taken, default=0) + 1
        return self.folder / (f"{PREFIX}{step:08d}" + (f"-{number}" if number > 1 else ""))

    def _superseded(self, written: Path) -> list[Path]:
        """Which checkpoints need not stay now that a new one is on disk."""
        paths = self.paths()
        newest = {step_of(path): path for path in paths if path not in self._damaged}  # of one step, the last one
        stay = {written, *list(newest.values())[-self.keep :]}
        if self.keep_every is not None:
            stay.update(path for step, path in newest.items() if step is not None and step % self.keep_every == 0)
        best = [path for path in newest.values() if _is_best(path)]
        stay.update(best[-1:])
        return [path for path in paths if path not in stay]

    def _remove(self, paths: Sequence[Path]) -> None:
        """Take away their names, and the files only when that is on disk: no name ever stands for half a checkpoint."""
        asides = []
        for path in paths:
            asides.append(self._aside(path.name))
            os.replace(path, asides[-1])
            self._damaged.discard(path)
        if asides:
            fsync(self.folder)
        for aside in asides:
            _delete(aside)

    def _aside(self, name: str) -> Path:
        return self.folder / f".{name}.{secrets.token_hex(4)}.tmp"

    def _storage_errors(self) -> AbstractContextManager[None]:
        return storage_errors(self.folder, advice=ADVICE)

    def _read(self, path: Path) -> Checkpoint:
        try:
            record = Record.read(path)
            if record.step != step_of(path):
                raise CheckpointError(f"The checkpoint {path} is damaged: its record is of step {record.step}.")
            record.verify()
            self._check_identity(path, record.identity)
            return record.load()
        except _OtherRunError:
            raise
        except CheckpointError:
            self._damaged.add(path)  # it is not counted among those that are kept
            raise

    def _check_identity(self, path: Path, theirs: Mapping[str, Any]) -> None:
        """Raise where the checkpoint is of another run, and say what is different."""
        mine = self.identity
        changed = [key for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key)]
        if changed:
            differences = ", ".join(f"{key} was {theirs.get(key)!r} and is {mine.get(key)!r}" for key in changed)
            raise _OtherRunError(
                f"{path} was written by a run with other settings: {differences}. Go back to those, or remove the "
                f"checkpoints in {self.folder} to start from the beginning."
            )


class _OtherRunError(CheckpointError):
    """A checkpoint is whole, and of another run: an older one would be too."""


def _is_best(path: Path) -> bool:
    try:
        return Record.read(path).best
    except CheckpointError:
        return False


def _delete(path: Path) -> None:
    """Delete a folder that is not a checkpoint any more; what can't be deleted now is left to the next save."""
    try:
        delete(path)
    except OSError as err:
        if os.path.lexists(path):
            logger.warning("%s could not be deleted (%s); the next checkpoint tries again.", path, err.strerror)


def load_weights(modules: Mapping[str, nn.Module], weights: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Copy saved parameters into modules.

    Raises:
        CheckpointError: A module or a parameter is missing on one side, or has another shape.
    """
    if modules.keys() != weights.keys():
        raise CheckpointError(f"The checkpoint holds the modules {sorted(weights)}, this run trains {sorted(modules)}.")
    copies = []  # nothing is changed before everything is known to fit
    for name, module in modules.items():
        mine = {k: p for k, p in module.named_parameters() if p.requires_grad}
        if mine.keys() != weights[name].keys():
            odd = sorted(mine.keys() ^ weights[name].keys())[:3]
            raise CheckpointError(f"Module {name}: checkpoint and model differ in parameters such as {', '.join(odd)}.")
        for key, parameter in mine.items():
            saved = weights[name][key]
            if saved.shape != parameter.shape:
                raise CheckpointError(
                    f"Module {name}, {key}: the checkpoint has shape {tuple(saved.shape)}, "
                    f"the model {tuple(parameter.shape)}."
                )
            copies.append((parameter, saved))
    with torch.no_grad():
        for parameter, saved in copies:
            parameter.copy_(like(saved, parameter))
