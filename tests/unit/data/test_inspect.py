from __future__ import annotations

import json

import pytest

from rlhf.data.chat import chat_format
from rlhf.data.contracts import RowError
from rlhf.data.expand import to_conversational, to_standard
from rlhf.data.inspect import run_check, run_convert, run_dedup, run_stats
from rlhf.data.read import read_rows
from rlhf.data.row_kinds import parse_row
from rlhf.data.row_report import places
from rlhf.data.write import write_rows
from rlhf.errors import ConfigError, DataError, UnknownNameError

PAIR = {"prompt": "p", "chosen": "good answer", "rejected": "bad"}


@pytest.fixture
def messy(tmp_path):
    """Five good pairs (two the same, one of equal texts, one with the prompt repeated) and four bad rows."""
    rows = [
        PAIR,
        {"prompt": " P ", "chosen": "Good answer", "rejected": "bad", "margin": 1},
        {"prompt": "q", "chosen": "same", "rejected": "same"},
        {"prompt": "q", "chosen": "q one", "rejected": "q two"},
        {"prompt": "r", "chosen": " ", "rejected": "x"},
        {"prompt": "p", "chosen": "c"},
        {"text": "of another kind"},
    ]
    path = tmp_path / "messy.jsonl"
    path.write_text(
        "\n".join(map(json.dumps, rows)) + "\n{not json\n" + '{"prompt": 1, "chosen": "a", "rejected": "b"}\n'
    )
    return path


def test_check_says_what_a_file_is_and_lists_every_bad_row(messy):
    report = run_check(messy)
    assert (report.format, report.kind, report.conversational) == ("jsonl", "preference", False)
    assert (report.num_rows, report.num_usable) == (9, 5)
    assert [bad.where for bad in report.bad_rows] == [f"{messy}:{line}" for line in (6, 7, 8, 9)]
    assert "most are of kind preference" in report.bad_rows[1].reason
    findings = (report.num_duplicates, report.num_identical, report.num_empty_completions, report.num_prompt_repeated)
    assert findings == (1, 1, 1, 1)
    assert report.columns == {"margin": 1}
    assert json.loads(json.dumps(report.to_dict()))["num_usable"] == 5
    text = report.to_text()
    assert "5 of 9 rows usable" in text
    assert f"1 row with an empty completion: {messy}:5" in text
    assert f"1 duplicate of an earlier row: {messy}:2" in text
    assert f"left out of training): {messy}:3" in text
    assert f"with `columns`): {messy}:4" in text
    assert f"{messy}:8: not a JSON value" in text


