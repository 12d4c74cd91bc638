"""What waits between two phases; that its bits are right is proven in tests/invariants/test_async_rollouts.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rlhf.errors import ConfigError, RewardError, TrainingError
from rlhf.rollout.snapshot import Sampled
from rlhf.training.async_rollouts import Threads
from rlhf.training.metrics import Metrics
from tests.fixtures import toy
from tests.fixtures.overlap import InTurn, in_turn


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("all_threads", "sampler", "trainer"), [(1, 1, 1), (2, 1, 1), (3, 1, 2), (4, 2, 2), (16, 8, 8)]
)
def test_threads_are_divided(all_threads, sampler, trainer):
    threads = Threads(all_threads)
    assert (threads.sampler, threads.trainer) == (sampler, trainer)


def test_the_trainer_has_all_threads_while_nothing_waits(two_threads):
    trainer = in_turn(toy.build_trainer("grpo", async_rollouts={"max_staleness": 1}, rollouts=2), late=True)
    seen = []
    assign = trainer.assign_credit

    def watching(*args):
        seen.append(torch.get_num_threads())
        return assign(*args)

    trainer.assign_credit = watching
    trainer.collect(0, Metrics())
    assert torch.get_num_threads() == 1, "the next rollout waits"
    saved = trainer.state_dict()
    assert torch.get_num_threads() == 1, "that it is done makes no difference to what the trainer computes with"
    trainer.collect(1, Metrics())
    assert torch.get_num_threads() == 2, "it was the last"
    trainer.load_state_dict(saved)
    assert torch.get_num_threads() == 1
    trainer.collector.ahead.close()
    assert torch.get_num_threads() == 2
    assert seen == [2, 2]


def test_the_trainer_shares_threads_while_a_rollout_waits_and_no_longer(two_threads):
    trainer = in_turn(toy.build_trainer("grpo", async_rollouts={"max_staleness": 2}, rollouts=3))
    assign, seen = trainer.assign_credit, []
    trainer.assign_credit = lambda *given: seen.append(torch.get_num_threads()) or assign(*given)
    for rollout_index in range(3):
        trainer.state_dict()  # waits for what was begun, as a checkpoint does: that it is done makes no difference
        trainer.collect(rollout_index, Metrics())
    assert seen == [1, 1, 2], "the last has nothing behind it"


def test_another_engine_is_refused():
    with pytest.raises(ConfigError, match=r"ppo: `async_rollouts`.*engine"):
        toy.build_trainer("ppo", async_rollouts={"max_staleness": 1}, episodes=True)


def test_a_sampler_with_other_weights_stops_the_run():
    trainer = toy.build_trainer("grpo", async_rollouts={"max_staleness": 1})
    answers = []

    class Stale(InTurn):
        def finish(self) -> Sampled:
            assert not answers, "a second answer would never come"
            answers.append(Sampled(super().finish().groups, "0" * 64))
            return answers[0]

    trainer.collector.ahead.build = lambda: Stale(trainer.policy)
    with pytest.raises(TrainingError, match=r"grpo: .*version 0.*stale weights"):
        trainer.collect(0, Metrics())
    assert trainer.state_dict()["ahead"] == [], "nothing waits"
    assert not trainer.collector.ahead.has(0)


def test_a_process_that_draws_other_numbers_is_noticed_at_the_first_step():
    trainer = toy.build_trainer("grpo", async_rollouts={"max_staleness": 1})

    class Noisy(InTurn):
        def finish(self) -> Sampled:
            actual = super().finish()
            for group in actual.groups:
                for completion in group:
                    completion.logprobs[0] -= 0.5
            return actual

    trainer.collector.ahead.build = lambda: Noisy(trainer.policy)
    trainer.train()
    said = [event["text"] if "text" in event else event["message"] for event in trainer.log.read("alarm")]
    assert any("the gap between sampler and trainer (nats) is 0.5" in text for text in said), said


def test_a_run_that_ends_or_fails_ends_its_sampler():
    closed = []

    class Watched(InTurn):
        def close(self) -> None:
            closed.append(True)
            super().close()

    trainer = toy.build_trainer("grpo", async_rollouts={"max_staleness": 1})
    trainer.collector.ahead.build = lambda: Watched(trainer.policy)
    trainer.train()
    assert closed == [True]

    class Broken(toy.ShareOfGood):
        def score(self, *_):
            raise RuntimeError("no")

    trainer = toy.build_trainer("grpo", async_rollouts={"max_staleness": 1}, scorer=Broken())
    trainer.collector.ahead.build = lambda: Watched(trainer.policy)
    with pytest.raises(RewardError, match="raised RuntimeError: no"):
        trainer.train()
    assert closed == [True, True]
