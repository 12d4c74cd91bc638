"""Prompts that are kept from training: no prompt on both sides, the same ones every time."""

from __future__ import annotations

import json

from rlhf.files import write_jsonl
from rlhf.pipeline.held_out import split_by_prompt

ROWS = [{"prompt": f"question {i % 20}", "chosen": f"a{i}", "rejected": "b", "margin": i} for i in range(60)]


def rows_in(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def split(tmp_path, rows=ROWS, *, name="pairs.jsonl", frac=0.1, seed=3):
    write_jsonl(tmp_path / name, rows)
    return split_by_prompt(str(tmp_path / name), tmp_path / "run" / "held_out", frac=frac, seed=seed)


def test_all_rows_of_a_prompt_go_to_one_side_and_no_row_is_lost(tmp_path):
    parts = split(tmp_path)
    training, held_out = rows_in(parts.training), rows_in(parts.held_out)
    assert (parts.num_held_out, parts.num_prompts) == (2, 20)
    assert len(held_out) == 6, "three rows of each of the two prompts"
    assert {row["prompt"] for row in training}.isdisjoint({row["prompt"] for row in held_out})
    assert sorted(row["margin"] for row in training + held_out) == list(range(60))
    assert all(row in ROWS for row in training + held_out), "with all their columns"


def test_seed_and_prompts_decide_and_not_the_order_of_the_file(tmp_path):
    chosen = {row["prompt"] for row in rows_in(split(tmp_path).held_out)}
    assert {row["prompt"] for row in rows_in(split(tmp_path, ROWS[::-1]).held_out)} == chosen
    assert any({row["prompt"] for row in rows_in(split(tmp_path, seed=s).held_out)} != chosen for s in (4, 5, 6))


def test_what_is_there_already_is_not_written_again(tmp_path):
    before = split(tmp_path).training.stat()
    after = split(tmp_path).training.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_where_nothing_can_be_held_out_the_file_stays_whole(tmp_path):
    assert split(tmp_path, frac=0) is None
    assert split(tmp_path, [{"prompt": "one", "completion": "x"}] * 4) is None, "one prompt has no other side"
    assert split(tmp_path, [{"prompt": "one"}, {"prompt": 2}]) is None, "the stage that reads it will complain"
    assert split_by_prompt("org/data", tmp_path, frac=0.1, seed=0) is None
    (tmp_path / "rows.csv").write_text("prompt\na\nb\n")
    assert split_by_prompt(str(tmp_path / "rows.csv"), tmp_path, frac=0.1, seed=0) is None
