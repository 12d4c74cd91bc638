from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.data.row_kinds import parse_row
from rlhf.errors import DataError
from rlhf.feedback.exchange import FORMATS, detect, read_as, write_pairs
from rlhf.feedback.exchange.dialogues import to_openai, to_sharegpt

OPENAI = {
    "input": {"messages": [{"role": "user", "content": "q"}], "tools": [], "parallel_tool_calls": True},
    "preferred_output": [{"role": "assistant", "content": "x"}], "non_preferred_output": [{"role": "assistant", "content": "y"}],
}  # fmt: skip
HH = {
    "chosen": "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: q\n\nAssistant: x",
    "rejected": "\n\nHuman: hi\n\nAssistant: hello\n\nHuman: q\n\nAssistant: y",
}
PAIR = {"id": "1", "prompt": "q", "chosen": "x", "rejected": "y", "label_probability": 0.5}


def pairs_of(items):
    return [
        {
            "prompt": i.task.prompt,
            "chosen": i.task.responses[0].text,
            "rejected": i.task.responses[1].text,
            **i.task.columns,
        }
        for i in items
    ]


@pytest.mark.parametrize(("name", "row"), [("openai", OPENAI), ("hh", HH)])
def test_a_file_goes_through_and_comes_out_the_same(name, row, tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps(row) + "\n")
    assert detect(tmp_path / "in.jsonl") == name
    items = read_as(name, tmp_path / "in.jsonl").items
    assert items[0].task.columns["known"] == {"preference": "a"}
    assert write_pairs(name, tmp_path / "out.jsonl", pairs_of(items)) == (1, 0)
    assert json.loads((tmp_path / "out.jsonl").read_text()) == row


def test_hh_becomes_turns_cut_at_the_last_turn_both_share(tmp_path):
    parting = HH | {"rejected": "\n\nHuman: hi\n\nAssistant: go away\n\nHuman: why?\n\nAssistant: y"}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (HH, parting)))
    first, second = read_as("hh", tmp_path / "in.jsonl").items
    assert [turn["content"] for turn in first.task.prompt] == ["hi", "hello", "q"]
    assert first.task.responses[0].text == [{"role": "assistant", "content": "x"}]
    assert [turn["content"] for turn in second.task.prompt] == ["hi"]
    assert [turn["content"] for turn in second.task.responses[1].text] == ["go away", "why?", "y"]


@settings(max_examples=60, deadline=None)
@given(
    chosen=st.text(max_size=12),
    rejected=st.text(max_size=12),
    middle=st.sampled_from(["", " hello", "\n\nHuman:", " x \n\nHuman: y\n\nAssistant:"]),
)
def test_hh_texts_survive_whatever_their_spaces(chosen, rejected, middle, tmp_path_factory):
    row = {
        side: f"\n\nHuman: q{middle}\n\nAssistant:{end}" for side, end in (("chosen", chosen), ("rejected", rejected))
    }
    if (
        any(not part.isprintable() and not part.isascii() for part in (chosen, rejected))
        or "\ud800" <= max(chosen + rejected, default="") <= "\udfff"
    ):
        return
    folder = tmp_path_factory.mktemp("hh")
    (folder / "in.jsonl").write_text(json.dumps(row) + "\n")
    items = read_as("hh", folder / "in.jsonl").items
    write_pairs("hh", folder / "out.jsonl", pairs_of(items))
    assert json.loads((folder / "out.jsonl").read_text()) == row


def test_older_clients_names_are_read(tmp_path):
    old = {
        "input": OPENAI["input"],
        "preferred_completion": OPENAI["preferred_output"],
        "non_preferred_completion": OPENAI["non_preferred_output"],
    }
    (tmp_path / "in.jsonl").write_text(json.dumps(old) + "\n")
    assert detect(tmp_path / "in.jsonl") == "openai"
    (item,) = read_as("openai", tmp_path / "in.jsonl").items
    assert item.task.responses[0].text == OPENAI["preferred_output"]


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("trl", {"prompt": "q", "chosen": "x", "rejected": "y"}),
        ("alpaca", {"instruction": "q", "input": "", "output": "x"}),
        ("sharegpt", {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "x"}]}),
        ("openai", OPENAI),
        ("hh", {"chosen": "\n\nHuman: q\n\nAssistant: x", "rejected": "\n\nHuman: q\n\nAssistant: y"}),
    ],
)
def test_a_pair_in_each_layout(name, row, tmp_path):
    tie = {"id": "2", "prompt": "q", "completion_a": "x", "completion_b": "y", "preference": "tie"}
    assert write_pairs(name, tmp_path / "out.jsonl", [PAIR, tie]) == (1, 1)
    assert json.loads((tmp_path / "out.jsonl").read_text()) == row


def test_labels_go_to_trl_and_good_ones_are_demonstrations(tmp_path):
    rows = [{"id": str(n), "prompt": "q", "completion": str(n), "label": bool(n)} for n in range(2)]
    assert write_pairs("trl", tmp_path / "t.jsonl", rows) == (2, 0)
    assert write_pairs("sharegpt", tmp_path / "s.jsonl", rows) == (1, 1)


def test_what_a_layout_has_no_place_for_is_refused():
    turns = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "more"}]
    row = parse_row(
        {"prompt": [{"role": "user", "content": "q"}], "chosen": turns, "rejected": turns[:1]}, where="row 1"
    )
    with pytest.raises(DataError, match=r"preferred_output .*2 messages"):
        to_openai(row)
    with pytest.raises(DataError, match=r"row 2: .*unpaired"):
        FORMATS["openai"].row_of(parse_row({"prompt": "q", "completion": "x", "label": True}, where="row 2"))
    assert to_sharegpt(row)["conversations"][-1] == {"from": "human", "value": "more"}
