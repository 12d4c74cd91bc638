from __future__ import annotations

import pytest
import torch

from rlhf.data.pack import pack
from rlhf.errors import ModelError
from rlhf.models.noise import added_to_embeddings
from tests.fixtures import toy


def test_what_is_added_reaches_the_embedding_of_every_token():
    policy, batch = toy.build_policy(dtype=torch.float64), pack(toy.rows(3))
    policy.score(batch)  # chooses its path
    seen = []
    embedding = policy.model.get_input_embeddings()
    shift = torch.arange(batch.num_tokens, dtype=torch.float64)[:, None].expand(-1, 32)
    with added_to_embeddings(policy.model, batch, lambda like: shift):
        handle = policy.model.transformer.drop.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        policy.score(batch)
        handle.remove()
    plain = embedding(batch.tokens) + policy.model.transformer.wpe(batch.positions)
    torch.testing.assert_close(seen[0][0], plain + shift)


def test_nothing_is_left_behind_by_an_error():
    policy, batch = toy.build_policy(), pack(toy.rows(3))
    plain = policy.logprobs(batch)
    with pytest.raises(RuntimeError, match="on the way"), added_to_embeddings(policy.model, batch, torch.ones_like):
        raise RuntimeError("on the way")
    assert torch.equal(policy.logprobs(batch), plain)


def test_a_model_that_never_asks_its_embedding_is_told_of():
    policy, batch = toy.build_policy(), pack(toy.rows(3))
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel.*0 times"):  # noqa: SIM117
        with added_to_embeddings(policy.model, batch, torch.ones_like):
            pass
