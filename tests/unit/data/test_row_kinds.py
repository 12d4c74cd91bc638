from __future__ import annotations

import pytest

from rlhf.data.contracts import Kind, RowError
from rlhf.data.plans import PREFERENCE, SFT
from rlhf.data.row_kinds import parse_row, split_implicit_prompt

USER = {"role": "user", "content": "hi"}
GOOD = {"role": "assistant", "content": "hello"}
BAD = {"role": "assistant", "content": "go away"}


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ({"text": "a"}, Kind.TEXT),
        ({"messages": [USER, GOOD]}, Kind.MESSAGES),
        ({"prompt": "p", "completion": "c"}, Kind.COMPLETION),
        ({"prompt": "p", "chosen": "c", "rejected": "r"}, Kind.PREFERENCE),
        ({"chosen": "x c", "rejected": "x r"}, Kind.PREFERENCE),
        ({"prompt": "p", "completion_a": "c", "completion_b": "d", "preference": "a"}, Kind.COMPARISON),
        ({"prompt": "p", "completions": ["a", "b"], "ranks": [1, 2]}, Kind.RANKING),
        ({"prompt": "p", "completions": ["a", "b"], "ratings": [1, 2]}, Kind.RANKING),
        ({"prompt": "p", "completion": "c", "rating": 3}, Kind.RATING),
        ({"prompt": "p", "completion": "c", "label": True}, Kind.UNPAIRED),
        ({"prompt": "p", "completions": ["a", "b"], "labels": [True, False]}, Kind.STEPWISE),
        ({"prompt": "p", "answer": "4"}, Kind.PROMPT),
    ],
)
def test_each_kind_is_known_by_its_columns(raw, kind):
    assert parse_row(raw).kind is kind


@pytest.mark.parametrize(
    "names", [("instruction", "response"), ("prompt", "completion"), ("input", "output"), ("prompt", "response")]
)
def test_the_usual_column_names_are_recognized(names):
    row = parse_row({names[0]: "question", names[1]: "answer"})
    assert (row.prompt, row.completion) == ("question", "answer")


def test_dollys_context_joins_the_instruction():
    row = {"instruction": "Who?", "context": "Ann sang.", "response": "Ann", "category": "closed_qa"}
    assert parse_row(row).prompt == "Who?\n\nAnn sang."
    assert parse_row(row).columns == {"category": "closed_qa"}
    assert parse_row({**row, "context": ""}).prompt == "Who?"
    assert parse_row({**row, "input": "Bo hummed."}).columns["context"] == "Ann sang.", "only one of the two"
    assert parse_row({"prompt": "Who?", "context": "c", "completion": "Ann"}).columns == {"context": "c"}


def test_alpaca_context_joins_the_instruction():
    assert parse_row({"instruction": "Sum.", "input": "1 2", "output": "3"}).prompt == "Sum.\n\n1 2"
    assert parse_row({"instruction": "Sum.", "input": "", "output": "3"}).prompt == "Sum."


def test_a_canonical_name_wins_over_an_alias_and_the_alias_stays_a_column():
    row = parse_row({"prompt": "p", "completion": "c", "response": "other"})
    assert row.completion == "c"
    assert row.columns == {"response": "other"}


def test_unknown_columns_travel_with_the_row():
    row = parse_row({"id": 7, "prompt": "p", "chosen": "c", "rejected": "r", "margin": 0.5, "topic": "x"})
    assert row.id == "7"
    assert row.columns == {"id": 7, "margin": 0.5, "topic": "x"}


@pytest.mark.parametrize(
    ("label", "good"),
    [(True, True), (0, False), (1.0, True), ("desirable", True), ("Undesirable", False), ("false", False)],
)
def test_labels_are_read_in_every_usual_spelling(label, good):
    assert parse_row({"prompt": "p", "completion": "c", "label": label}).label is good


@pytest.mark.parametrize(
    ("phrase", "side", "strength"),
    [
        ("a", "a", None),
        ("B", "b", None),
        ("tie", "tie", None),
        ("same", "tie", None),
        ("a-is-slightly-better", "a", "slightly"),
        ("b_significantly", "b", "significantly"),
        ("b-is-better", "b", None),
    ],
)
def test_the_five_steps_are_read_from_phrases(phrase, side, strength):
    row = parse_row({"prompt": "p", "completion_a": "c", "completion_b": "d", "preference": phrase})
    assert (row.preference, row.strength) == (side, strength)


@pytest.mark.parametrize("phrase", ["c", "a b", "not a", 1, "", "a slightly significantly"])
def test_an_unclear_preference_is_refused(phrase):
    with pytest.raises(RowError, match=r"'preference' .*a, b or tie"):
        parse_row({"prompt": "p", "completion_a": "c", "completion_b": "d", "preference": phrase})


