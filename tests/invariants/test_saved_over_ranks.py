"""Ranks load and save a model with no more of it in memory than their shards and single tensors, and the same files."""

from __future__ import annotations

import pytest

from rlhf.distributed.sharding import ShardOptions
from tests.fixtures.saved_over_ranks import load_cut_and_save, write_model
from tests.fixtures.two_ranks import run_over_ranks

SLACK = 16 << 20
"""What a process takes besides, and gives back when it likes."""


@pytest.mark.slow
@pytest.mark.parametrize("vocab_parallel", [False, True], ids=["", "vocabulary in parts"])
def test_no_rank_has_the_whole_model_in_memory_of_its_own(vocab_parallel, tmp_path):
    options = ShardOptions(vocab_parallel=vocab_parallel)
    policy = write_model(tmp_path / "source")
    whole = sum(p.numel() * p.element_size() for p in policy.model.parameters())
    largest = max(p.numel() * p.element_size() for p in policy.model.parameters())
    assert whole > 6 * SLACK
    for peaks in run_over_ranks(load_cut_and_save, tmp_path / "source", tmp_path, options, folder=tmp_path):
        assert not isinstance(peaks, BaseException), peaks
        assert peaks["loading"] < SLACK
        assert peaks["held"] < 0.6 * whole
        assert peaks["saving"] < SLACK + 4 * largest
    for file in (tmp_path / "source").iterdir():
        if file.name != "README.md":  # the source's name is in it
            assert (tmp_path / "model" / file.name).read_bytes() == file.read_bytes(), file.name
