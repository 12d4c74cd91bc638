"""Shards of a checkpoint in a process by itself: names for tensors, and back; the rest is in tests/invariants/test_ranks.py."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

from rlhf.errors import CheckpointError
from rlhf.training.checkpoint_folder import Record, Snapshot
from rlhf.training.sharded_checkpoint import is_shard_file, mark_of, read_shards, restored, weights_in

TENSORS = {"weights/policy/a.b": torch.arange(6.0).view(3, 2), "state/optimizer/0/exp_avg": torch.ones(2).double()}
FILE = "shard-00001-model-00001-of-00001.safetensors"


def write(folder):
    with pytest.warns(UserWarning, match="assuming the intent is to save in a single process"):
        save(dict(TENSORS), storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))


def test_a_process_by_itself_reads_whole_tensors(tmp_path):
    write(tmp_path)
    assert is_shard_file(FILE)
    read = read_shards(tmp_path)
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], value) and read[name].dtype == value.dtype for name, value in TENSORS.items())


def test_names_in_a_state_become_tensors_again():
    name = "state/optimizer/0/exp_avg"
    state = {"optimizer": {0: {"exp_avg": mark_of(name), "step": 3}}, "others": [mark_of(name), (1, None)]}
    back = restored(state, TENSORS)
    assert back["optimizer"][0] == {"exp_avg": TENSORS[name], "step": 3}
    assert back["others"][0] is TENSORS[name]
    assert back["others"][1] == (1, None)
    assert weights_in(TENSORS) == {"policy": {"a.b": TENSORS["weights/policy/a.b"]}}


def test_a_checkpoint_with_shards_is_read_as_one_without(tmp_path):
    write(tmp_path)
    state = {"at": {"step": 2}, "optimizer": mark_of("state/optimizer/0/exp_avg")}
    Snapshot({"policy": {"whole": torch.zeros(1)}}, state, 0).write(tmp_path, step=2, identity={}, best=False)
    record = Record.read(tmp_path)
    record.verify()
    checkpoint = record.load()
    assert sorted(checkpoint.weights["policy"]) == ["a.b", "whole"]
    assert torch.equal(checkpoint.state["optimizer"], TENSORS["state/optimizer/0/exp_avg"])
    (tmp_path / FILE).write_bytes(b"x" * (tmp_path / FILE).stat().st_size)
    with pytest.raises(CheckpointError, match=FILE):
        record.verify()


@pytest.mark.parametrize("name", ["shard-1.safetensors", f"../{FILE}", f"{FILE}.tmp", 3])
def test_other_names_are_no_shards(name):
    assert not is_shard_file(name)
