"""`rlhf compare`: what it answers to names that are misspelled."""

from __future__ import annotations

import pytest

from rlhf.errors import ModelError
from rlhf.registry.registry import Registry


@pytest.mark.parametrize(
    ("sides", "judge", "meant"),
    [
        (("champoin", "embedded"), "longer", "champion"),
        (("embedded", "champoin"), "longer", "champion"),
        (("embedded", "champion"), "longr", "longer"),
    ],
)
def test_a_misspelled_alias_or_rule_is_answered_with_the_one_it_resembles(
    call, tmp_path, monkeypatch, tiny_model_folder, sides, judge, meant
):
    monkeypatch.chdir(tmp_path)
    Registry("registry").promote(tiny_model_folder)
    code, _, err = call("compare", *sides, "--prompts", "p.jsonl", "--judge", judge)
    assert (code, f"Did you mean '{meant}'?" in err) == (ModelError.exit_code, True), err
