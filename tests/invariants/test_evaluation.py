"""Looking at held-out data changes nothing in the training that goes on."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from rlhf.rewards.types import ScoreResult
from tests.fixtures import toy


class Dicey:
    """A reward that draws from every global generator, as a user's own may."""

    name = "dicey"

    def score(self, prompts, completions):
        return ScoreResult([random.random() + float(np.random.rand() + torch.rand(())) for _ in completions])


@pytest.mark.parametrize("name", toy.NAMES)
def test_a_run_that_is_evaluated_all_the_time_ends_with_the_same_bits(name):
    runs = []
    for often in (True, False):
        settings = {"held_out": True, "eval_every": 1} if often else {}
        scorer = Dicey() if name in ("ppo", "grpo") else None
        trainer = toy.build_trainer(name, dropout=0.2, ema_decay=0.9, scorer=scorer, **settings)
        result = trainer.train()
        assert bool(result.evaluation) == often
        runs.append(toy.weights_of(trainer))
    assert toy.largest_difference(*runs) == 0.0


@pytest.mark.parametrize("name", toy.NAMES)
def test_the_same_seed_gives_the_same_run_and_another_seed_another(name):
    runs = []
    for seed in (5, 5, 6):
        trainer = toy.build_trainer(name, dropout=0.2, seed=seed)
        trainer.train()
        runs.append(toy.weights_of(trainer))
    assert toy.largest_difference(runs[0], runs[1]) == 0.0
    assert toy.largest_difference(runs[0], runs[2]) > 0.0
