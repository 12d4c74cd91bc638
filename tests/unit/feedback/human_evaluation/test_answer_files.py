"""Completions of several models brought together by their prompts."""

from __future__ import annotations

import json

import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.feedback.human_evaluation.answer_files import read_answers, returned_rows


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows_of(model, prompts, *, ids=True):
    return [
        {"prompt": prompt, "completion": f"{model}: {prompt}"} | ({"id": f"id-{prompt}"} if ids else {})
        for prompt in prompts
    ]


def test_completions_meet_by_their_prompt_and_not_by_their_line(tmp_path):
    one = written(tmp_path / "one.jsonl", rows_of("one", ["p", "q", "r"]))
    two = written(tmp_path / "two.jsonl", rows_of("two", ["r", "p", "q"], ids=False))
    answers = read_answers([one, two])
    assert answers.prompts == ["p", "q", "r"]
    assert answers.ids == ["id-p", "id-q", "id-r"]
    assert answers.completions == {"one": ["one: p", "one: q", "one: r"], "two": ["two: p", "two: q", "two: r"]}


def test_a_prompt_without_an_id_is_named_by_its_text_and_not_by_its_place(tmp_path):
    def ids(*prompts):
        return read_answers([written(tmp_path / "one.jsonl", rows_of("one", prompts, ids=False))]).ids

    assert ids("p", "q") == [*reversed(ids("q", "p"))]
    assert not set(ids("p", "q")) & set(ids("r", "s"))
    twice = [{"id": n, "prompt": "same", "completion": n} for n in "ab"] + [{"prompt": "p", "completion": "c"}]
    actual = read_answers([written(tmp_path / "one.jsonl", twice)]).ids
    assert len(set(actual)) == 3
    assert actual[2] == ids("p")[0]


def test_a_model_is_called_by_the_argument_or_its_column_or_its_file(tmp_path):
    plain = written(tmp_path / "plain.jsonl", rows_of("x", ["p"]))
    said = written(tmp_path / "said.jsonl", [row | {"model": "hub/model"} for row in rows_of("y", ["p"])])
    odd = written(tmp_path / "a=b.jsonl", rows_of("z", ["p"]))
    assert list(read_answers([plain, said, odd]).completions) == ["plain", "hub/model", "a=b"]
    assert list(read_answers([f"mine={said}", f"other={plain}"]).completions) == ["mine", "other"]
    with pytest.raises(ConfigError, match=r"'hub/model'.*first="):
        read_answers(
            [said, written(tmp_path / "again.jsonl", [{"prompt": "p", "completion": "c", "model": "hub/model"}])]
        )


def test_two_prompts_of_one_text_are_told_apart_by_their_ids(tmp_path):
    files = [
        written(
            tmp_path / f"{name}.jsonl",
            [{"id": n, "prompt": "same", "completion": f"{name}{n}"} for n in order],
        )
        for name, order in (("one", "ab"), ("two", "ba"))
    ]
    assert read_answers(files).completions == {"one": ["onea", "oneb"], "two": ["twoa", "twob"]}


def test_models_that_answered_other_prompts_are_not_compared(tmp_path):
    one = written(tmp_path / "one.jsonl", rows_of("one", ["p", "q"]))
    two = written(tmp_path / "two.jsonl", rows_of("two", ["p"]))
    with pytest.raises(DataError, match=r"'two' .*1 prompt.*one\.jsonl:2"):
        read_answers([one, two])
    twice = written(tmp_path / "twice.jsonl", rows_of("one", ["p", "p"]))
    with pytest.raises(DataError, match=r"twice\.jsonl:2.*twice\.jsonl:1"):
        read_answers([twice])
    with pytest.raises(DataError, match="wanted `prompt` and `completion`"):
        read_answers([written(tmp_path / "pairs.jsonl", [{"prompt": "p", "chosen": "a", "rejected": "b"}])])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": "t", "annotator": "ann"}, "has no value"),
        ({"id": "t", "annotator": "ann", "value": "a"}, "wanted an object"),
        ({"id": 7, "annotator": "ann", "value": {}}, "id is .*wanted the text"),
        ([], "is no object"),
    ],
)
def test_what_comes_back_is_checked_line_by_line(row, message, tmp_path):
    good = {"id": "s", "annotator": "ann", "value": {"preference": "a"}}
    with pytest.raises(DataError, match=rf"back\.jsonl:2.*{message}"):
        returned_rows(written(tmp_path / "back.jsonl", [good, row]))
    with pytest.raises(DataError, match=r"back\.jsonl:2.*'s'.*back\.jsonl:1"):
        returned_rows(written(tmp_path / "back.jsonl", [good, good]))
