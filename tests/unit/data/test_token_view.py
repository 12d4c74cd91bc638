"""What is shown of a row: its tokens, which of them are trained, and what becomes of each field."""

from __future__ import annotations

import pytest

from rlhf.data.field_table import FieldFate
from rlhf.data.token_view import view_rows
from rlhf.errors import DataError
from tests.fixtures.chat_templates import HARMONY, QWEN_NEW
from tests.unit.data.conftest import CHATML, build_tokenizer

ASKED = {"role": "user", "content": "who"}


@pytest.fixture(scope="module")
def tokenizer():
    special = ("<bos>", "<eos>", "<|im_start|>", "<|im_end|>")
    return build_tokenizer(
        special=special, bos_token="<bos>", eos_token="<eos>", additional_special_tokens=list(special[2:])
    )


def view(row, tokenizer, **options):
    (actual,) = view_rows([row], tokenizer, **options)
    return actual


def shown(sequence, *, trained):
    return "".join(token.text for token in sequence.tokens if token.is_trained == trained)


def fates(actual):
    return {(fate.field, *fate.messages): (fate.fate, fate.note) for fate in actual.fields}


@pytest.mark.parametrize(
    ("row", "made_for", "trained"),
    [
        ({"prompt": "2+2? ", "completion": "4"}, "sft", {"completion": "4<eos>"}),
        ({"text": "four"}, "sft", {"text": "four<eos>"}),
        ({"prompt": "q\n", "chosen": "a", "rejected": "b"}, "preference", {"chosen": "a<eos>", "rejected": "b<eos>"}),
        (
            {"prompt": "q\n", "completion_a": "a", "completion_b": "b", "preference": "tie"},
            "comparison",
            {"completion_a": "a<eos>", "completion_b": "b<eos>"},
        ),
        (
            {"prompt": "q\n", "completions": ["a", "b", "c"], "ranks": [2, 1, 3]},
            "ranking",
            {"completions[0]": "a<eos>", "completions[1]": "b<eos>", "completions[2]": "c<eos>"},
        ),
        ({"prompt": "q\n", "completion": "a", "rating": 4}, "rating", {"completion": "a<eos>"}),
        ({"prompt": "q\n", "completion": "a", "label": True}, "kto", {"completion": "a<eos>"}),
        ({"prompt": "q\n", "completions": ["a1", "b2"], "labels": [True, False]}, "stepwise", {"completion": "\n\n"}),
        ({"prompt": "q\n"}, "grpo", {"prompt": ""}),
        ({"messages": [ASKED, {"role": "assistant", "content": "me"}]}, "sft", {"messages": "me<|im_end|>"}),
    ],
)
def test_rows_of_every_kind_show_what_is_trained(tokenizer, row, made_for, trained):
    actual = view(row, tokenizer, chat_template=CHATML)
    assert (actual.made_for, actual.error) == (made_for, "")
    assert {sequence.name: shown(sequence, trained=True) for sequence in actual.sequences} == trained


def test_special_tokens_and_the_prompt_are_seen(tokenizer):
    actual = view({"messages": [ASKED, {"role": "assistant", "content": "me"}]}, tokenizer, chat_template=CHATML)
    (sequence,) = actual.sequences
    assert shown(sequence, trained=False) == "<|im_start|>user\nwho<|im_end|>\n<|im_start|>assistant\n"
    special = [token.text for token in sequence.tokens if token.is_special]
    assert special == ["<|im_start|>", "<|im_end|>", "<|im_start|>", "<|im_end|>"]


def test_a_row_may_be_shown_as_another_data_set_makes_it(tokenizer):
    row = {"prompt": "q\n", "chosen": "a", "rejected": "b"}
    actual = view(row, tokenizer, made_for="kto")
    assert [shown(sequence, trained=True) for sequence in actual.sequences] == ["a<eos>", "b<eos>"]
    assert [shown(s, trained=True) for s in view(row, tokenizer, made_for="sft").sequences] == ["a<eos>"]
    assert "rows of kind" in view({"text": "a"}, tokenizer, made_for="kto").error


