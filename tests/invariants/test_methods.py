"""For every method: how a step is cut into micro-batches, packed, shared or ordered is not in its gradient."""

from __future__ import annotations

import functools

import pytest
import torch

from rlhf.config.methods import METHODS
from tests.fixtures import invariance
from tests.fixtures.invariance import EARLY_WAYS, WAYS, difference, gradient, joined, unshared
from tests.fixtures.toy import NAMES

LIMIT = 1e-9
"""Float64 leaves about 1e-15 of rounding; a wrong denominator leaves 1e-2."""


@pytest.fixture(scope="module", autouse=True)
def what_ways_share_once():
    """Each method's own gradient is what all its ways are compared with, and most of them begin with the same rows."""
    gradient, before_step = invariance.gradient, invariance.before_step
    plain = functools.cache(lambda method: gradient(method))
    begun = functools.lru_cache(maxsize=2)(before_step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            invariance, "gradient", lambda method, way=None: plain(method) if way is None else gradient(method, way)
        )
        patch.setattr(invariance, "before_step", lambda method, way: begun(method, way if way in EARLY_WAYS else None))
        yield


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", METHODS)
def test_the_gradient_of_a_method_does_not_depend_on(method, way):
    assert difference(method, way) < LIMIT


def test_every_trainer_of_the_toy_is_one_of_the_methods():
    built = {invariance.BUILT_AS.get(name, method.kind) for name, method in METHODS.items()}
    assert set(NAMES) <= built


def test_a_mean_of_the_means_of_micro_batches_would_be_found(monkeypatch):
    from rlhf.training.algorithm import Totals
    from rlhf.training.sft import SFTTrainer

    own = SFTTrainer.loss

    def by_itself(self, batch, totals, metrics):
        part = Totals.of([batch])
        return own(self, batch, part, metrics) * batch.num_groups / totals.num_groups

    monkeypatch.setattr(SFTTrainer, "loss", by_itself)
    assert difference("sft", "one by one") > 1e-3


def test_sequences_that_share_and_that_do_not_are_the_same_sequences():
    from rlhf.data.pack import Branch, Group, pack

    batch = pack([Group([5, 6], [Branch([7, 8]), Branch([9], [True])]), Group([4], [Branch([3, 2], [False, True])])])
    apart = unshared(batch)
    assert apart.tokens.tolist() == [5, 6, 7, 8, 5, 6, 9, 4, 3, 2]  # by hand: the first prefix twice
    assert apart.score_at.tolist() == [1, 2, 5, 8]
    assert apart.score_token.tolist() == batch.score_token.tolist()
    again = joined(batch.split())
    for name in ("tokens", "positions", "start", "prefix_start", "group", "score_at", "score_seq"):
        assert torch.equal(getattr(again, name).long(), getattr(batch, name).long()), name


def test_two_methods_have_two_gradients():
    plain, other = gradient("dpo"), gradient("ipo")
    assert max(float((plain[name] - other[name]).abs().max()) for name in plain) > 1e-3
