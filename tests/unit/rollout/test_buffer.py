from __future__ import annotations

import io

import pytest
import torch

from rlhf.errors import CheckpointError, ConfigError, TrainingError
from rlhf.rollout.buffer import RolloutGroup, StalenessBuffer
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


def test_first_in_first_out():
    buffer = StalenessBuffer(max_staleness=0)
    buffer.add([group(0), group(1)])
    buffer.add([group(2)])
    assert buffer.take(["p0", "p1"], weight_version=0) == [group(0).completions, group(1).completions]
    assert buffer.take(["p2"], weight_version=0) == [group(2).completions]
    assert len(buffer) == 0


def test_nothing_older_than_allowed_is_given_out():
    buffer = StalenessBuffer(max_staleness=1)
    buffer.add([group(0, version=3), group(1, version=4)])
    assert buffer.take(["p0"], weight_version=4), "one version behind"
    with pytest.raises(TrainingError, match=r"version 4.* version 6.*1 behind"):
        buffer.take(["p1"], weight_version=6)


def test_completions_of_other_prompts_than_asked_are_refused():
    buffer = StalenessBuffer(max_staleness=1)
    buffer.add([group(0)])
    with pytest.raises(TrainingError, match=r"1, the first 'p0'.*1, the first 'p1'"):
        buffer.take(["p1"], weight_version=0)
    with pytest.raises(TrainingError, match="the first 'missing'"):
        buffer.take(["p0"], weight_version=0)


def test_a_restored_buffer_is_the_one_that_was_saved():
    buffer = StalenessBuffer(max_staleness=0)
    buffer.add([group(0), group(1, num_samples=1)])
    file = io.BytesIO()
    torch.save(buffer.state_dict(), file)
    file.seek(0)
    restored = StalenessBuffer(max_staleness=0)
    restored.add([group(7)])
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert list(restored) == list(buffer)


@pytest.mark.parametrize("state", [[{"prompt_id": "p"}], [{"prompt_id": "p", "completions": []}], [3]])
def test_another_state_is_refused(state):
    with pytest.raises(CheckpointError, match="rollout buffer"):
        StalenessBuffer(max_staleness=0).load_state_dict(state)


def test_a_negative_age_is_refused():
    with pytest.raises(ConfigError, match="max_staleness is -1"):
        StalenessBuffer(max_staleness=-1)