def test_every_field_is_in_the_table(tokenizer):
    call = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    row = {
        "messages": [
            {**ASKED, "name": "ann"},
            {"role": "assistant", "content": "<think>hm</think>", "tool_calls": [call]},
            {"role": "tool", "content": "sun"},
            {"role": "assistant", "content": "sunny", "reasoning": "the sun shines"},
        ],
        "tools": [{"type": "function", "function": {"name": "weather"}}],
        "chat_template_kwargs": {"mood": "glad"},
        "difficulty": 3,
        "nothing": None,
    }
    actual = view(row, tokenizer, chat_template=QWEN_NEW)
    assert actual.error == ""
    assert fates(actual) == {
        ("messages",): ("kept", ""),
        ("tools",): ("kept", ""),
        ("chat_template_kwargs",): ("kept", "given to the chat template"),
        ("difficulty",): ("kept", "no token: for rewards, judges and reports"),
        ("nothing",): ("dropped", "it is null"),
        ("messages.role", 1, 2, 3, 4): ("kept", ""),
        ("messages.content", 1, 3, 4): ("kept", ""),
        ("messages.content", 2): ("kept", "it is empty"),
        ("messages.content <think>", 2): ("kept", ""),
        ("messages.name", 1): ("dropped", "by the chat template"),
        ("messages.tool_calls", 2): ("kept", "arguments as an object"),
        ("messages.reasoning", 4): ("renamed", "reasoning_content"),
    }


def test_other_names_of_columns_are_in_the_table(tokenizer):
    row = {"instruction": "who", "input": "briefly", "reply": "me", "source": "x", "output": None, "score": 1}
    actual = view(row, tokenizer, columns={"reply": "completion", "score": None})
    assert FieldFate("reply", (), "renamed", "completion") in actual.fields
    assert fates(actual) == {
        ("instruction",): ("renamed", "prompt"),
        ("input",): ("renamed", "prompt"),
        ("reply",): ("renamed", "completion"),
        ("source",): ("kept", "no token: for rewards, judges and reports"),
        ("output",): ("dropped", "it is null"),
        ("score",): ("dropped", "by `columns`"),
    }
    assert fates(view({"prompt": "q\n", "completion": "a", "label": True}, tokenizer))[("label",)][0] == "kept"


def test_a_refused_row_shows_why_and_what_is_left(tokenizer):
    row = {
        "messages": [ASKED, {"role": "assistant", "content": "me", "thinking": "why not"}, ASKED,
                     {"role": "assistant", "content": "you"}]
    }  # fmt: skip
    actual = view(row, tokenizer, chat_template=HARMONY)
    assert "reasoning of message 2" in actual.error
    assert fates(actual)[("messages.thinking", 2)] == ("dropped", "by the chat template")
    assert "why not" not in shown(actual.sequences[0], trained=True)
    assert "you" in shown(actual.sequences[0], trained=True)


def test_rows_are_counted_from_one_bad_ones_too(tokenizer, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n{"text": 3}\nnot json\n\n{"text": "b"}\n')
    actual = view_rows(path, tokenizer, numbers=[4, 1, 2, 3, 1])
    assert [shown(s, trained=True) for each in actual for s in each.sequences] == ["a<eos>", "b<eos>"]
    assert [bool(each.error) for each in actual] == [False, True, True, False]
    with pytest.raises(DataError, match="no row 5"):
        view_rows(path, tokenizer, numbers=[5])


def test_what_was_cut_is_said(tokenizer):
    actual = view({"prompt": "q\n", "completion": "a" * 30}, tokenizer, max_length=10, truncation="keep_start")
    assert actual.notes == ("cut to the length", "a completion ends without EOS or another end-of-turn token")
    assert "max_length is 10" in view({"prompt": "q\n", "completion": "a" * 30}, tokenizer, max_length=10).error


def test_a_text_that_a_stage_does_not_read_is_dropped_by_it(tokenizer):
    pair = {"prompt": "q\n", "better": "a", "rejected": "b"}
    columns = {"better": "chosen"}
    as_pair = fates(view(pair, tokenizer, made_for="preference", columns=columns))
    assert {name: fate for name, (fate, _) in as_pair.items()} == {
        ("prompt",): "kept", ("better",): "renamed", ("rejected",): "kept",
    }  # fmt: skip
    as_sft = fates(view(pair, tokenizer, made_for="sft", columns=columns))
    assert as_sft["rejected",][0] == "dropped"
    assert as_sft["better",][0] == "renamed"
    assert as_sft["prompt",][0] == "kept"


def test_messages_that_a_stage_does_not_read_are_dropped_by_it(tokenizer):
    chat = {
        "chosen": [ASKED, {"role": "assistant", "content": "me"}],
        "rejected": [ASKED, {"role": "assistant", "content": "you"}],
    }
    assert fates(view(chat, tokenizer, made_for="preference", chat_template=CHATML))["rejected",][0] == "kept"
    actual = fates(view(chat, tokenizer, made_for="sft", chat_template=CHATML))
    assert (actual["chosen",][0], actual["rejected",][0]) == ("kept", "dropped")
