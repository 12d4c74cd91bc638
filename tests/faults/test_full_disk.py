"""A disk that is full, read-only, or lets files grow only so far: one clear error, and everything that was there stays."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rlhf import files
from rlhf.errors import StorageError
from rlhf.files import write_json, write_jsonl, write_text
from rlhf.training.checkpoint import CheckpointManager
from rlhf.training.checkpoint_folder import Snapshot

MIB = 2**20
WHAT_TO_DO = "keep fewer checkpoints (keep_checkpoints, keep_every), or choose another output_dir"


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A real file system of 4 MiB, and a reserve that fits. Only root may make one."""
    monkeypatch.setattr(files, "RESERVE_BYTES", MIB)
    folder = tmp_path / "small disk"
    folder.mkdir()
    mounted = mount(["-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)])
    if mounted is not None:
        pytest.skip(f"a small file system can't be mounted here ({mounted}); run as root, or in a container that may")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def mount(arguments: list[str]) -> str | None:
    """None where it worked, else the reason."""
    if shutil.which("mount") is None:
        return "there is no mount command"
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr.strip()


def modules(value: float, *, num: int = 1000) -> dict[str, nn.Module]:
    module = nn.Module()
    module.weight = nn.Parameter(torch.full((num,), value))
    return {"policy": module}


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------------------- a really full disk


def test_room_for_a_checkpoint_is_asked_for_before_anything_is_written(small_disk, monkeypatch):
    monkeypatch.setattr(Snapshot, "write", lambda *_, **__: pytest.fail("nothing may be written"))
    store = CheckpointManager(small_disk / "run", background=True)
    with pytest.raises(StorageError) as caught:
        store.save(7, modules(2.0, num=MIB), {})
    message = str(caught.value)
    assert message.startswith(
        f"The checkpoint of step 7 in {small_disk / 'run'} needs 5.1 MiB, 1.0 MiB of it as a reserve"
    )
    assert "and 4.0 MiB of 4.0 MiB is free on that disk." in message
    assert WHAT_TO_DO in message
    assert os.listdir(small_disk) == []


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("large", ["weights", "state"])
def test_a_disk_that_fills_up_in_the_middle_leaves_what_was_there(small_disk, monkeypatch, large, background):
    monkeypatch.setattr("rlhf.training.checkpoint.check_space", lambda *_, **__: None)  # others write to the disk too
    store = CheckpointManager(small_disk / "run", keep=1, background=background)
    store.save(1, modules(1.0), {"n": 1})
    store.wait()
    before = everything_in(small_disk)
    filler = small_disk / "of somebody else"
    filler.write_bytes(bytes(2 * MIB))
    many = {"weights": (modules(2.0, num=MIB), {}), "state": (modules(2.0), {"moments": torch.ones(MIB)})}[large]

    def save_large() -> None:
        store.save(2, *many)
        store.wait()

    with pytest.raises(StorageError) as caught:
        save_large()
    message = str(caught.value)
    assert message.startswith(
        f"Can't write {small_disk / 'run'}: the disk has no room left (now 2.0 MiB of 4.0 MiB free)."
    )
    assert WHAT_TO_DO in message
    filler.unlink()
    assert everything_in(small_disk) == before, "nothing half-written remains, and the one before is whole"
    store.save(3, modules(3.0), {"n": 3})
    store.close()
    assert store.load_latest(warn=pytest.fail).state == {"n": 3}
    assert [path.name for path in store.folder.iterdir()] == ["checkpoint-00000003"]


def test_a_file_that_finds_no_room_leaves_the_old_one(small_disk):
    path = small_disk / "rows.jsonl"
    write_jsonl(path, [{"row": 1}])
    before = everything_in(small_disk)
    with pytest.raises(StorageError, match=r"rows\.jsonl: .*no room.*4\.0 MiB of 4"):
        write_jsonl(path, ({"row": n, "text": "x" * 1000} for n in range(10_000)))
    with pytest.raises(StorageError, match=r"rows\.jsonl: .*no room"):
        write_text(path, "x" * 5 * MIB)
    assert everything_in(small_disk) == before
    assert write_jsonl(path, [{"row": 2}]) == 1


def test_a_disk_without_room_for_more_files_says_so(tmp_path):
    folder = tmp_path / "few files"
    folder.mkdir()
    reason = mount(["-t", "tmpfs", "-o", "nr_inodes=3", "tmpfs", str(folder)])
    if reason is not None:
        pytest.skip(f"a small file system can't be mounted here ({reason})")
    try:
        for name in ("a", "b"):
            write_text(folder / name, name)
        with pytest.raises(StorageError, match=r"no room.*inodes"):
            write_text(folder / "c", "c")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_read_only_disk_is_named_and_nothing_is_changed(small_disk):
    store = CheckpointManager(small_disk / "run")
    store.save(1, modules(1.0), {})
    write_json(small_disk / "summary.json", {"old": 1})
    before = everything_in(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for write in (
        lambda: store.save(2, modules(2.0), {}),
        lambda: store.discard_after(0),
        lambda: write_json(small_disk / "summary.json", {"new": 2}),
        lambda: write_text(small_disk / "deep" / "a.txt", "x"),
    ):
        with pytest.raises(StorageError, match=r"small disk.*read-only"):
            write()
    assert store.load_latest(warn=pytest.fail).step == 1, "it can still be read"
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert everything_in(small_disk) == before


# ---------------------------------------------------------------------------------------- limits that need no rights

LIMITED = """
    import resource, sys
    import torch
    from torch import nn
    from rlhf.errors import StorageError
    from rlhf.files import write_jsonl
    from rlhf.training.checkpoint import CheckpointManager

    def modules(num):
        module = nn.Module()
        module.weight = nn.Parameter(torch.ones(num))
        return {"policy": module}

    store = CheckpointManager(__import__("pathlib").Path("run"), background="background" in sys.argv)
    store.save(1, modules(10), {})
    store.wait()
    write_jsonl("rows.jsonl", [1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))

    def save(weights, state):
        store.save(2, modules(weights), {"moments": torch.ones(state)})
        store.wait()

    for write in (lambda: save(50_000, 1), lambda: save(1, 50_000), lambda: write_jsonl("rows.jsonl", range(50_000))):
        try:
            write()
        except StorageError as err:
            print(err)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(store.load_latest().step, open("rows.jsonl").read().strip())
    save(50_000, 50_000)
    store.close()
    print(store.load_latest().step)
"""


@pytest.mark.parametrize("background", ["at once", "background"])
def test_a_limit_on_the_size_of_files_is_an_error_like_a_full_disk(tmp_path, background):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), background], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    weights, state, rows, *after = done.stdout.splitlines()
    assert weights == state
    assert weights.startswith("Can't write run: the file is larger than the system allows. Free some space, keep fewer")
    assert rows == (
        "Can't write rows.jsonl: the file is larger than the system allows. Raise the limit (ulimit -f), or choose another "
        "disk."
    )
    assert after == ["1 1", "2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl", "run"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoint-00000001", "checkpoint-00000002"]


TROUBLES = {
    errno.ENOSPC: r"the disk has no room left \(now .* free\)\. Free some space",
    errno.EDQUOT: r"the disk quota of this user is used up \(now .* free\)\. Free some space",
    errno.EROFS: r"the disk is mounted read-only\. ",
    errno.EACCES: r"permission denied\. ",
    errno.EPERM: r"the system does not permit it\. ",
    errno.EIO: r"the disk fails \(input/output error\)\. ",
}


REFUSALS = [
    *((call, code) for call in ("mkdir", "open", "replace") for code in TROUBLES),
    *(("fsync", code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)),
]


@pytest.mark.parametrize(("call", "code"), REFUSALS, ids=lambda v: errno.errorcode.get(v, v))
def test_what_the_system_refuses_at_any_call_is_named_and_leaves_the_old_checkpoint(tmp_path, monkeypatch, code, call):
    store = CheckpointManager(tmp_path / "run", keep=1)
    store.save(1, modules(1.0), {})
    before = everything_in(tmp_path)

    real = getattr(os, call)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        if call == "open" and not args[1] & os.O_CREAT:
            return real(*args, **kwargs)
        name = args[0] if isinstance(args[0], str | os.PathLike) else None
        raise OSError(code, os.strerror(code), name)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(StorageError, match=rf"{tmp_path / 'run'}.*: {TROUBLES[code]}"):
            store.save(2, modules(2.0), {})
    assert everything_in(tmp_path) == before
    store.save(3, modules(3.0), {})
    assert [path.name for path in store.folder.iterdir()] == ["checkpoint-00000003"]


def test_a_new_checkpoint_whose_name_may_not_be_on_disk_takes_none_away(tmp_path, monkeypatch):
    store = CheckpointManager(tmp_path / "run", keep=1)
    store.save(1, modules(1.0), {})
    real = os.fsync

    def refuse(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), os.stat(store.folder)):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(StorageError, match=r"input/output error"):
            store.save(2, modules(2.0), {})
    assert [path.name for path in store.paths()] == ["checkpoint-00000001", "checkpoint-00000002"]
    assert store.load(1).step == 1
    assert store.load(2).step == 2


@pytest.mark.parametrize("what", ["the files", "the whole run"])
def test_a_hand_that_removes_files_while_they_are_written_is_told_apart_from_a_bug(tmp_path, monkeypatch, what):
    store = CheckpointManager(tmp_path / "run")
    real = Snapshot.write

    def write(snapshot: Snapshot, folder: Path, **arguments: object) -> None:
        shutil.rmtree(folder if what == "the files" else tmp_path / "run")
        real(snapshot, folder, **arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Snapshot, "write", write)
        with pytest.raises(StorageError, match=r"00001.*tmp"):
            store.save(1, modules(1.0), {})
    store.save(2, modules(2.0), {})
    assert store.load_latest(warn=pytest.fail).step == 2
