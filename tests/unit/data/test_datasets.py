from __future__ import annotations

import json

import pytest

from rlhf.data.datasets import GRPODataset, KTODataset, PreferenceDataset, SFTDataset
from rlhf.data.pack import pack
from rlhf.data.read import read_rows
from rlhf.data.streaming import StreamingPreferenceDataset
from rlhf.errors import ConfigError, DataError

SFT = [{"prompt": f"Where does the fox {n} live?", "completion": f" in a den {n}"} for n in range(20)]
PAIRS = [
    {"prompt": f"cow {n}", "chosen": " eats grass", "rejected": f" lives {n}", "margin": n / 10} for n in range(20)
]


def test_an_sft_row_is_a_prefix_with_one_branch(tokenizer):
    data = SFTDataset(SFT, tokenizer)
    assert len(data) == 20
    assert all(len(group.branches) == 1 for group in data)
    batch = pack(data[:4])
    batch.check()
    assert batch.num_scored == sum(group.num_scored for group in data[:4])


def test_a_pair_is_a_prefix_with_two_branches_chosen_first(tokenizer):
    data = PreferenceDataset(PAIRS, tokenizer)
    group = data[3]
    assert tokenizer.decode(group.branches[0].tokens) == " eats grass<eos>"
    assert tokenizer.decode(group.branches[1].tokens) == " lives 3<eos>"
    assert group.columns["margin"] == 0.3
    pack(data[:]).check()


def test_sft_takes_the_chosen_side_of_a_pair(tokenizer):
    assert tokenizer.decode(SFTDataset(PAIRS, tokenizer)[0].branches[0].tokens) == " eats grass<eos>"


def test_sft_refuses_rows_that_say_some_are_bad(tokenizer):
    with pytest.raises(DataError, match=r"row 1: .*unpaired"):
        SFTDataset([{"prompt": "p", "completion": "c", "label": False}], tokenizer)


def test_comparisons_and_rankings_become_pairs_and_ties_are_counted(tokenizer):
    rows = [
        {
            "prompt": "p",
            "completion_a": " x",
            "completion_b": " y",
            "preference": "b-is-slightly-better",
            "label_probability": 0.9,
        },
        {"prompt": "p", "completion_a": " x", "completion_b": " y", "preference": "tie"},
    ]
    data = PreferenceDataset(rows, tokenizer)
    assert (len(data), data.report.ties, data.report.num_rows) == (1, 1, 2)
    assert data[0].columns["strength"] == "slightly"
    assert data[0].columns["label_probability"] == 0.9
    ranked = PreferenceDataset([{"prompt": "p", "completions": [" x", " y", " z"], "ranks": [1, 2, 3]}], tokenizer)
    assert [group.columns["id"] for group in ranked] == ["row 1#0-1", "row 1#0-2", "row 1#1-2"]


def test_pairs_of_equal_texts_are_left_out_and_counted(tokenizer):
    data = PreferenceDataset([*PAIRS, {"prompt": "p", "chosen": "c", "rejected": "c"}], tokenizer)
    assert (len(data), data.report.identical) == (20, 1)
    with pytest.raises(DataError, match=r"list: .*1 row 1 with two equal texts"):
        PreferenceDataset([{"prompt": "p", "chosen": "c", "rejected": "c"}], tokenizer)


def test_kto_rows_carry_their_label(tokenizer):
    data = KTODataset([{"prompt": "p", "response": " r", "label": "undesirable"}], tokenizer)
    assert data[0].columns["label"] is False
    both = KTODataset(PAIRS[:1], tokenizer)
    assert [group.columns["label"] for group in both] == [True, False]
    assert len({group.columns["id"] for group in both}) == 2


def test_prompts_keep_ids_text_and_columns(tokenizer, chat_tokenizer):
    prompt = GRPODataset([{"id": "q1", "prompt": "What is", "answer": "4"}], tokenizer)[0]
    assert (prompt.id, prompt.text) == ("q1", "What is")
    assert prompt.ids == [tokenizer.bos_token_id, *tokenizer("What is", add_special_tokens=False)["input_ids"]]
    assert prompt.columns["answer"] == "4"
    assert [p.text for p in GRPODataset(["one", "two"], tokenizer)] == ["one", "two"]
    messages = [{"role": "user", "content": "hi"}]
    chat = GRPODataset([{"prompt": messages}], chat_tokenizer)[0]
    assert chat.text.endswith("<|im_start|>assistant\n")
    assert chat.messages == messages


