"""Every engine, through the same checks that a user's own engine goes through."""

from __future__ import annotations

import pytest

from rlhf.models.policy import PolicyModel
from rlhf.rollout.environments import Turn
from rlhf.rollout.episodes import EpisodeEngine
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import RolloutEngine
from rlhf.testing import ENGINE_CHECKS
from tests.fixtures.tiny import build_llama
from tests.unit.rollout.helpers import build_family, build_prompts

pytestmark = pytest.mark.numeric


def packed(tokenizer) -> RolloutEngine:
    return LocalEngine(PolicyModel(build_family("llama"), tokenizer))


def packed_in_small_pieces(tokenizer) -> RolloutEngine:
    return LocalEngine(PolicyModel(build_family("gpt2"), tokenizer), max_rows=2, max_prefill_tokens=8)


def padded(tokenizer) -> RolloutEngine:
    return LocalEngine(PolicyModel(build_family("gpt_neo"), tokenizer))


class Nodding:
    """Nods twice, then ends the episode."""

    def reset(self, prompt):
        self.nods = 0

    def step(self, text):
        self.nods += 1
        return Turn(" yes", done=self.nods > 2, reward=1.0)


def in_episodes(tokenizer) -> RolloutEngine:
    policy = PolicyModel(build_llama(vocab_size=len(tokenizer)), tokenizer)
    return EpisodeEngine(LocalEngine(policy), Nodding, tokenizer, max_turn_tokens=3)


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "build", [packed, packed_in_small_pieces, padded, in_episodes], ids=lambda build: build.__name__
)
def test_an_engine_keeps_the_contract(build, check, tiny_tokenizer):
    check(build(tiny_tokenizer), build_prompts((9, 2, 14, 5)))


class DeafEngine:
    """An engine that samples from its own memory: every check about seeds and versions must notice something."""

    def __init__(self, engine: RolloutEngine) -> None:
        self.engine, self.weight_version = engine, 0

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def generate(self, prompts, *, num_samples, sampling, seed, rollout_index):
        return self.engine.generate(prompts, num_samples=num_samples, sampling=sampling, seed=0, rollout_index=0)


@pytest.mark.parametrize(
    "name", ["check_the_seed_and_the_rollout_index_decide", "check_completions_carry_the_version_that_was_loaded"]
)
def test_the_checks_can_fail(name, tiny_tokenizer):
    check = next(check for check in ENGINE_CHECKS if check.__name__ == name)
    with pytest.raises(AssertionError):
        check(DeafEngine(packed(tiny_tokenizer)), build_prompts((9, 2, 14, 5)))
