"""One literal row of each public layout, as its own readers and cards have it, and what becomes of it."""

from __future__ import annotations

import json

import pytest

from rlhf.errors import DataError
from rlhf.feedback.exchange import FORMATS, detect, read_as

HELPSTEER = {"prompt": "q", "correctness": 4, "coherence": 4, "complexity": 1, "verbosity": 2}
RATED = {"honesty": {"Rating": "4", "Rationale": "fine"}, "truthfulness": {"Rating": "5"}}
ROWS = {
    "ultrafeedback": [
        {
            "source": "evol_instruct", "instruction": "q", "models": ["m1", "m2"],
            "completions": [
                {"model": "m1", "response": "x", "overall_score": 7.5, "annotations": {**RATED, "helpfulness": {"Rating": "N/A"}}},
                {"model": "m2", "response": "y", "overall_score": 3.0,
                 "annotations": {"honesty": {"Rating": "1"}, "truthfulness": {"Rating": "2"}, "helpfulness": {"Rating": "3"}}},
            ],
        }
    ],
    "helpsteer2": [
        HELPSTEER | {"response": "x", "helpfulness": 3}, HELPSTEER | {"response": "y", "helpfulness": 0},
        HELPSTEER | {"prompt": "r", "response": "z", "helpfulness": 4},
    ],
    "helpsteer2-preference": [{"prompt": "q", "response_1": "x", "response_2": "y", "preference_strength": -3, "split": "train"}],
    "helpsteer3": [
        {
            "domain": "code", "context": [{"role": "user", "content": "q"}], "response1": "x", "response2": "y", "overall_preference": 1,
            "individual_preference": [{"score": 1, "reasoning": "B is slightly better"}, {"score": -2, "reasoning": "A is better"}],
        }
    ],
    "nectar": [
        {
            "prompt": "\n\nHuman: q\n\nAssistant: ", "num_responses": 7,
            "answers": [{"answer": f"a{n}", "model": f"m{n}", "rank": float(rank)} for n, rank in enumerate([3, 1, 2, 7, 6, 5, 4])],
        }
    ],
    "shp": [
        {
            "post_id": "p1", "c_root_id_A": "c1", "c_root_id_B": "c2", "history": "q", "human_ref_A": "x", "human_ref_B": "y",
            "labels": 0, "score_A": 3, "score_B": 9, "score_ratio": 3.0,
        }
    ],
    "pku-saferlhf": [
        {
            "prompt": "q", "response_0": "x", "response_1": "y", "is_response_0_safe": False, "is_response_1_safe": True,
            "response_0_severity_level": 2, "response_1_severity_level": 0, "better_response_id": 0, "safer_response_id": 1,
        }
    ],
}  # fmt: skip


@pytest.fixture
def read(tmp_path):
    def run(name, rows=None):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in (rows or ROWS[name])))
        return read_as(name, path).items

    return run


@pytest.mark.parametrize("name", ROWS)
def test_a_file_is_recognized_by_its_columns(name, tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]))
    assert detect(tmp_path / "rows.jsonl") == name


def test_every_public_layout_has_a_row_here():
    others = {"label-studio", "argilla", "argilla-flat", "openai", "hh", "labels"}
    assert set(ROWS) == {name for name, known in FORMATS.items() if known.read is not None} - others


def test_ultrafeedback_is_rated_on_what_every_completion_is_rated_on(read):
    (item,) = read("ultrafeedback")
    assert (item.task.kind, item.task.prompt, item.task.columns) == (
        "rating", "q", {"source": "evol_instruct", "models": ["m1", "m2"]}
    )  # fmt: skip
    assert [(s.annotator, s.value) for s in item.judgments] == [
        ("gpt-4", {"ratings": {"honesty": [4, 1], "truthfulness": [5, 2]}})
    ]
    assert [(r.model, r.columns["overall_score"]) for r in item.task.responses] == [("m1", 7.5), ("m2", 3.0)]
    assert item.task.responses[0].columns["annotations"]["honesty"]["Rationale"] == "fine"