def test_prompts_are_taken_from_rows_of_other_kinds(tokenizer):
    prompt = GRPODataset(PAIRS, tokenizer)[2]
    assert prompt.text == "cow 2"
    assert prompt.columns["chosen"] == " eats grass"
    ranked = GRPODataset([{"prompt": "p", "completions": ["x", "y"], "ranks": [1, 2]}], tokenizer)[0]
    assert "completions" not in ranked.columns, "reward functions get the policy's under this name"


def test_the_same_prompt_gives_the_same_ids_to_every_data_set(tokenizer):
    asked = GRPODataset(PAIRS, tokenizer)
    paired = PreferenceDataset(PAIRS, tokenizer)
    assert [prompt.ids for prompt in asked] == [group.prefix for group in paired]


def test_a_repeated_id_is_told_apart(tokenizer):
    rows = [{"id": "x", "prompt": "a"}, {"id": "x", "prompt": "b"}, {"id": "x#2", "prompt": "c"}]
    data = GRPODataset(rows, tokenizer)
    assert len({prompt.id for prompt in data}) == 3
    assert data[0].id == "x"
    assert data.report.repeated_ids >= 1


def test_bad_rows_are_in_the_report(tokenizer, tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(SFT[0]) + "\n{\n" + json.dumps(SFT[1]) + "\n")
    data = SFTDataset(path, tokenizer, on_bad_row="skip")
    assert (len(data), data.report.num_rows) == (2, 3)
    assert [bad.where for bad in data.report.bad_rows] == [f"{path}:2"]
    assert "3 rows, 2 usable" in data.report.to_text()
    assert "1 bad row:" in data.report.to_text()
    with pytest.raises(DataError, match=r"d.jsonl:2: not a JSON value"):
        SFTDataset(path, tokenizer)


def test_a_misspelled_option_is_an_error(tokenizer):
    with pytest.raises(TypeError, match="on_bad_rows"):
        SFTDataset(SFT, tokenizer, on_bad_rows="skip")


@pytest.mark.parametrize("option", ["train_on", "step_separator", "max_len"])
@pytest.mark.parametrize("kind", [PreferenceDataset, StreamingPreferenceDataset])
def test_an_option_of_another_kind_is_an_error(tokenizer, kind, option):
    with pytest.raises(TypeError, match=rf"{kind.__name__}\(\).*'{option}'"):
        kind(SFT, tokenizer, **{option: "all"})


# -- parts of data


def test_a_split_is_whole_repeatable_and_hangs_on_the_seed(tokenizer):
    data = SFTDataset(SFT, tokenizer)
    train, test = data.split(0.25, seed=1)
    assert (len(train), len(test)) == (15, 5)
    names = [sorted(group.columns["id"] for group in part) for part in (train, test)]
    assert sorted(names[0] + names[1]) == sorted(group.columns["id"] for group in data)
    again = data.split(0.25, seed=1)[1]
    assert [row.prompt for row in again.rows] == [row.prompt for row in test.rows]
    other = data.split(0.25, seed=2)[1]
    assert [row.prompt for row in other.rows] != [row.prompt for row in test.rows]


def test_a_split_hangs_on_the_prompts_and_not_on_their_order(tokenizer):
    forward = {row.prompt for row in SFTDataset(SFT, tokenizer).split(0.25, seed=1)[1].rows}
    backward = {row.prompt for row in SFTDataset(SFT[::-1], tokenizer).split(0.25, seed=1)[1].rows}
    assert forward == backward


def test_rows_of_one_prompt_stay_on_one_side(tokenizer):
    rows = [{"prompt": f"p{n % 5}", "completion": f" {n}"} for n in range(40)]
    train, test = SFTDataset(rows, tokenizer).split(0.2, seed=0)
    assert not {row.prompt for row in train.rows} & {row.prompt for row in test.rows}
    assert (len(train), len(test)) == (32, 8)


