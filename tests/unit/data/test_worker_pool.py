"""Rows tokenized in several processes: what one process makes of them, and what it says of bad ones."""

from __future__ import annotations

import json
import os
import threading

import pytest

from rlhf.data import datasets as module
from rlhf.data import worker_pool
from rlhf.data.datasets import GRPODataset, PreferenceDataset, SFTDataset, StepwiseDataset
from rlhf.errors import ConfigError, DataError
from tests.fixtures import toy


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)


class InAThread:
    """In the place of ``subprocess.Popen``: the same bytes through the same pipe, without two seconds of a fresh interpreter's imports."""

    def __init__(self, words, **how):
        pipe = os.dup(int(words[-1]))
        self.thread = threading.Thread(target=worker_pool.main, args=(pipe,), daemon=True)
        self.thread.start()

    def kill(self):
        """It ends with the pipe."""

    def wait(self, timeout=10):
        self.thread.join(timeout)
        assert not self.thread.is_alive()
        return 0


@pytest.fixture
def in_threads(monkeypatch):
    monkeypatch.setattr(worker_pool.subprocess, "Popen", InAThread)


def write(path, rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def opened(kind, path, workers, **options):
    return kind(path, toy.TOKENIZER, workers=workers, **options)


def stored(data):
    return [(row, item) for row, item in data._items]


@pytest.mark.parametrize("kind", [PreferenceDataset, StepwiseDataset, GRPODataset])
def test_items_order_and_counts_are_those_of_one_worker(tmp_path, kind, in_threads):
    assert_three_do_as_one(tmp_path, kind)


def test_items_order_and_counts_are_those_of_one_process(tmp_path):
    assert_three_do_as_one(tmp_path, SFTDataset)


def assert_three_do_as_one(tmp_path, kind):
    rows = []
    for number in range(40):
        row = {"prompt": f"q{number % 30}", f"column_{number}": 1, "id": f"r{number % 35}"}
        if kind is PreferenceDataset:
            row |= {"chosen": f" a{number}", "rejected": " b" if number % 6 else f" a{number}"}
        elif kind is StepwiseDataset:
            row |= {"completions": ["s", f"t{number}"], "labels": [True, False]}
        elif kind is SFTDataset:
            row |= {"completion": " c" * (1 + number % 9)}
        rows.append(row)
    path = write(tmp_path / "rows.jsonl", rows)
    options = {"truncation": "drop", "max_prompt_length": 9} | ({} if kind is GRPODataset else {"max_length": 14})
    if kind is StepwiseDataset:
        options["step_separator"] = "#"
    one, three = opened(kind, path, 1, **options), opened(kind, path, 3, **options)
    assert stored(one) == stored(three)
    assert one.report == three.report
    assert 0 < len(one) <= 40


def test_a_bad_row_is_the_error_of_one_process_and_the_first_of_the_file(tmp_path, in_threads):
    rows = [{"prompt": "q", "completion": " a"} for _ in range(30)]
    rows[9] = {"prompt": "q", "completion": " too long" * 20}
    lines = [json.dumps(row) for row in rows]
    lines[20] = "{"
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    said = []
    for workers in (1, 2):
        with pytest.raises(DataError) as caught:
            opened(SFTDataset, str(path), workers, max_length=8)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert "rows.jsonl:10" in said[0], "the long row comes before the broken line, though that is read ahead"


def test_bad_rows_are_skipped_and_listed_as_by_one_process(tmp_path, in_threads):
    rows = [{"prompt": "q", "completion": " a", "prompt_ids": [5], "completion_ids": [6]} for _ in range(20)]
    rows[3]["completion_ids"] = [10**9]
    rows[18]["prompt_ids"] = []
    path = write(tmp_path / "rows.jsonl", rows)
    one, two = (opened(SFTDataset, path, workers, on_bad_row="skip") for workers in (1, 2))
    assert (stored(one), one.report) == (stored(two), two.report)
    assert [bad.where.rpartition(":")[2] for bad in two.report.bad_rows] == ["4", "19"]


def test_columns_that_can_not_be_sent_are_tokenized_here(in_threads):
    rows = [{"prompt": "q", "completion": " a", "extra": (lambda: 1) if n == 9 else n} for n in range(20)]
    assert stored(opened(SFTDataset, rows, 2)) == stored(opened(SFTDataset, rows, 1))


def test_impossible_numbers_of_workers_are_refused():
    with pytest.raises(ConfigError, match="workers is 0"):
        opened(SFTDataset, [{"text": "a"}], 0)


class Dies:
    """Ends the process that gets it."""

    def __reduce__(self):
        return (exec, ("import os; os._exit(3)",))


def test_a_process_that_ends_is_named(tmp_path):
    rows = [{"prompt": "q", "completion": " a", "extra": Dies()}]
    with pytest.raises(DataError, match="exit code 3"):
        opened(SFTDataset, rows, 2)
