"""Power cuts at every moment of writing: a good checkpoint, a whole file, is always there (rules in tests/fixtures/crash.py)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from rlhf.errors import CheckpointError
from rlhf.files import delete, write_json, write_text
from rlhf.training.checkpoint import CheckpointManager
from rlhf.training.checkpoint_folder import Record, Snapshot
from tests.fixtures.crash import Disk, Tree, lay_out, random_luck

Held = Mapping[str, float]
"""Names of the checkpoints in a folder, and the number that each was filled with."""


@dataclass(frozen=True)
class Save:
    step: int
    best: bool = False


@dataclass(frozen=True)
class DiscardAfter:
    step: int


@dataclass(frozen=True)
class Done:
    """One call that was recorded."""

    began: int
    """Events on the disk before it."""
    before: Held
    after: Held
    number: float | None
    """What a save wrote; None for another call, and for the time after the last one."""


def module_of(number: float) -> nn.Module:
    layer = nn.Linear(3, 2)
    with torch.no_grad():
        for p in layer.parameters():
            p.fill_(number)
    return layer


def state_of(number: float) -> dict[str, Any]:
    return {"number": number, "moments": torch.full((5,), number, dtype=torch.bfloat16), "rows": list(range(7))}


def save(store: CheckpointManager, step: int, number: float, *, best: bool = False) -> None:
    store.save(step, {"policy": module_of(number)}, state_of(number), best=best)


def number_of(checkpoint: Any) -> float:
    """What it was filled with; every bit of it is looked at."""
    number = checkpoint.state["number"]
    assert checkpoint.state["rows"] == state_of(number)["rows"]
    assert torch.equal(checkpoint.state["moments"], state_of(number)["moments"])
    for key, value in module_of(number).state_dict().items():
        assert torch.equal(checkpoint.weights["policy"][key], value), "a mixture of two checkpoints"
    return number


def held_in(store: CheckpointManager) -> Held:
    """Every checkpoint must be whole, not only the newest."""
    records = [Record.read(path) for path in store.paths()]
    for saved in records:
        saved.verify()
    return {saved.path.name: number_of(saved.load()) for saved in records}


def record(folder: Path, calls: Sequence[Save | DiscardAfter], **settings: Any) -> tuple[Disk, list[Done]]:
    """Run the calls on a recording disk."""
    folder.mkdir()
    disk, done = Disk(folder), []
    store = CheckpointManager(folder / "stage" / "run", **settings)
    with disk.recording():
        for number, call in enumerate(calls, 1):
            began, before = len(disk.events), held_in(store)
            if isinstance(call, Save):
                save(store, call.step, number, best=call.best)
                store.wait()
            else:
                store.discard_after(call.step)
            done.append(Done(began, before, held_in(store), number if isinstance(call, Save) else None))
        store.close()
    final = held_in(store)
    return disk, [*done, Done(len(disk.events), final, final, None)]


def check_what_is_left(tree: Tree, call: Done, folder: Path) -> None:
    """What every crash in a call must leave: the old or the new, whole; and a folder in which the next run can go on."""
    lay_out(tree, folder)
    store = CheckpointManager(folder / "stage" / "run", keep=1)
    there = held_in(store)
    assert {**call.before, **call.after}.items() >= there.items(), "nothing but what was saved"
    assert there.items() >= (call.before.items() & call.after.items()), "what this call does not remove stays"
    if call.number is not None and call.number not in there.values():
        assert there == call.before, "an older one goes only when the new one is sure to be there"
    latest = store.load_latest(warn=pytest.fail)
    assert (latest and number_of(latest)) == (list(there.values())[-1] if there else None)
    save(store, 99, 0.5)
    assert number_of(store.load_latest(warn=pytest.fail)) == 0.5
    assert len(held_in(store)) <= 2, "the newest, and one that was the best"
    assert not [name for name in os.listdir(store.folder) if name.startswith(".")], "no leftovers"


def check_every_crash(disk: Disk, done: Sequence[Done], folder: Path) -> int:
    """At every moment; returns how many different things were left."""
    seen: list[tuple[int, Tree]] = []
    for when, tree in disk.crashes():
        number = sum(call.began <= when for call in done)
        if (number, tree) not in seen:
            seen.append((number, tree))
            check_what_is_left(tree, done[number - 1], folder / str(len(seen)))
    return len(seen)


SCENARIOS: dict[str, tuple[list[Save | DiscardAfter], dict[str, Any]]] = {
    "rolling": ([Save(1), Save(2), Save(3)], {"keep": 1}),
    "two are kept, in the background": ([Save(1), Save(2), Save(3)], {"keep": 2, "background": True}),
    "the only one is saved again": ([Save(5), Save(5)], {"keep": 1}),
    "the best stays until a better one comes": ([Save(1, best=True), Save(2), Save(3, best=True)], {"keep": 1}),
    "back to an earlier step": ([Save(1), Save(2), Save(3), Save(1), DiscardAfter(1)], {"keep": 3}),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_whatever_the_last_call_is_the_old_or_the_new_checkpoint_is_whole(name, tmp_path):
    calls, arguments = SCENARIOS[name]
    disk, done = record(tmp_path / "whole", calls, **arguments)
    assert check_every_crash(disk, done, tmp_path) > 10 * len(calls), "the disk saw the calls"


CALLS = st.lists(
    st.one_of(
        st.builds(Save, step=st.integers(1, 6), best=st.booleans()),
        st.builds(DiscardAfter, step=st.integers(0, 6)),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    calls=CALLS,
    keep=st.integers(1, 3),
    keep_every=st.none() | st.integers(1, 3),
    background=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_any_sequence_of_calls_may_be_cut_anywhere(calls, keep, keep_every, background, seed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    disk, done = record(folder / "whole", calls, keep=keep, keep_every=keep_every, background=background)
    draw = Random(seed)
    when = draw.randint(disk.start, len(disk.events))
    tree = disk.after_crash(when, random_luck(draw))
    check_what_is_left(tree, [call for call in done if call.began <= when][-1], folder / "left")


def test_leftovers_do_not_pile_up_over_many_crashes(tmp_path):
    folder, draw = tmp_path / "0", Random(5)
    (folder / "run").mkdir(parents=True)
    newest: float = 0
    for number in range(1, 12):
        disk = Disk(folder)
        store = CheckpointManager(folder / "run", keep=1)
        with disk.recording():
            save(store, number, number)
        when = draw.randrange(disk.start, len(disk.events))
        folder = tmp_path / str(number)
        lay_out(disk.after_crash(when, lambda kind: True if kind == "name" else "half"), folder)
        assert len(os.listdir(folder / "run")) <= 3, "one that is whole, one coming, one going"
        latest = CheckpointManager(folder / "run").load_latest(warn=pytest.fail)
        actual = 0 if latest is None else number_of(latest)
        assert actual in (newest, number), "what was there after the crash before, or what was written since"
        newest = actual
    assert newest > 1, "some saves came through"


# ------------------------------------------------------------------------------------------------------- single files


@pytest.mark.parametrize("write", [write_text, write_json])
def test_a_file_is_the_old_or_the_new_one_and_the_new_one_when_the_call_has_returned(write, tmp_path):
    root = tmp_path / "whole"
    root.mkdir()
    disk, returned, expected = Disk(root), [], []
    with disk.recording():
        for value in ("first " * 50, "second " * 70, "third"):
            write(root / "run" / "a.txt", value)
            returned.append(len(disk.events))
            expected.append((root / "run" / "a.txt").read_bytes())
    versions = [None, *expected]
    for when, tree in disk.crashes():
        done = sum(events <= when for events in returned)
        actual = tree.get("run", {}).get("a.txt")
        assert actual in versions[done : done + 2], f"after {when} events, {done} calls had returned"


# ------------------------------------------------------------------------- a simulator that sees nothing proves nothing


def careless_text(path: Path, text: str) -> None:
    path.write_text(text)


def unsynced_rename(path: Path, text: str) -> None:
    aside = path.with_suffix(".tmp")
    aside.write_text(text)
    os.replace(aside, path)


@pytest.mark.parametrize("write", [careless_text, unsynced_rename])
def test_the_simulated_disk_catches_a_writer_that_does_not_sync(write, tmp_path):
    disk = Disk(tmp_path)
    with disk.recording():
        write(tmp_path / "a.txt", "old text")
        write(tmp_path / "a.txt", "new text")
    actual = {tree.get("a.txt") for _, tree in disk.crashes()}
    assert actual & {b"new ", b"old ", b"", bytes(8)}, "half a file, or none of it"


@pytest.mark.parametrize("careless", ["files are not synced", "folders are not synced", "the old one goes first"])
def test_the_simulated_disk_catches_a_careless_store(careless, tmp_path, monkeypatch):
    from rlhf import files
    from rlhf.training import checkpoint, checkpoint_folder

    def sync_only(folders: bool) -> Any:
        return lambda path: files.fsync(path) if Path(path).is_dir() == folders else None

    if careless == "files are not synced":
        monkeypatch.setattr(checkpoint_folder, "fsync", sync_only(folders=True))
    elif careless == "folders are not synced":
        monkeypatch.setattr(checkpoint, "fsync", sync_only(folders=False))
    else:
        monkeypatch.setattr(Snapshot, "write", removing_first(Snapshot.write))
    disk, done = record(tmp_path / "whole", [Save(1), Save(2), Save(3)], keep=1)
    with pytest.raises((AssertionError, CheckpointError, pytest.fail.Exception)):
        check_every_crash(disk, done, tmp_path)


def removing_first(write: Any) -> Any:
    """A writer that makes room before it writes."""

    def careless(snapshot: Snapshot, folder: Path, **arguments: Any) -> None:
        for path in folder.parent.glob("checkpoint-*"):
            delete(path)
        write(snapshot, folder, **arguments)

    return careless
