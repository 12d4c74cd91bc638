"""Contexts of the embedded world."""

from __future__ import annotations

import json

from rlhf.data.world.contexts import build_contexts
from rlhf.data.world.facts import FACTS, VALUES
from rlhf.data.world.language import questions, statement

COUNTS = {"num_rows": 60, "num_test_rows": 20, "num_claims": 4}


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_one_claim_of_the_context_answers_the_question(tmp_path):
    assert build_contexts(0, tmp_path, **COUNTS) == {"contexts.jsonl": 60, "test_contexts.jsonl": 20, "sft.jsonl": 60}
    facts = {fact.id: fact for fact in FACTS}
    for row in rows_of(tmp_path / "contexts.jsonl") + rows_of(tmp_path / "test_contexts.jsonl"):
        fact = facts[row["fact"]]
        claims = [" " + statement(fact, value) for value in VALUES[fact.relation]]
        assert [claim for claim in claims if claim.strip() in row["context"]] == [row["completion"]]
        assert any(question in row["prompt"] for question in questions(fact))


def test_contexts_for_tests_have_all_claims_and_others_have_one_or_more(tmp_path):
    build_contexts(0, tmp_path, **COUNTS)
    assert {row["context"].count(".") for row in rows_of(tmp_path / "test_contexts.jsonl")} == {4}
    assert {row["context"].count(".") for row in rows_of(tmp_path / "contexts.jsonl")} == {1, 2, 3, 4}


def test_demonstrations_are_the_same_rows_with_the_context_in_the_prompt(tmp_path):
    build_contexts(0, tmp_path, **COUNTS)
    for row, shown in zip(rows_of(tmp_path / "contexts.jsonl"), rows_of(tmp_path / "sft.jsonl"), strict=True):
        assert shown == {"prompt": row["context"] + row["prompt"], "completion": row["completion"]}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    for seed, name in ((0, "a"), (0, "b"), (1, "c")):
        build_contexts(seed, tmp_path / name, **COUNTS)
    a, b, c = ((tmp_path / name / "contexts.jsonl").read_bytes() for name in "abc")
    assert a == b
    assert a != c