def test_sharegpt_turns_become_messages():
    row = parse_row({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]})
    assert row.messages == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]


def test_a_string_beside_messages_becomes_a_message():
    row = parse_row({"prompt": [USER], "completion": "hello"})
    assert row.completion == [GOOD]
    row = parse_row({"prompt": "hi", "completion": [GOOD]})
    assert row.prompt == [USER]


# -- implicit prompts


def test_an_implicit_dialogue_is_cut_between_messages():
    row = parse_row({"chosen": [USER, GOOD], "rejected": [USER, BAD]})
    assert (row.prompt, row.chosen, row.rejected) == ([USER], [GOOD], [BAD])


def test_equal_dialogues_keep_their_last_message_as_completion():
    assert split_implicit_prompt([USER, GOOD], [USER, GOOD]) == ([USER], [GOOD], [GOOD])


def test_a_prompt_string_that_the_dialogues_repeat_is_not_given_twice():
    # The shape of UltraFeedback: prompt as a string and again inside both sides.
    row = parse_row({"prompt": "hi", "chosen": [USER, GOOD], "rejected": [USER, BAD]})
    assert (row.prompt, row.chosen, row.rejected) == ([USER], [GOOD], [BAD])


def test_hh_rlhf_is_cut_at_the_last_shared_assistant():
    shared = "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant:"
    # " I" is shared too, but belongs to the completions.
    assert split_implicit_prompt(shared + " I do", shared + " I don't") == (shared, " I do", " I don't")
    assert split_implicit_prompt(shared + " x", shared + " x") == (shared, " x", " x")


@pytest.mark.parametrize(
    ("chosen", "rejected", "prompt"),
    [
        ("Q: hi A: good", "Q: hi A: great", "Q: hi A:"),  # not "Q: hi A: g"
        ("I like", "I like cats", "I like"),
        ("cat", "cow", "c"),  # one word: nowhere to go back to
        ("same", "same", ""),
    ],
)
def test_other_texts_are_cut_where_a_word_begins(chosen, rejected, prompt):
    actual, first, second = split_implicit_prompt(chosen, rejected)
    assert actual == prompt
    assert (actual + first, actual + second) == (chosen, rejected)


def test_a_script_without_spaces_keeps_its_shared_beginning():
    shared = "天" * 60
    assert split_implicit_prompt(shared + "地", shared + "人")[0] == shared


# -- what is refused, and how


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"prompt": "p", "chosen": "c"}, "column 'rejected' is missing; there is only 'chosen'"),
        ({"promt": "p", "completion": "c"}, "column 'prompt' is missing .* Did you mean 'promt'"),
        ({"foo": 1}, "no known kind of row has these columns; columns found: 'foo'"),
        ({"prompt": 3, "completion": "c"}, r"column 'prompt' is a number \(3\); wanted a string or a list of messages"),
        ({"prompt": "p", "completion": None}, "column 'completion' is null"),
        ({"prompt": "p", "completion": "c", "label": None}, "column 'label' is null"),
        ({"prompt": "p", "completion": "c", "label": "science"}, "column 'label' is .*science.*wanted true/false"),
        ({"prompt": "p", "completion": "c", "label": 5}, r"column 'label' is a number \(5\); wanted true/false"),
        ({"text": ""}, "column 'text' is empty"),
        ({"prompt": ""}, "column 'prompt' is empty"),
        ({"messages": []}, "column 'messages' is an empty list"),
        ({"messages": ["hi"]}, r"column 'messages\[0\]' is a string"),
        ({"messages": [{"role": "user"}]}, r"column 'messages\[0\]' has no content"),
        ({"messages": [{"content": "x"}]}, r"column 'messages\[0\]' has the role null"),
        ({"prompt": "p", "completions": ["a"], "labels": [True, False]}, "column .labels. has 2 labels for 1 steps"),
        ({"prompt": "p", "completions": "abc", "labels": [True]}, "column 'completions' is a string"),
        ({"prompt": "p", "chosen": "c", "rejected": "r", "margin": float("nan")}, "column 'margin' is nan"),
        ({"prompt": "p", "chosen": "c", "rejected": "r", "margin": "big"}, "column 'margin' is .*wanted a number"),
        ({"prompt": "p", "score": float("inf")}, "column 'score' is inf; wanted a finite number"),
        ({"text": "\ud800"}, r"column 'text' holds half a surrogate pair \(\\ud800\) at character 1"),
        ({"chosen": [USER, GOOD], "rejected": "r"}, "column .rejected. and .chosen. differ: one is a string"),
        ({"chosen": [USER, GOOD], "rejected": [GOOD]}, "column .chosen. and .rejected. share no message"),
        ([1, 2], r"the row is a list .* wanted an object"),
        (None, "the row is null"),
    ],
)
def test_a_bad_row_names_place_column_and_what_was_wanted(raw, message):
    with pytest.raises(RowError, match=rf"^data.jsonl:4: {message}"):
        parse_row(raw, where="data.jsonl:4")