def test_check_reports_a_file_of_nothing_but_bad_rows(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('{"a": 1}\n{"b": 2}\n')
    report = run_check(path)
    assert (report.num_usable, len(report.bad_rows), report.kind) == (0, 2, "unknown")
    with pytest.raises(DataError, match="There is no file"):
        run_check(tmp_path / "absent.jsonl")


def test_check_sees_dialogues_and_ties(tmp_path):
    path = tmp_path / "d.jsonl"
    rows = [
        {"prompt": [{"role": "user", "content": "hi"}], "completion_a": "x", "completion_b": "y", "preference": side}
        for side in ("a", "tie")
    ]
    write_rows(path, rows)
    report = run_check(path)
    assert (report.kind, report.conversational, report.num_ties) == ("comparison", True, 1)


def test_stats_measure_characters_and_tokens(messy, tokenizer):
    report = run_stats(messy, tokenizer=tokenizer)
    chosen = report.characters["chosen"]
    # The bad rows and the text row are left to `check`: six rows have texts, five of them pairs.
    assert (chosen.count, chosen.min, chosen.max) == (5, 1, 11)
    assert chosen.percentiles[50] == 5
    assert report.characters["row"].max == 3 + 11  # " P " + "Good answer"
    ids = tokenizer("good answer", add_special_tokens=False)["input_ids"]
    assert report.tokens["chosen"].max >= len(ids)
    assert report.num_prompts == 5
    # longer in two, equal in two (counted half), shorter in none, " " against "x" equal
    assert report.chosen_longer_frac == pytest.approx((1 + 1 + 0.5 + 0.5 + 0.5) / 5)
    assert "p50" in report.to_text()
    json.dumps(report.to_dict())


def test_stats_count_labels(tmp_path):
    path = tmp_path / "d.jsonl"
    write_rows(path, [{"prompt": "p", "completion": "c", "label": label} for label in (True, True, False)])
    assert run_stats(path).labels == {"desirable": 2, "undesirable": 1}
    assert run_stats(path).tokens is None


def test_dedup_keeps_the_first_and_names_the_others(tmp_path):
    path, out = tmp_path / "d.jsonl", tmp_path / "out.jsonl"
    base = " ".join(f"w{n}" for n in range(40))
    write_rows(path, [{"text": base}, {"text": base.upper()}, {"text": base + " more"}, {"text": "else"}])
    report = run_dedup(path, out)
    assert (report.num_rows, report.num_kept, report.groups) == (4, 3, [[f"{path}:1", f"{path}:2"]])
    assert [row.text for row in read_rows(out)] == [base, base + " more", "else"]
    near = run_dedup(path, out, near=0.9)
    assert near.num_kept == 2
    assert f"{path}:1 = {path}:2, {path}:3" in near.to_text()
    assert run_dedup(path).written is None


# -- converting


def convert(tmp_path, rows, to=None, name="out.jsonl", **given):
    source = tmp_path / "in.jsonl"
    write_rows(source, rows)
    run_convert(source, tmp_path / name, to=to, **given)
    return [row.to_dict() for row in read_rows(tmp_path / name)]


@pytest.mark.parametrize("name", ["out.json", "out.csv", "out.parquet", "out.jsonl.gz"])
def test_the_file_format_follows_the_name(tmp_path, name):
    assert convert(tmp_path, [PAIR], name=name) == [PAIR]


def test_implicit_prompts_become_explicit(tmp_path):
    rows = [{"chosen": "\n\nHuman: hi\n\nAssistant: a b", "rejected": "\n\nHuman: hi\n\nAssistant: a c"}]
    assert convert(tmp_path, rows, "explicit") == [
        {"prompt": "\n\nHuman: hi\n\nAssistant:", "chosen": " a b", "rejected": " a c"}
    ]


def test_pairs_come_apart_and_together_again(tmp_path):
    apart = convert(tmp_path, [PAIR], "unpaired")
    assert apart == [
        {"prompt": "p", "completion": "good answer", "label": True},
        {"prompt": "p", "completion": "bad", "label": False},
    ]
    (together,) = convert(tmp_path, apart, "paired")
    assert {name: together[name] for name in PAIR} == PAIR


def test_ratings_pair_up_within_a_prompt(tmp_path):
    rows = [
        {"prompt": prompt, "completion": completion, "rating": rating}
        for prompt, completion, rating in [("p", "a", 1), ("q", "b", 5), ("p", "c", 4), ("p", "d", 4), ("q", "e", 5)]
    ]
    pairs = convert(tmp_path, rows, "paired")
    # c and d tie; b and e tie; so only c > a and d > a are left.
    assert [(pair["chosen"], pair["rejected"], pair["chosen_rating"]) for pair in pairs] == [
        ("c", "a", 4),
        ("d", "a", 4),
    ]
    with pytest.raises(DataError, match=r"paired of 2 rows.*in\.jsonl"):
        convert(tmp_path, [rows[1], rows[4]], "paired")


def test_rankings_become_pairs_then_labels_in_two_steps(tmp_path):
    rows = [{"prompt": "p", "completions": ["a", "b"], "ranks": [2, 1]}]
    made = convert(tmp_path, rows, "preference, unpaired")
    assert [(row["completion"], row["label"]) for row in made] == [("b", True), ("a", False)]


def test_other_steps_take_a_side_or_the_prompt(tmp_path):
    assert convert(tmp_path, [PAIR], "completion") == [{"prompt": "p", "completion": "good answer"}]
    (prompt,) = convert(tmp_path, [{"prompt": "p", "answer": "4"}], ["prompt"])
    assert prompt == {"prompt": "p", "answer": "4"}


def test_transcripts_become_messages_and_back(tmp_path, chat_tokenizer):
    rows = [
        {
            "chosen": "\n\nHuman: hi\n\nAssistant: yes\n\nHuman: so\n\nAssistant: a",
            "rejected": "\n\nHuman: hi\n\nAssistant: no",
        }
    ]
    (row,) = convert(tmp_path, rows, "conversational")
    assert row["prompt"] == [{"role": "user", "content": "hi"}]
    assert [message["content"] for message in row["chosen"]] == ["yes", "so", "a"]
    assert row["rejected"] == [{"role": "assistant", "content": "no"}]
    back = to_standard(parse_row(row), chat_format(chat_tokenizer))
    assert back.prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert back.rejected == "no<|im_end|>\n"
    with pytest.raises(ConfigError, match="name the tokenizer"):
        convert(tmp_path, [row], "standard")


def test_plain_strings_become_a_users_and_an_assistants_message():
    row = to_conversational(parse_row({"prompt": "p", "completion": " c", "margin": 1}))
    assert row.to_dict() == {
        "prompt": [{"role": "user", "content": "p"}],
        "completion": [{"role": "assistant", "content": "c"}],
        "margin": 1,
    }
    with pytest.raises(RowError, match=r"text.*roles"):
        to_conversational(parse_row({"text": "once upon a time"}))


def test_a_step_that_can_not_be_taken_is_refused(tmp_path):
    with pytest.raises(UnknownNameError, match=r"'unpair'.*'unpaired'"):
        convert(tmp_path, [PAIR], "unpair")
    with pytest.raises(RowError, match=r"in.jsonl:1: .*preference.*'paired'.*rating"):
        convert(tmp_path, [PAIR], "paired")
    with pytest.raises(DataError, match=r"out\.txt"):
        convert(tmp_path, [PAIR], name="out.txt")
    assert not (tmp_path / "out.txt").exists()


def test_what_can_not_be_written_names_row_and_column(tmp_path):
    with pytest.raises(DataError, match=r"d.jsonl: row 2: column 'margin'"):
        write_rows(tmp_path / "d.jsonl", [PAIR, {**PAIR, "margin": float("nan")}])
    with pytest.raises(DataError, match=r"'a'.*Parquet"):
        write_rows(tmp_path / "d.parquet", [{"a": 1}, {"a": "x"}])
    with pytest.raises(DataError, match="Arrow"):
        write_rows(tmp_path / "d.arrow", [PAIR])
    assert list(tmp_path.iterdir()) == [], "half a file is never left behind"


def test_the_real_pairs_are_checked_as_documented(assets):
    report = run_check(sorted((assets / "hh_rlhf").glob("*/test.jsonl.gz")))
    assert (report.num_rows, report.num_usable, report.num_identical, len(report.bad_rows)) == (8552, 8552, 36, 0)


def test_rows_that_are_wrong_in_the_same_way_are_one_line(tmp_path):
    path = tmp_path / "d.jsonl"
    rows = [{"question": "q", "answer": "a"}] * 60 + [{"text": "good"}, {"question": "q", "answer": "a"}, {"text": 3}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    report = run_check(path)
    _head, _usable, count, same, other = report.to_text().splitlines()
    assert count == "62 bad rows:"
    assert same.startswith(f"  {path}:1-60, 62 (61 rows): no known kind of row has these columns")
    assert "`columns: {question: prompt, answer: completion}`" in same
    assert other.startswith(f"  {path}:63: ")
    assert len(report.to_dict()["bad_rows"]) == 62


def test_one_of_a_kind_is_counted_in_the_singular(tmp_path):
    path = tmp_path / "d.jsonl"
    write_rows(path, [{"prompt": "p", "chosen": "same", "rejected": "same"}])
    assert "1 of 1 row usable\n1 pair with equal texts" in run_check(path).to_text()
    assert run_stats(path).to_text().startswith(f"{path}: 1 preference row, 1 distinct prompt\n")
    path.write_text("{}\n{not json\n", encoding="utf-8")
    assert "\n2 bad rows:\n" in run_check(path).to_text()


@pytest.mark.parametrize(
    ("wheres", "text"),
    [
        (["d:1"], "d:1"),
        (["d:1", "d:2", "d:4"], "d:1-2, 4 (3 rows)"),
        (["a:1", "b:2"], "a:1, b:2 (2 rows)"),
        (["row 9", "row 10"], "row 9-10 (2 rows)"),
        (["here", "there"], "here, there (2 rows)"),
        ([f"d:{n}" for n in range(1, 40, 2)], "d:1, 3, 5, 7, 9, 11, 13, 15 ... (20 rows)"),
    ],
)
def test_places_of_rows_are_joined_where_they_are_neighbors(wheres, text):
    assert places(wheres) == text


def test_check_names_a_text_column_that_reaches_no_token():
    rows = [{"prompt": "Who?", "context": "Ann sang.", "completion": "Ann", "source": "x"}]
    told = run_check(rows).to_text()
    assert "'context' reaches no token of 1 row" in told
    assert "'source' reaches" not in told
    dolly = [{"instruction": "Who?", "context": "Ann sang.", "response": "Ann"}]
    assert "reaches no token" not in run_check(dolly).to_text()
