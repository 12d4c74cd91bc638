from __future__ import annotations

import itertools
import json

import pytest

from rlhf.data.datasets import PreferenceDataset, SFTDataset
from rlhf.data.streaming import (
    StreamingGRPODataset,
    StreamingKTODataset,
    StreamingPreferenceDataset,
    StreamingSFTDataset,
)
from rlhf.data.write import write_rows
from rlhf.errors import CheckpointError, ConfigError, DataError

ROWS = [{"prompt": f"cow {n}", "completion": f" eats {n}"} for n in range(23)]


@pytest.fixture
def file(tmp_path):
    write_rows(tmp_path / "rows.jsonl", ROWS)
    return tmp_path / "rows.jsonl"


def names(groups):
    return [group.columns["id"] for group in groups]


def test_a_stream_gives_what_the_map_gives(file, tokenizer):
    assert list(StreamingSFTDataset(file, tokenizer)) == list(SFTDataset(file, tokenizer))


def test_every_row_comes_once_an_epoch_in_a_new_order(file, tokenizer):
    stream = StreamingSFTDataset(file, tokenizer, shuffle_buffer=8, seed=3)
    epochs = [names(stream) for _ in range(3)]
    assert all(sorted(epoch) == sorted(epochs[0]) and len(epoch) == 23 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != sorted(epochs[0], key=lambda name: int(name.split(":")[1]))
    assert stream.epoch == 3
    again = StreamingSFTDataset(file, tokenizer, shuffle_buffer=8, seed=3)
    assert [names(again) for _ in range(3)] == epochs
    assert names(StreamingSFTDataset(file, tokenizer, shuffle_buffer=8, seed=4)) != epochs[0]


@pytest.mark.parametrize("shuffle_buffer", [0, 8])
def test_a_resumed_stream_gives_the_same_items_from_any_place(file, tokenizer, shuffle_buffer):
    def new():
        return StreamingSFTDataset(file, tokenizer, shuffle_buffer=shuffle_buffer, seed=1)

    whole = new()
    expected = [*whole, *whole]  # two epochs
    for stop in range(0, 46, 5):
        first = new()
        taken = list(itertools.islice(itertools.chain(first, first), stop))
        state = json.loads(json.dumps(first.state_dict()))  # as a checkpoint keeps it
        second = new()
        second.load_state_dict(state)
        rest = list(itertools.islice(itertools.chain(second, second), 46 - stop))
        assert taken + rest == expected, stop


def test_a_loop_that_breaks_off_goes_on_behind_the_last_item(file, tokenizer):
    stream = StreamingSFTDataset(file, tokenizer)
    first = names(itertools.islice(stream, 10))
    assert names(stream) == [f"rows.jsonl:{n}" for n in range(11, 24)]
    assert first[-1] == "rows.jsonl:10"


def test_the_report_is_the_same_after_a_resume(file, tokenizer):
    file.write_text(file.read_text().replace('{"prompt": "cow 5"', '{"promt": "cow 5"'))
    options = {"on_bad_row": "skip", "shuffle_buffer": 4}
    whole = StreamingSFTDataset(file, tokenizer, **options)
    for count, _ in enumerate(whole, 1):
        if count == 22:
            expected = whole.report.to_dict()
    broken = StreamingSFTDataset(file, tokenizer, **options)
    list(itertools.islice(broken, 10))
    resumed = StreamingSFTDataset(file, tokenizer, **options)
    resumed.load_state_dict(broken.state_dict())
    for count, _ in enumerate(resumed, 11):
        if count == 22:
            assert resumed.report.to_dict() == expected
    assert expected["num_rows"] == 23
    assert [bad["where"] for bad in expected["bad_rows"]] == [f"{file}:6"]


def test_a_state_of_other_data_or_settings_is_refused(file, tokenizer):
    state = StreamingSFTDataset(file, tokenizer, shuffle_buffer=4).state_dict()
    with pytest.raises(CheckpointError, match=r"shuffle_buffer 4, .* 8"):
        StreamingSFTDataset(file, tokenizer, shuffle_buffer=8).load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"seed 0, .* 1"):
        StreamingSFTDataset(file, tokenizer, shuffle_buffer=4, seed=1).load_state_dict(state)
    with file.open("a") as out:
        out.write(json.dumps(ROWS[0]) + "\n")
    with pytest.raises(CheckpointError, match=r"rows\.jsonl .*checkpoint"):
        StreamingSFTDataset(file, tokenizer, shuffle_buffer=4).load_state_dict(state)


def test_several_files_are_one_stream(tmp_path, tokenizer):
    for part in range(3):
        write_rows(tmp_path / f"{part}.jsonl.gz", ROWS[part * 7 : part * 7 + 7])
    files = [tmp_path / f"{part}.jsonl.gz" for part in range(3)]
    stream = StreamingSFTDataset(files, tokenizer)
    assert len(list(itertools.islice(stream, 10))) == 10
    rest = StreamingSFTDataset(files, tokenizer)
    rest.load_state_dict(stream.state_dict())
    assert names(rest)[0] == "1.jsonl.gz:4"


def test_limit_holds_across_a_resume(file, tokenizer):
    stream = StreamingSFTDataset(file, tokenizer, limit=12, shuffle_buffer=5)
    taken = names(itertools.islice(stream, 7))
    rest = StreamingSFTDataset(file, tokenizer, limit=12, shuffle_buffer=5)
    rest.load_state_dict(stream.state_dict())
    assert sorted(taken + names(rest)) == sorted(f"rows.jsonl:{n}" for n in range(1, 13))


def test_the_other_streams_give_what_their_maps_give(tmp_path, tokenizer):
    pairs = [{"prompt": f"cow {n}", "chosen": " a", "rejected": " b"} for n in range(5)]
    write_rows(tmp_path / "pairs.jsonl", pairs)
    path = tmp_path / "pairs.jsonl"
    assert list(StreamingPreferenceDataset(path, tokenizer)) == list(PreferenceDataset(path, tokenizer))
    assert [group.columns["label"] for group in StreamingKTODataset(path, tokenizer)] == [True, False] * 5
    assert [prompt.text for prompt in StreamingGRPODataset(path, tokenizer)] == [row["prompt"] for row in pairs]


def test_a_bad_row_stops_the_stream_where_it_stands(file, tokenizer):
    with file.open("a") as out:
        out.write("{\n")
    stream = StreamingSFTDataset(file, tokenizer, shuffle_buffer=4)
    with pytest.raises(DataError, match=r"rows\.jsonl:24: .*JSON"):
        list(stream)


def test_a_stream_without_a_usable_row_is_an_error(tmp_path, tokenizer):
    write_rows(tmp_path / "d.jsonl", [{"prompt": "p", "chosen": "c", "rejected": "c"}])
    with pytest.raises(DataError, match=r"d.jsonl: .*1 row 1 with two equal texts"):
        list(StreamingPreferenceDataset(tmp_path / "d.jsonl", tokenizer))
    with pytest.raises(ConfigError, match="shuffle_buffer is -1"):
        StreamingSFTDataset(tmp_path / "d.jsonl", tokenizer, shuffle_buffer=-1)
