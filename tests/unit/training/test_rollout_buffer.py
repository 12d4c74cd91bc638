"""Rollouts kept for several passes."""

from __future__ import annotations

import pytest
import torch

from rlhf import RolloutBuffer
from rlhf.data.contracts import Prompt
from rlhf.errors import CheckpointError, ConfigError, DataError
from rlhf.rollout.types import Completion


def prompts(*names):
    return [Prompt(name, [1, 2], name) for name in names]


def completions(*groups):
    """Token ids of each; the log-probability of token t is -t."""
    return [
        [
            Completion(
                prompt_id="p",
                sample=n,
                tokens=tokens,
                logprobs=[-float(t) for t in tokens],
                finish_reason="eos",
                weight_version=0,
                text="",
            )
            for n, tokens in enumerate(group)
        ]
        for group in groups
    ]


def filled(**settings):
    buffer = RolloutBuffer(**settings)
    buffer.add(prompts("a", "b"), completions([[3, 4], [5]], [[6], [7, 8]]), columns={"scores": torch.arange(4.0)})
    buffer.add(prompts("c"), completions([[9], [10]]), columns={"scores": torch.tensor([4.0, 5.0])})
    return buffer


def seen(batches):
    return [batch.columns["scores"].tolist() for batch in batches]


def test_columns_follow_their_completions_through_every_order():
    buffer = filled()
    assert (len(buffer), buffer.num_prompts) == (6, 3)
    for epoch in range(3):
        batches = list(buffer.minibatches(2, epoch=epoch))
        assert sorted(score for batch in seen(batches) for score in batch) == [0, 1, 2, 3, 4, 5]
        for batch in batches:
            assert torch.equal(batch.token_columns["old_logprobs"], -batch.score_token.float())
    orders = {str(seen(buffer.minibatches(2, epoch=epoch))) for epoch in range(8)}
    assert len(orders) > 1
    assert seen(buffer.minibatches(2)) == seen(buffer.minibatches(2))


def test_a_minibatch_holds_whole_prompts_up_to_its_size():
    assert seen(filled().minibatches(5, shuffle=False)) == [[0, 1, 2, 3], [4, 5]]
    assert seen(filled().minibatches(1, shuffle=False)) == [[0, 1], [2, 3], [4, 5]]


def test_beyond_the_capacity_the_oldest_prompts_go():
    buffer = filled(capacity=4)
    assert seen(buffer.minibatches(9, shuffle=False)) == [[2, 3, 4, 5]]
    with pytest.raises(DataError, match="capacity is 4"):
        buffer.add(prompts("d"), completions([[3]] * 5), columns={"scores": torch.zeros(5)})
    assert len(buffer) == 4, "as it was"
    buffer.clear()
    assert len(buffer) == 0
    assert list(buffer.minibatches(1)) == []


def test_what_is_saved_comes_back():
    buffer = RolloutBuffer()
    buffer.load_state_dict(filled().state_dict())
    assert seen(buffer.minibatches(2, epoch=3)) == seen(filled().minibatches(2, epoch=3))
    with pytest.raises(CheckpointError, match="held"):
        buffer.load_state_dict({})


@pytest.mark.parametrize(
    ("columns", "what"),
    [({"scores": torch.zeros(1)}, r"'scores' has shape \(1,\)"), ({}, "columns"), ({"other": torch.zeros(2)}, "other")],
)
def test_columns_that_do_not_fit_are_refused(columns, what):
    with pytest.raises(DataError, match=what):
        filled().add(prompts("d"), completions([[3], [4]]), columns=columns)


def test_wrong_sizes_are_refused():
    with pytest.raises(ConfigError, match="capacity"):
        RolloutBuffer(0)
    with pytest.raises(ConfigError, match="batch_size"):
        list(filled().minibatches(0))
    with pytest.raises(DataError, match="1 prompts"):
        RolloutBuffer().add(prompts("a"), [])
