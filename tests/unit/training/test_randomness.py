from __future__ import annotations

import random

import numpy as np
import torch

from rlhf.training.randomness import random_state, random_state_kept, seed_everything, set_random_state


def draws():
    return (
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        float(torch.rand(())),
        torch.randn(3),
    )


def same(first, second):
    return all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(first, second, strict=True))


def test_a_seed_seeds_everything():
    seed_everything(2**62 + 3)
    first = draws()
    seed_everything(2**62 + 3)
    assert same(draws(), first)
    seed_everything(4)
    assert not same(draws(), first)


def test_the_state_goes_through_a_file_and_brings_all_generators_back(tmp_path):
    seed_everything(1)
    draws()  # leaves a second gaussian in waiting, in Python's generator and in numpy's
    torch.save(random_state(), tmp_path / "state.pt")
    first = draws()
    set_random_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert same(draws(), first)


def test_what_is_drawn_inside_leaves_no_trace():
    seed_everything(1)
    expected = draws()
    seed_everything(1)
    with random_state_kept():
        draws()
        seed_everything(99)
    assert same(draws(), expected)