def test_rows_of_one_prompt_are_parted_by_row(tokenizer):
    rows = [{"prompt": "p", "chosen": f"good {n % 10}", "rejected": f"bad {n % 10}"} for n in range(20)]
    train, test = KTODataset(rows, tokenizer).split(0.2, seed=0, by="row")
    assert (len(train), len(test)) == (32, 8)
    kept, held_out = ({row.completion.split()[1] for row in part.rows} for part in (train, test))
    assert not kept & held_out, "both sides of a pair, and rows that say the same, stay together"
    backward = KTODataset(rows[::-1], tokenizer).split(0.2, seed=0, by="row")[1]
    assert {row.completion for row in backward.rows} == {row.completion for row in test.rows}
    with pytest.raises(DataError, match="have the same texts"):
        KTODataset(rows[:1] * 3, tokenizer).split(0.2, seed=0, by="row")


def test_a_split_that_leaves_one_side_empty_is_refused(tokenizer):
    with pytest.raises(DataError, match="split by row"):
        SFTDataset([{"prompt": "p", "completion": f"{n}"} for n in range(3)], tokenizer).split(0.5, seed=0)
    train, test = SFTDataset(SFT[:2], tokenizer).split(0.99, seed=0)
    assert (len(train), len(test)) == (1, 1)
    with pytest.raises(ConfigError, match="test_frac is 1"):
        SFTDataset(SFT, tokenizer).split(1, seed=0)


def test_lengths_are_filtered_in_tokens(tokenizer):
    data = SFTDataset([*SFT, {"prompt": "p", "completion": " c"}], tokenizer)
    shortest, longest = min(data.lengths), max(data.lengths)
    assert len(data.filter_length(max_tokens=shortest)) == 1
    assert len(data.filter_length(min_tokens=shortest + 1)) == 20
    with pytest.raises(DataError, match=rf"shortest has {shortest}.*longest {longest}"):
        data.filter_length(min_tokens=999)


def test_duplicates_are_dropped_but_for_the_first(tokenizer):
    data = SFTDataset([*SFT, {"prompt": SFT[0]["prompt"].upper(), "completion": "  in a den 0 "}], tokenizer)
    assert len(data.deduplicate()) == 20
    assert data.deduplicate().rows[0].prompt == SFT[0]["prompt"]


# -- out again


def test_what_is_saved_is_read_back(tokenizer, tmp_path):
    data = PreferenceDataset(PAIRS, tokenizer)
    assert data.save_jsonl(tmp_path / "out.jsonl") == 20
    assert [row.to_dict() for row in read_rows(tmp_path / "out.jsonl")] == PAIRS
    again = PreferenceDataset(tmp_path / "out.jsonl", tokenizer)
    assert [group.branches for group in again] == [group.branches for group in data]


def test_rows_become_a_dataset_of_the_datasets_library(tokenizer):
    rows = [*PAIRS[:2], {"prompt": "x", "chosen": "y", "rejected": "z", "extra": "only here"}]
    table = PreferenceDataset(rows, tokenizer).to_datasets()
    assert table.column_names == ["prompt", "chosen", "rejected", "margin", "extra"]
    assert table[2] == {"prompt": "x", "chosen": "y", "rejected": "z", "margin": None, "extra": "only here"}
    again = PreferenceDataset(table, tokenizer)
    assert len(again) == 3


def test_negative_and_wrong_indices_behave_like_a_list(tokenizer):
    data = SFTDataset(SFT, tokenizer)
    assert data[-1] == data[19]
    assert [group.columns["id"] for group in data[2:4]] == ["row 3", "row 4"]
    with pytest.raises(IndexError):
        data[20]


def test_every_hh_pair_is_usable_but_the_equal_ones(assets):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(assets / "models" / "stories260K")
    files = sorted((assets / "hh_rlhf").glob("*/test.jsonl.gz"))
    data = PreferenceDataset(files[0], tokenizer, max_length=512, truncation="keep_end")
    report = data.report
    assert report.num_rows == 2312
    assert report.num_usable + report.identical + report.dropped_too_long == 2312
    assert report.boundary_moved == 0
    assert max(data.lengths) <= 512
    assert all(group.prefix[0] == tokenizer.bos_token_id for group in data[:100])
