from __future__ import annotations

import random

from rlhf.seeds import derive_seed


def test_a_seed_is_the_same_on_every_machine():
    # written down once: another number would change every run that was ever started
    assert derive_seed(0) == 3074174363062994052
    assert derive_seed(1, "ppo", "rollout", 3, "prompts.jsonl:7", 0) == 6425242412297336293


def test_names_are_kept_apart():
    seeds = [
        derive_seed(0, "a", "bc"),
        derive_seed(0, "ab", "c"),
        derive_seed(0, "abc"),
        derive_seed(0, "abc", ""),
        derive_seed(0, 1),
        derive_seed(0, "1"),
        derive_seed(0, 1, 1),
        derive_seed(0, 11),
        derive_seed(1),
        derive_seed(0, -1),
    ]
    assert len(set(seeds)) == len(seeds)


def test_seeds_fit_every_generator_and_use_their_range():
    seeds = [derive_seed(0, "n", i) for i in range(2000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert len(set(seeds)) == 2000
    assert 0.45 < sum(seed >> 62 for seed in seeds) / 2000 < 0.55
    random.Random(seeds[0])
