from __future__ import annotations

import io

import pytest
import torch

from rlhf.errors import CheckpointError, ConfigError, TrainingError
from rlhf.rollout.buffer import RolloutGroup, StalenessBuffer, WaitingRollout
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
            environment_info={"moves": 2.0} if sample else {},
        )
        for sample in range(num_samples)
    ]
    return RolloutGroup(f"p{number}", completions)


def rollout(index: int, *groups: RolloutGroup) -> WaitingRollout:
    ids = [one.prompt_id for one in groups]
    return WaitingRollout(
        rollout_index=index, version=0, prompt_ids=ids, groups=list(groups), figures={"rollout/x": 0.5}
    )


def test_first_in_first_out():
    buffer = StalenessBuffer(max_staleness=1)
    first, second = rollout(0, group(0), group(1)), rollout(1, group(2))
    buffer.add(first)
    buffer.add(second)
    assert buffer.take(0, ["p0", "p1"]) is first
    assert buffer.take(1, ["p2"]) is second
    assert len(buffer) == 0


def test_nothing_older_than_allowed_is_given_out():
    buffer = StalenessBuffer(max_staleness=2)
    buffer.add(rollout(5, group(0, version=4), group(1, version=3)))
    assert buffer.take(5, ["p0", "p1"]), "two versions behind"
    buffer.add(rollout(6, group(0, version=4), group(1, version=3)))
    with pytest.raises(TrainingError, match=r"version 3.* version 6.*2 behind"):
        buffer.take(6, ["p0", "p1"])


def test_completions_of_another_rollout_or_of_other_prompts_are_refused():
    buffer = StalenessBuffer(max_staleness=1)
    with pytest.raises(TrainingError, match=r"no rollout.*'p0'"):
        buffer.take(0, ["p0"])
    buffer.add(rollout(0, group(0)))
    with pytest.raises(TrainingError, match=r"'p0'.*'p1'"):
        buffer.take(0, ["p1"])
    with pytest.raises(TrainingError, match=r"rollout 0 .*rollout 1 "):
        buffer.take(1, ["p0"])


def test_a_restored_buffer_is_the_one_that_was_saved():
    buffer = StalenessBuffer(max_staleness=0)
    buffer.add(rollout(3, group(0), group(1, num_samples=1)))
    buffer.add(rollout(4, group(2)))
    file = io.BytesIO()
    torch.save([one.state_dict() for one in buffer], file)
    file.seek(0)
    restored = StalenessBuffer(max_staleness=0)
    restored.add(rollout(0, group(7)))
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert list(restored) == list(buffer)


@pytest.mark.parametrize(
    "state",
    [
        {"rollout_index": 1, "groups": [], "figures": {}},  # of a version that sampled one ahead
        [{"rollout_index": 1, "version": 0, "figures": {}, "groups": [{"prompt_id": "p", "completions": []}]}],
        [{"rollout_index": 1, "version": 0, "figures": {}}],
        [3],
    ],
)
def test_another_state_is_refused(state):
    with pytest.raises(CheckpointError, match="pending rollouts"):
        StalenessBuffer(max_staleness=0).load_state_dict(state)


def test_a_negative_age_is_refused():
    with pytest.raises(ConfigError, match="max_staleness is -1"):
        StalenessBuffer(max_staleness=-1)
