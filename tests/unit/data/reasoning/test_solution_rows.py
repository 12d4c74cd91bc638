"""Rows with labels: what the verifier says, in the shapes the data room reads."""

from __future__ import annotations

import random

import pytest

from rlhf.data.contracts import StepwiseRow, UnpairedRow
from rlhf.data.reasoning import label_completions, outcome_row, parse_problem, stepwise_row, verify
from rlhf.data.reasoning.problems import draw_problem
from rlhf.data.reasoning.traces import CORRUPTED, write_trace
from rlhf.data.row_kinds import parse_row
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


def said(prompt, completions, **settings):
    """What the labeler says of the completions of one prompt."""
    return label_completions([prompt], [completions], **settings)[0]


def test_samples_are_labeled_in_order_and_empty_ones_are_left_out():
    labeled = label_completions([PROMPT, "0a+0b+0:"], [[SOUND, "", UNSOUND], ["garbage"]], seed=1)
    assert [[one and one["labels"] for one in group] for group in labeled] == [
        [[True] * 4, None, [False, True, False, True]],
        [[False]],
    ]
    assert [[one and "".join(one["completions"]) for one in group] for group in labeled] == [
        [SOUND, None, UNSOUND],
        ["garbage"],
    ]
    assert [[one and one["label"] for one in group] for group in labeled] == [[True, None, True], [False]]
    assert [labeled[0][0]["level"], labeled[1][0]["level"]] == ["easy", "easy"]


def test_those_cut_short_end_in_a_guess_that_is_labeled_wrong():
    actual = said(PROMPT, [SOUND] * 2000, cut_frac=0.15, seed=1)
    cut = [one for one in actual if one["completions"] != ["a9+6=5;", "b5*9=5;", "c5-4=1;", "A1."]]
    assert len(cut) / 2000 == pytest.approx(0.15, abs=0.03)
    for one in cut:
        assert len(one["completions"]) < 4
        assert one["labels"] == [True] * (len(one["labels"]) - 1) + [False]
    for one in actual:
        assert one["label"] == verify(PROMPT, "".join(one["completions"])).correct


def test_every_completion_is_cut_by_its_own_draw():
    other = "9a+6b*9c-5:"
    alone = said(PROMPT, [SOUND] * 50, cut_frac=0.5, seed=1)
    both = label_completions([other, PROMPT], [["A0."] * 7, [SOUND] * 50], cut_frac=0.5, seed=1)
    assert both[1] == alone
    with_gaps = said(PROMPT, [SOUND, "", *[SOUND] * 48], cut_frac=0.5, seed=1)
    assert with_gaps[2:] == alone[2:]
    assert said(PROMPT, [SOUND] * 50, cut_frac=0.5, seed=2) != alone
    lengths = [[len(one["labels"]) for one in said(p, [SOUND] * 50, cut_frac=0.5, seed=1)] for p in (PROMPT, other)]
    assert lengths[0] != lengths[1]


@pytest.mark.parametrize("cut_frac", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(cut_frac):
    with pytest.raises(ConfigError, match=r"cut_frac is .*0 to 1"):
        label_completions([], [], cut_frac=cut_frac, seed=1)


def test_a_sample_of_another_world_is_refused():
    with pytest.raises(DataError, match="reasoning world"):
        label_completions(["What does a cow eat?"], [["grass"]], seed=1)


def test_labels_say_sound_exactly_where_the_verifier_does():
    """The two roads to a verdict, through rows and through the judge, must never part."""
    draw = random.Random(5)
    for _ in range(300):
        problem = draw_problem(draw.randrange(2, 9), draw)
        text = "".join(write_trace(problem, CORRUPTED, draw))
        (one,) = said(problem.prompt, [text], seed=1)
        verdict = verify(problem.prompt, text)
        assert (all(one["labels"]) and len(one["labels"]) == problem.num_steps + 1) == verdict.sound
        assert one["label"] == verdict.correct
        assert one["labels"] == list(verdict.labels) == stepwise_row(problem, one["completions"])["labels"]
