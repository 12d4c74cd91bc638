from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from rlhf import files
from rlhf.errors import DataError, StorageError
from rlhf.files import (
    check_space,
    make_folder,
    remove_leftovers,
    sha256,
    storage_errors,
    write_aside,
    write_json,
    write_jsonl,
    write_text,
)


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole_and_nothing_is_left_beside_it(tmp_path):
    write_text(tmp_path / "deep" / "a.txt", "one\n")
    write_text(tmp_path / "deep" / "a.txt", "äöü\n")
    assert (tmp_path / "deep" / "a.txt").read_bytes() == "äöü\n".encode()
    assert files_in(tmp_path / "deep") == ["a.txt"]


def test_what_was_there_stays_when_writing_fails(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"good": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"bad": float("nan")})

    def stop_half_way():
        with write_aside(path) as aside:
            aside.write_text("{")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        stop_half_way()
    assert json.loads(path.read_text()) == {"good": 1}
    assert files_in(tmp_path) == ["a.json"]


def test_a_reader_never_sees_the_new_file_before_it_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with write_aside(path) as aside:
        aside.write_text("new, half")
        assert path.read_text() == "old"
    assert path.read_text() == "new, half"


def test_a_result_is_as_readable_as_any_other_file(tmp_path):
    before = os.umask(0o022)
    try:
        write_text(tmp_path / "a.txt", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o644


def test_lines_are_counted_and_keep_their_letters(tmp_path):
    assert write_jsonl(tmp_path / "a.jsonl", ({"i": i, "t": "é"} for i in range(3))) == 3
    assert (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()[2] == '{"i": 2, "t": "é"}'


def test_hashes_are_sha256_of_the_bytes(tmp_path):
    data = os.urandom(1_000_000)
    (tmp_path / "a").write_bytes(data)
    assert sha256(tmp_path / "a") == hashlib.sha256(data).hexdigest()


def test_a_library_that_puts_a_private_file_in_the_place_does_not_make_the_result_private(tmp_path):
    with write_aside(tmp_path / "a.bin") as aside:
        other = tmp_path / "other"
        other.write_bytes(b"x")
        other.chmod(0o600)
        os.replace(other, aside)
    write_text(tmp_path / "plain.txt", "x")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.bin", "plain.txt")}
    assert len(modes) == 1


# ------------------------------------------------------------------------------------------- what the system says

NAMES = {
    errno.ENOSPC: "the disk has no room left",
    errno.EDQUOT: "the disk quota of this user is used up",
    errno.EROFS: "the disk is mounted read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "the system does not permit it",
    errno.EIO: "the disk fails",
    errno.EFBIG: "the file is larger than the system allows",
    errno.EMFILE: "this process has too many files open",
    errno.ENAMETOOLONG: "the name is too long for the file system",
}


@pytest.mark.parametrize("code", NAMES, ids=errno.errorcode.get)
def test_what_the_system_says_of_a_file_is_told_with_what_to_do(tmp_path, code):
    path = tmp_path / "run" / "a.txt"
    with pytest.raises(StorageError) as caught, storage_errors(tmp_path / "run"):
        raise OSError(code, os.strerror(code), str(path))
    message = str(caught.value)
    assert message.startswith(f"Can't write {path}: {NAMES[code]}")
    assert (" free). " in message) == (code in (errno.ENOSPC, errno.EDQUOT)), "room is told where it is the trouble"
    assert message.count(". ") == 1, "what is wrong, and what to do"
    assert isinstance(caught.value.__cause__, OSError)


def test_the_callers_advice_stands_in_place_of_the_rule(tmp_path):
    with pytest.raises(StorageError, match=r"read-only\. Ask Ada\.$"), storage_errors(tmp_path, advice="Ask Ada."):
        raise OSError(errno.EROFS, "")


class RustError(Exception):
    """As of safetensors and tokenizers."""


def hidden_by_torch():
    try:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")  # noqa: B904


def told_by_rust():
    raise RustError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("fail", [hidden_by_torch, told_by_rust])
def test_a_full_disk_that_a_library_hides_is_seen(tmp_path, fail):
    with pytest.raises(StorageError, match="no room"), storage_errors(tmp_path):
        fail()


def no_rights(path):
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def test_errors_about_something_else_pass_as_they_are(tmp_path):
    def wrapped():
        try:
            raise no_rights(str(tmp_path / "a"))
        except OSError as err:
            raise TypeError("a bug") from err

    unchanged = {
        "a missing file": FileNotFoundError(errno.ENOENT, "", str(tmp_path / "a")),
        "a file elsewhere that can't be read": no_rights("/elsewhere/rows.jsonl"),
        "a neighbor": no_rights(str(tmp_path.parent / "neighbor")),
        "no file at all": ConnectionRefusedError(errno.ECONNREFUSED, ""),
        "a socket": PermissionError(errno.EACCES, ""),
        "an error that is already for people": DataError("rows.jsonl, line 3: No space left on device (os error 28)"),
    }
    for name, error in unchanged.items():
        with pytest.raises(type(error)) as caught, storage_errors(tmp_path):
            raise error
        assert caught.value is error, name
    with pytest.raises(TypeError, match="a bug"), storage_errors(tmp_path):
        wrapped()


@pytest.mark.parametrize("rows_fail", [True, False])
def test_an_input_that_can_not_be_read_is_no_trouble_of_the_output(tmp_path, rows_fail):
    def rows():
        yield 1
        raise no_rights(str(tmp_path / "input.jsonl" if rows_fail else tmp_path / "out.jsonl"))

    with pytest.raises(PermissionError if rows_fail else StorageError, match="denied"):
        write_jsonl(tmp_path / "out.jsonl", rows())
    assert files_in(tmp_path) == []


def test_a_path_that_leads_through_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file" / "a.txt", tmp_path / "file" / "deep" / "a.txt"):
        with pytest.raises(StorageError, match=r"file.*: .*a file, not a folder"):
            write_text(path, "x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match=r"folder of that name"):
        write_text(tmp_path / "folder", "x")
    assert files_in(tmp_path) == ["file", "folder"]


def test_the_first_error_is_told_where_cleaning_up_fails_as_well(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "")))
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StorageError, match="the disk fails"):
        write_text(tmp_path / "a.txt", "x")


