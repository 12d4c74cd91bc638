"""Rows with labels: what the verifier says, in the shapes the data room reads."""

from __future__ import annotations

import pytest

from rlhf.data.contracts import StepwiseRow, UnpairedRow
from rlhf.data.formats import parse_row
from rlhf.data.reasoning import label_samples, outcome_row, parse_problem, stepwise_row, verify
from rlhf.errors import ConfigError, DataError

PROMPT = "9a+6b*9c-4:"
SOUND = "a9+6=5;b5*9=5;c5-4=1;A1."
UNSOUND = "a9+6=6;b6*9=4;c4-4=1;A1."


def test_a_solution_becomes_one_row_of_each_kind():
    problem, steps = parse_problem(PROMPT), ["a9+6=6;", "b6*9=4;", "c4-4=1;", "A1."]
    assert stepwise_row(problem, steps) == {
        "prompt": PROMPT,
        "completions": steps,
        "labels": [False, True, False, True],
        "level": "easy",
    }
    assert outcome_row(problem, steps) == {"prompt": PROMPT, "completion": UNSOUND, "label": True, "level": "easy"}


def test_the_data_room_reads_them_as_what_they_are():
    problem, steps = parse_problem(PROMPT), ["a9+6=5;", "A5."]
    assert isinstance(parse_row(stepwise_row(problem, steps)), StepwiseRow)
    assert isinstance(parse_row(outcome_row(problem, steps)), UnpairedRow)


def test_samples_are_labelled_in_order_and_empty_ones_are_left_out():
    samples = [(PROMPT, [SOUND, "", UNSOUND]), ("0a+0b+0:", ["garbage"])]
    stepwise, outcome = label_samples(samples, cut_frac=0.0, seed=1)
    assert [row["labels"] for row in stepwise] == [[True] * 4, [False, True, False, True], [False]]
    assert ["".join(row["completions"]) for row in stepwise] == [row["completion"] for row in outcome]
    assert [row["label"] for row in outcome] == [True, True, False]
    assert [row["prompt"] for row in outcome] == [PROMPT, PROMPT, "0a+0b+0:"]


def test_those_cut_short_end_in_a_guess_that_is_labelled_wrong():
    stepwise, outcome = label_samples([(PROMPT, [SOUND] * 2000)], cut_frac=0.15, seed=1)
    cut = [row for row in stepwise if row["completions"] != ["a9+6=5;", "b5*9=5;", "c5-4=1;", "A1."]]
    assert len(cut) / 2000 == pytest.approx(0.15, abs=0.03)
    for row in cut:
        assert len(row["completions"]) < 4
        assert row["labels"] == [True] * (len(row["labels"]) - 1) + [False]
    for row in outcome:
        assert row["label"] == verify(row["prompt"], row["completion"]).correct


def test_a_row_does_not_depend_on_which_others_are_there():
    other = "0a+0b+0c+0:"
    alone, _ = label_samples([(PROMPT, [SOUND] * 50)], cut_frac=0.5, seed=1)
    both, _ = label_samples([(other, ["A0."] * 7), (PROMPT, [SOUND] * 50)], cut_frac=0.5, seed=1)
    assert both[7:] == alone
    another_seed, _ = label_samples([(PROMPT, [SOUND] * 50)], cut_frac=0.5, seed=2)
    assert another_seed != alone


def test_completions_of_different_prompts_are_cut_independently():
    one, other = (label_samples([(p, [SOUND] * 50)], cut_frac=0.5, seed=1)[0] for p in (PROMPT, "9a+6b*9c-5:"))
    assert [len(row["labels"]) for row in one] != [len(row["labels"]) for row in other]


@pytest.mark.parametrize("cut_frac", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(cut_frac):
    with pytest.raises(ConfigError, match=r"cut_frac is .*from 0 to 1"):
        label_samples([], cut_frac=cut_frac, seed=1)


def test_a_sample_of_another_world_is_refused():
    with pytest.raises(DataError, match="no problem of the reasoning world"):
        label_samples([("What does a cow eat?", ["grass"])], cut_frac=0.0, seed=1)
