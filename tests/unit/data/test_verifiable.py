"""Rows whose answer no verifier judges."""

from __future__ import annotations

import pytest

from rlhf.data.contracts import Prompt
from rlhf.data.verifiable import count_unverifiable, is_verifiable
from rlhf.errors import DataError


def test_true_and_false_also_as_a_csv_file_writes_them():
    given = [{}, {"verifiable": None}, {"verifiable": True}, {"verifiable": False}, {"verifiable": "False"}]
    assert [is_verifiable(columns) for columns in given] == [None, None, True, False, False]
    with pytest.raises(ValueError, match="verifiable"):
        is_verifiable({"verifiable": 0.5})


def test_prompts_that_are_not_verifiable_are_counted():
    prompts = [Prompt(f"p{n}", [1], "a", {"verifiable": n != 1}) for n in range(3)]
    assert count_unverifiable(prompts).startswith("1 of 3 prompts")
    assert count_unverifiable(prompts[:1]) == ""
    with pytest.raises(DataError, match="'p9'"):
        count_unverifiable([Prompt("p9", [1], "a", {"verifiable": "maybe"})])
