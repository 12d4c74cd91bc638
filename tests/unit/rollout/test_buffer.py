from __future__ import annotations

import io
from itertools import chain

import pytest
import torch

from rlhf.errors import CheckpointError, ConfigError
from rlhf.rollout.buffer import RolloutBuffer, RolloutGroup
from rlhf.rollout.types import Completion


def group(number: int, *, version: int = 0, num_samples: int = 2) -> RolloutGroup:
    completions = [
        Completion(
            prompt_id=f"p{number}",
            sample=sample,
            tokens=[number, sample],
            logprobs=[-0.1, -0.2],
            sampling_logprobs=None if sample else [-0.3, -0.4],
            finish_reason="eos",
            weight_version=version + sample,
            text=f"text {number}",
        )
        for sample in range(num_samples)
    ]
    return RolloutGroup(f"p{number}", [number, 7], completions, [float(number)] * num_samples)


def ids(groups) -> list[str]:
    return [g.prompt_id for g in groups]


def test_first_in_first_out():
    buffer = RolloutBuffer()
    buffer.add([group(0), group(1)])
    buffer.add([group(2)])
    assert ids(buffer.take(2)) == ["p0", "p1"]
    assert ids(buffer.take(2)) == ["p2"]
    assert buffer.take(1) == []


def test_the_oldest_make_room_and_are_counted():
    buffer = RolloutBuffer(capacity=3)
    buffer.add([group(n) for n in range(5)])
    assert ids(buffer) == ["p2", "p3", "p4"]
    assert buffer.num_evicted == 2


def test_groups_too_old_for_the_trainer_are_dropped_by_their_oldest_sample():
    buffer = RolloutBuffer(max_staleness=1)
    buffer.add([group(0, version=3), group(1, version=4), group(2, version=5)])
    assert buffer.drop_stale(5) == 1
    assert ids(buffer) == ["p1", "p2"]
    assert buffer.num_stale == 1


def test_without_a_limit_nothing_is_too_old():
    buffer = RolloutBuffer()
    buffer.add([group(0)])
    assert buffer.drop_stale(1000) == 0
    assert len(buffer) == 1


def test_a_pass_visits_every_group_once_in_an_order_of_its_own():
    buffer = RolloutBuffer(seed=5)
    buffer.add([group(n) for n in range(20)])
    first = [ids(batch) for batch in buffer.minibatches(8, 0, "epoch", 0)]
    second = [ids(batch) for batch in buffer.minibatches(8, 0, "epoch", 1)]
    assert [len(batch) for batch in first] == [8, 8, 4]
    assert sorted(chain(*first)) == sorted(ids(buffer)) == sorted(chain(*second))
    assert first != second
    assert list(chain(*first)) != ids(buffer)
    assert [ids(batch) for batch in buffer.minibatches(8, 0, "epoch", 0)] == first
    other = RolloutBuffer(seed=6)
    other.add(list(buffer))
    assert [ids(batch) for batch in other.minibatches(8, 0, "epoch", 0)] != first


def test_a_saved_buffer_comes_back_through_weights_only_loading():
    buffer = RolloutBuffer(capacity=3, max_staleness=0, seed=1)
    buffer.add([group(n, version=n) for n in range(5)])
    buffer.drop_stale(3)
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    restored = RolloutBuffer(capacity=3, max_staleness=0, seed=1)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert list(restored) == list(buffer)
    assert (restored.num_evicted, restored.num_stale) == (2, buffer.num_stale)
    assert list(restored.minibatches(2, 4)) == list(buffer.minibatches(2, 4))


def test_a_state_that_is_none_is_refused():
    with pytest.raises(CheckpointError, match="not the state of a rollout buffer"):
        RolloutBuffer().load_state_dict({"groups": [{"prompt_id": "p"}], "num_evicted": 0, "num_stale": 0})
    full = RolloutBuffer(capacity=5)
    full.add([group(n) for n in range(5)])
    with pytest.raises(CheckpointError, match="5 groups, more than the capacity of 2"):
        RolloutBuffer(capacity=2).load_state_dict(full.state_dict())


def test_senseless_settings_are_refused():
    with pytest.raises(ConfigError, match="capacity is 0"):
        RolloutBuffer(capacity=0)
    with pytest.raises(ConfigError, match="max_staleness is -1"):
        RolloutBuffer(max_staleness=-1)
    with pytest.raises(ConfigError, match="minibatch of 0"):
        list(RolloutBuffer().minibatches(0))
