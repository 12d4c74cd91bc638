from __future__ import annotations

import hashlib
import json
import os
import stat

import pytest

from rlhf.files import sha256, write_aside, write_json, write_jsonl, write_text


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