def test_a_kind_that_is_not_wanted_says_what_is():
    with pytest.raises(RowError, match=r"unpaired.*completion"):
        parse_row({"prompt": "p", "completion": "c", "label": 1}, where="f:1", accepts=[Kind.COMPLETION])


def test_demonstrations_in_the_place_of_pairs_are_told_that_chosen_and_rejected_are_missing():
    with pytest.raises(RowError) as caught:
        parse_row({"prompt": "p", "completion": "c"}, where="f:1", accepts=PREFERENCE.accepts)
    message = str(caught.value)
    assert message.startswith("f:1: columns 'chosen' and 'rejected' are missing: this is a row of kind completion")
    assert "rows of kind preference (or comparison, ranking) are wanted" in message


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "p", "completions": ["a"]}, "column 'ranks' or 'ratings' is missing"),
        ({"prompt": "p", "completion_a": "a", "completion_b": "b"}, "column 'preference' is missing"),
    ],
)
def test_who_has_most_of_a_rarer_kind_is_told_what_that_lacks(row, words):
    with pytest.raises(RowError, match=words):
        parse_row(row, accepts=PREFERENCE.accepts)


@pytest.mark.parametrize(
    ("row", "accepts", "hint"),
    [
        (
            {"question": "q", "answer": "a"},
            None,
            "Rename with columns={'question': 'prompt', 'answer': 'completion'}, "
            "in a recipe `columns: {question: prompt, answer: completion}`, on the command line columns.question=prompt "
            "columns.answer=completion.",
        ),
        ({"prompt": "q", "Best Answer": "a", "answer": "b"}, SFT.accepts, "`columns: {answer: completion}`"),
        ({"chosen one": "q"}, None, '`columns: {"chosen one": chosen}`'),
        (
            {"q": "q", "response_chosen": "a", "response_rejected": "b"},
            None,
            "response_chosen: chosen, response_rejected: rejected}",
        ),
        ({"prompt": "q", "response_chosen": "a", "rejected": "b"}, None, "`columns: {response_chosen: chosen}`"),
        ({"zzz": 1}, None, "Rename columns with columns={'THEIRS': 'OURS'}"),
        ({"question": "q", "answer": "a"}, PREFERENCE.accepts, "Rename columns with columns={'THEIRS': 'OURS'}"),
    ],
)
def test_how_to_rename_is_shown_with_the_columns_that_are_there(row, accepts, hint):
    with pytest.raises(RowError) as caught:
        parse_row(row, accepts=accepts)
    assert hint in str(caught.value)


def test_a_forgotten_header_is_suspected_only_where_no_column_is_recognized():
    for row, suspected in (({"question": "q", "response_chosen": "a"}, False), ({"zzz": "a"}, True)):
        with pytest.raises(RowError) as caught:
            parse_row(row, cells_are_text=True)
        assert ("header line" in str(caught.value)) is suspected


def test_columns_about_a_text_are_not_taken_for_it():
    with pytest.raises(RowError) as caught:
        parse_row({"response_chosen_id": 3})
    assert "response_chosen_id: chosen" not in str(caught.value)


def test_csv_cells_are_read_as_what_they_say():
    row = parse_row(
        {
            "prompt": "p",
            "completions": '["a", "b"]',
            "ranks": '["2", 1]',
            "label_probability": "0.5",
            "annotator_id": "",
        },
        cells_are_text=True,
    )
    assert (row.completions, row.ranks, row.label_probability, row.annotator_id) == (["a", "b"], [2.0, 1], 0.5, None)
    row = parse_row({"prompt": '[{"role": "user", "content": "hi"}]', "completion": "[not json"}, cells_are_text=True)
    assert row.prompt == [USER]
    assert row.completion == [{"role": "assistant", "content": "[not json"}]


def test_a_csv_cell_of_json_is_a_dialogue_only_where_it_has_the_keys_of_one():
    row = parse_row({"prompt": '[{"name": "Ada"}]', "completion": '[{"a": NaN}]'}, cells_are_text=True)
    assert (row.prompt, row.completion) == ('[{"name": "Ada"}]', '[{"a": NaN}]')
    with pytest.raises(RowError, match=r"'prompt\[0\]'.*null"):
        parse_row({"prompt": '[{"rol": "user", "content": "hi"}]', "completion": "x"}, cells_are_text=True)
