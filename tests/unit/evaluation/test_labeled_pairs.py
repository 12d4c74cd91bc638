from __future__ import annotations

import json

import pytest

from rlhf.errors import DataError
from rlhf.evaluation.labeled_pairs import own_side, read_labeled_pairs


def written(tmp_path, *rows):
    path = tmp_path / "votes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def vote(prompt="p", a="x", b="y", preference="a", **more):
    return {"prompt": prompt, "completion_a": a, "completion_b": b, "preference": preference, **more}


def test_votes_on_one_pair_come_together_whatever_the_order(tmp_path):
    labeled_pairs = read_labeled_pairs(
        written(
            tmp_path,
            vote(annotator_id="ann", model_a="m", model_b="n"),
            vote(a="y", b="x", annotator_id="bob", model_a="n", model_b="m"),
            vote(preference="tie", annotator_id="cem"),
            vote(preference="b", annotator_id="ann"),
        )
    )
    (one,) = labeled_pairs.pairs
    assert one.votes == {"ann": 0.0, "bob": 0.0, "cem": 0.5}, "the last of a person counts"
    assert one.models == ("m", "n")


def test_pairs_votes_without_a_name_and_equal_texts(tmp_path):
    labeled_pairs = read_labeled_pairs(
        written(
            tmp_path,
            {"prompt": "p", "chosen": "x", "rejected": "y", "chosen_ended": False, "topic": "cows", "gold_margin": 1.0},
            {"prompt": "p", "chosen": "y", "rejected": "x"},
            {"prompt": "p", "chosen": "z", "rejected": "z"},
        )
    )
    (one,) = labeled_pairs.pairs
    assert sorted(one.votes.values()) == [0.0, 1.0]
    assert (labeled_pairs.num_equal, labeled_pairs.unnamed) == (1, 2)
    assert one.pair.ended == (False, True)
    assert one.pair.columns == {"topic": "cows"}, "no judge is told what is about the label"


def test_prompts_are_drawn_whole(tmp_path):
    labeled_pairs = read_labeled_pairs(written(tmp_path, *(vote(f"p{i % 5}", b=f"y{i}") for i in range(20))))
    drawn = labeled_pairs.sampled(2, seed=0)
    assert len(drawn) == 8
    assert len({one.pair.prompt for one in drawn}) == 2
    assert drawn == labeled_pairs.sampled(2, seed=0) != labeled_pairs.sampled(2, seed=3)
    assert labeled_pairs.sampled(9, seed=0) == labeled_pairs.pairs


def test_a_file_that_says_nothing_is_an_error(tmp_path):
    with pytest.raises(DataError, match="two different completions"):
        read_labeled_pairs(written(tmp_path, vote(a="x", b="x")))
    with pytest.raises(DataError, match=r"votes\.jsonl:1"):
        read_labeled_pairs(written(tmp_path, vote(preference="c")))


def test_whose_own_model():
    assert own_side(("m", "n"), ["m"]) == 0
    assert own_side(("n", "m"), ["m"]) == 1
    assert [own_side(models, ["m"]) for models in (("m", "m"), ("n", "o"), ("m", None))] == [None] * 3