# --------------------------------------------------------------------------------------------------- room and folders


def disk_of(free, total=1 << 40):
    return lambda path: shutil._ntuple_diskusage(total, total - free, free)


def test_room_is_asked_for_with_a_reserve(tmp_path, monkeypatch):
    needed, reserve = 1000 * 2**20, files.RESERVE_BYTES
    monkeypatch.setattr(shutil, "disk_usage", disk_of(int(needed * 1.02) + reserve))
    check_space(tmp_path / "not" / "there", needed)
    monkeypatch.setattr(shutil, "disk_usage", disk_of(int(needed * 1.02) + reserve - 1))
    with pytest.raises(StorageError) as caught:
        check_space(tmp_path / "not" / "there", needed, purpose="The model")
    message = (
        f"The model in {tmp_path}/not/there needs 1.0 GiB, 16.0 MiB of it as a reserve, and 1.0 GiB of 1.0 TiB is free"
    )
    assert str(caught.value).startswith(message)
    assert files_in(tmp_path) == []


def test_a_disk_that_does_not_know_its_size_is_believed_to_have_room(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", disk_of(0, 0))
    check_space(tmp_path, 1 << 50)


def test_new_folders_are_on_disk_before_anything_in_them(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "fsync", lambda path: synced.append(path))
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]


def test_a_folder_that_can_not_be_synced_is_no_error_and_a_file_is(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.EINVAL, "Invalid")))
    files.fsync(tmp_path)
    (tmp_path / "a").write_text("x")
    with pytest.raises(OSError, match="Invalid"):
        files.fsync(tmp_path / "a")


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path):
    (tmp_path / ".checkpoint-00000001.0a.tmp").mkdir()
    (tmp_path / ".checkpoint-00000001.0a.tmp" / "state.pt").write_text("half")
    for name in (".summary.json.0b.tmp", "mine.tmp", ".hidden", "summary.json"):
        (tmp_path / name).write_text("x")
    removed = [path.name for path in remove_leftovers(tmp_path)]
    assert removed == [".checkpoint-00000001.0a.tmp", ".summary.json.0b.tmp"]
    assert files_in(tmp_path) == [".hidden", "mine.tmp", "summary.json"]