def test_helpsteer2_groups_neighbors_and_counts_from_one(read):
    first, second = read("helpsteer2")
    assert [r.text for r in first.task.responses] == ["x", "y"]
    assert first.judgments[0].value["ratings"]["helpfulness"] == [4, 1]  # 3 and 0 of 0 to 4
    assert first.judgments[0].value["ratings"]["complexity"] == [2, 2]
    assert (second.task.prompt, len(second.task.responses)) == ("r", 1)


def test_strengths_below_zero_mean_that_the_first_is_better(read):
    (item,) = read("helpsteer2-preference")
    assert (item.task.kind, item.judgments[0].value, item.task.columns) == ("graded7", {"grade": 3}, {"split": "train"})
    (item,) = read("helpsteer3")
    assert [(s.annotator, s.value, s.comment) for s in item.judgments] == [
        ("helpsteer3-1", {"grade": -1}, "B is slightly better"), ("helpsteer3-2", {"grade": 2}, "A is better"),
    ]  # fmt: skip
    assert item.task.columns["overall_preference"] == 1


def test_nectar_loses_the_middle_of_seven_and_says_so(read):
    (item,) = read("nectar")
    assert item.task.prompt == [{"role": "user", "content": "q"}]
    # ranks 3 1 2 7 6 5 4: the fourth-best, a6, is the middle; the others close the gap
    assert [r.text[0]["content"] for r in item.task.responses] == ["a0", "a1", "a2", "a3", "a4", "a5"]
    assert item.judgments[0].value == {"ranks": [3, 1, 2, 6, 5, 4]}
    assert item.task.columns["left_out"] == [{"answer": "a6", "model": "m6", "rank": 4.0}]


def test_shp_is_named_by_its_post_and_comments(read):
    (item,) = read("shp")
    assert (item.task.id, item.judgments[0].value) == ("p1:c1:c2", {"preference": "b"})
    assert [r.columns for r in item.task.responses] == [
        {"score": 3, "c_root_id": "c1"},
        {"score": 9, "c_root_id": "c2"},
    ]
    assert item.task.columns == {"post_id": "p1", "score_ratio": 3.0}


def test_pku_saferlhf_asks_two_questions(read):
    helpful, safe = read("pku-saferlhf")
    assert [(i.task.batch, i.judgments[0].value["preference"]) for i in (helpful, safe)] == [
        ("helpfulness", "a"),
        ("safety", "b"),
    ]
    assert helpful.task.id.removesuffix("#helpfulness") == safe.task.id.removesuffix("#safety")
    assert [r.columns for r in safe.task.responses] == [
        {"is_response_safe": False, "response_severity_level": 2}, {"is_response_safe": True, "response_severity_level": 0},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (
            "helpsteer2",
            {"helpfulness": 5},
            "rows.jsonl:1: column 'helpfulness' is a number .5.; wanted a whole number from 0 to 4",
        ),
        (
            "helpsteer2-preference",
            {"preference_strength": "much"},
            "rows.jsonl:1: column 'preference_strength' is a string",
        ),
        ("helpsteer3", {"individual_preference": [3]}, r"rows.jsonl:1: individual_preference\[0\] is a number"),
        ("nectar", {"answers": "x"}, "rows.jsonl:1: column 'answers' is a string .'x'.; wanted a list"),
        ("shp", {"labels": None}, "rows.jsonl:1: column 'labels' is null"),
        ("pku-saferlhf", {"safer_response_id": 2}, "rows.jsonl:1: column 'safer_response_id' is a number"),
        (
            "ultrafeedback",
            {"completions": [{"model": "m"}]},
            r"rows.jsonl:1: column 'completions\[0\].response' is null",
        ),
    ],
)
def test_a_bad_row_names_file_line_and_column(name, change, words, read):
    with pytest.raises(DataError, match=words):
        read(name, [ROWS[name][0] | change])
