"""A part of what `python tools/fuzz.py` does, with a fixed seed; and that the fuzzer would see what it looks for."""

from __future__ import annotations

import random
import signal
import time

import pytest

from rlhf.errors import DataError
from tools import fuzz, fuzz_damage


@pytest.mark.parametrize(("kind", "count"), [("data", 300), ("recipe", 30), ("checkpoint", 60)])
def test_damaged_files_are_accepted_or_refused_by_name(kind, count):
    tally = fuzz.fuzz(kind, range(count), seed=1)
    assert tally.results.total() == count
    assert [f"{bad.number}: {bad.problem}" for bad in tally.problems] == []
    assert tally.results["accepted"] > 0.05 * count, (
        "files so damaged that all are refused at the door test only the door"
    )
    assert tally.results["accepted"] < 0.95 * count


def test_a_case_is_the_same_every_time(tmp_path):
    for kind in ("data", "recipe"):
        made = []
        for again in ("first", "second"):  # the cases before a case must not change it
            for number in range(40) if again == "first" else [39]:
                folder = tmp_path / f"{kind}-{again}-{number}"
                folder.mkdir()
                fuzz.make_case(kind, number, 0, folder)
            made.append(fuzz.contents(folder))
        assert made[0] == made[1] != {}


@pytest.fixture
def read_by(monkeypatch, tmp_path):
    """Runs a case with another reader in place of the real one."""

    def run(read):
        path = tmp_path / "data.jsonl"
        path.write_bytes(b"{}\n")
        monkeypatch.setattr(fuzz, "make_case", lambda *_: (path, read))
        return fuzz.run_case("data", 0, 0, tmp_path).problem

    return run


def test_the_fuzzer_sees_what_it_looks_for(read_by, monkeypatch):
    def wait(path, rng):
        time.sleep(10)

    def fail(message):
        def read(path, rng):
            raise DataError(message.replace("PATH", str(path)))

        return read

    assert read_by(lambda path, rng: None) == ""
    assert read_by(fail("PATH is bad")) == ""
    assert "does not name data.jsonl" in read_by(fail("bad"))
    assert "an empty message" in read_by(fail(" "))
    assert "not one paragraph" in read_by(fail("PATH\n\nis bad"))
    assert "not one paragraph" in read_by(fail("PATH" + "x" * 5000))
    assert "can't be printed" in read_by(fail("PATH \x1b[31m"))
    assert read_by(lambda path, rng: {}["x"]).startswith("KeyError at test_fuzz.py:")
    assert "changed or removed: data.jsonl" in read_by(lambda path, rng: path.write_bytes(b""))
    assert "left behind: .x.tmp" in read_by(lambda path, rng: path.with_name(".x.tmp").write_bytes(b""))
    monkeypatch.setattr(fuzz, "SECONDS_FOR_A_CASE", 0.05)
    assert "not done after 0.05 s" in read_by(wait)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0), "the alarm is off again"


def test_damage_is_damage_most_of_the_time():
    rng = random.Random(0)
    data = b'{"prompt": "cow", "completion": "grass"}\n' * 3
    changed = sum(fuzz_damage.damage_bytes(rng, data) != data for _ in range(200))
    assert changed > 150
