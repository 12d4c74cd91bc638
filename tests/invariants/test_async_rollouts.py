"""Rollouts sampled ahead: the bits are those of the same algorithm executed in turn, and of a run that was killed or interrupted."""

from __future__ import annotations

import copy
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf.config.launch import EnginePoolConfig
from rlhf.distributed.current_cluster import working_for_this_process
from rlhf.errors import InterruptedRun, TrainingError
from rlhf.rollout.local import LocalEngine
from rlhf.training.checkpoint import CheckpointManager
from rlhf.training.log import TrainingLogger
from rlhf.training.metrics import Metrics
from tests.fixtures import toy
from tests.fixtures.actors import DIE, HANG, FakeCluster
from tests.fixtures.overlap import in_turn
from tests.invariants.test_resume import KilledError, KillingLog, build, logged

SETTINGS: dict[str, Any] = {
    "async_rollouts": {"max_staleness": 1},
    "rollouts": 3,
    "save_every": 1,
    "early_stopping": None,
}
TWO_AHEAD: dict[str, Any] = SETTINGS | {"async_rollouts": {"max_staleness": 2}, "rollouts": 5}
BY_STALENESS = {1: SETTINGS, 2: TWO_AHEAD}
ignore_conv1d = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # GPT-2's layers lie the other way
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {}),
    "grpo": ("grpo", {}),
    "grpo with an adapter": ("grpo", {"lora": True}),
    "grpo with equal groups asked again": (
        "grpo", {"dynamic_sampling": True, "sampling": {"max_new_tokens": 2}, "group_size": 2},
    ),
    "remax": ("remax", {}),
    "vapo behind a warm-up": ("vapo", {}),
    "distill": ("distill", {}),
    "online_dpo": ("online_dpo", {}),
    "two ahead": ("grpo", TWO_AHEAD),
    "two ahead, with equal groups asked again by a curriculum": (
        "grpo", TWO_AHEAD | {
            "dynamic_sampling": True, "sampling": {"max_new_tokens": 2}, "group_size": 2, "curriculum": {"success_score": 0.6},
        },
    ),
    "three ahead, with demonstrations between": (
        "distill", {"async_rollouts": {"max_staleness": 3}, "rollouts": 6, "on_policy_frac": 0.3},
    ),
}  # fmt: skip


def run(trainer: Any) -> tuple[Any, Any, Any]:
    result = trainer.train()
    return toy.weights_of(trainer), result.metrics, result.evaluation


def same(actual: tuple[Any, Any, Any], expected: tuple[Any, Any, Any]) -> bool:
    return toy.largest_difference(actual[0], expected[0]) == 0.0 and actual[1:] == expected[1:]


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_none_ahead_are_the_bits_of_a_run_without_the_section(name, tmp_path):
    settings = {"rollouts": 2, "held_out": True}
    without = run(build(name, tmp_path / "without", **settings))
    assert same(run(build(name, tmp_path / "none", async_rollouts={"max_staleness": 0}, **settings)), without)
    assert logged(tmp_path / "none") == logged(tmp_path / "without")


@pytest.mark.parametrize("staleness", BY_STALENESS)
@pytest.mark.parametrize("dies", [False, True], ids=["in peace", "with an engine lost in each rollout"])
def test_a_pool_beside_training_gives_the_bits_of_sampling_in_turn(dies, staleness, tmp_path):
    def fate(replica, life, method, arguments):
        return DIE if dies and method == "sample" and life % 2 == 0 else None

    cluster = FakeCluster(fate)
    cluster.pools = {"engines": EnginePoolConfig()}
    with working_for_this_process(cluster):
        trainer = build("grpo", tmp_path / "pool", held_out=True, **BY_STALENESS[staleness])
    trainer.collector.engine.notify = lambda text: None
    pooled = run(trainer)
    assert len(cluster.lives) > 1 if dies else cluster.lives == [0]
    assert same(run(in_turn(build("grpo", tmp_path / "turn", held_out=True, **BY_STALENESS[staleness]))), pooled)
    assert logged(tmp_path / "turn") == logged(tmp_path / "pool")


def test_a_pool_that_is_closed_in_the_middle_of_a_rollout_ends_it(tmp_path):
    cluster = FakeCluster(lambda replica, life, method, arguments: HANG if method == "sample" else None)
    cluster.pools = {"engines": EnginePoolConfig()}
    with working_for_this_process(cluster):
        collector = build("grpo", tmp_path, **TWO_AHEAD).collector
    assert collector.ahead is not None
    prompts = toy.prompts(2)
    for rollout_index in range(2):
        collector.ahead.begin(prompts, rollout_index=rollout_index, version=0)
    collector.close()  # a test that hangs here has failed
    assert not collector.ahead.has(0)


@pytest.mark.parametrize(("name", "staleness"), [("ppo", 1), ("grpo", 1), ("grpo", 2)])
@pytest.mark.slow
def test_a_process_beside_training_gives_the_bits_of_sampling_in_turn(name, staleness, tmp_path):
    settings = BY_STALENESS[staleness]
    beside = run(build(name, tmp_path / "beside", **settings))
    for late in (False, True):
        folder = tmp_path / f"late {late}"
        assert same(run(in_turn(build(name, folder, **settings), late=late)), beside)
        assert logged(folder) == logged(tmp_path / "beside")


@pytest.mark.slow
@ignore_conv1d
@pytest.mark.parametrize("case", CASES)
def test_when_it_is_sampled_makes_no_difference(case, tmp_path):
    name, settings = CASES[case]
    early, late = (
        run(in_turn(build(name, tmp_path / str(late), **SETTINGS | settings), late=late)) for late in (False, True)
    )
    assert same(early, late)
    assert logged(tmp_path / "False") == logged(tmp_path / "True")


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_a_rollout_is_sampled_by_the_weights_of_as_many_rollouts_before(staleness):
    trainer = in_turn(
        toy.build_trainer("grpo", async_rollouts={"max_staleness": staleness}, rollouts=5, learning_rate=1e-2),
        late=True,
    )
    at_start: list[Any] = []
    collect, phases = trainer.collect, []

    def watching(phase: int, metrics: Metrics) -> Any:
        at_start.append(copy.deepcopy(trainer.policy))  # nothing was learned from this phase's rollout yet
        phases.append(phase)
        experience = collect(phase, metrics)
        expected = LocalEngine(at_start[max(0, phase - staleness)]).generate(
            trainer.next_prompts(phase * 4, 4),
            num_samples=3,
            sampling=trainer.config.sampling,
            seed=5,
            rollout_index=phase,
        )
        tokens = [branch.tokens for group in experience.groups for branch in group.branches]
        assert tokens == [completion.tokens for group in expected for completion in group]
        return experience

    trainer.collect = watching
    trainer.train()
    assert phases == list(range(5))


@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("name", ["ppo", "grpo", "vapo"])
def test_older_completions_are_corrected_and_fresh_ones_need_no_correction(name, staleness):
    log = TrainingLogger()
    trainer = in_turn(
        toy.build_trainer(name, log=log, async_rollouts={"max_staleness": staleness}, rollouts=4, learning_rate=1e-2, seed=3,
                          **({"value_warmup_rollouts": 2} if name == "vapo" else {}))
    )  # fmt: skip
    trainer.train()
    metrics = [e["metrics"] for e in log.read("metrics") if "rollout/staleness" in e["metrics"]]
    assert [m["rollout/staleness"] for m in metrics] == [min(number, staleness) for number in range(4)]
    still = 3 if name == "vapo" else 1  # rollouts whose sampler is the policy: the warm-up moves only the critic
    for number, actual in enumerate(metrics):
        moved = abs(actual["importance/ratio_max"] - 1)
        assert (moved > 1e-3) == (number >= still), f"rollout {number}: {actual}"
        assert (actual["rollout/logprob_gap"] > 1e-4) == (number >= still)
    firsts = [e["metrics"] for e in log.read("metrics")][:: trainer.steps_per_phase]
    for actual in firsts[2 if name == "vapo" else 0 :]:
        assert actual[f"{name}/ratio_max"] == pytest.approx(1, abs=1e-5), "PPO's own ratio begins at 1 in every rollout"
    assert not [e for e in log.read("alarm") if e["guard"] in ("engine", "self-check", "importance")]


def test_prompts_asked_again_are_answered_by_the_weights_as_they_are():
    log = TrainingLogger()
    name, settings = CASES["grpo with equal groups asked again"]
    in_turn(toy.build_trainer(name, log=log, async_rollouts={"max_staleness": 1}, rollouts=3, **settings)).train()
    metrics = [e["metrics"] for e in log.read("metrics") if "rollout/staleness" in e["metrics"]]
    assert max(m["rollout/rounds"] for m in metrics[1:]) > 1
    for m in metrics[1:]:
        assert (m["rollout/staleness"] == 1) == (m["rollout/rounds"] == 1)
        assert 0 < m["rollout/staleness"] <= 1


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_the_correction_is_the_ratio_of_the_policy_at_the_start_of_learning_to_the_one_that_sampled(staleness):
    """Hilton et al. 2021, section 3: the proximal policy is that of now, however old the one that sampled is."""
    trainer = in_turn(
        toy.build_trainer(
            "grpo", async_rollouts={"max_staleness": staleness}, rollouts=staleness + 1, learning_rate=1e-2
        )
    )
    for rollout_index in range(staleness):
        trainer.collect(rollout_index, Metrics())
        toy.change_weights(trainer.policy.model, by=0.05, seed=rollout_index)
    experience = trainer.collect(staleness, Metrics())
    columns = experience.token_columns
    proximal, drawn = (logprobs_of(policy, experience) for policy in (trainer.policy, toy.build_policy()))
    torch.testing.assert_close(columns["old_logprobs"], proximal, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        columns["importance_weights"], (proximal - drawn).exp().clamp(max=2.0), rtol=1e-4, atol=1e-5
    )
    assert float(columns["importance_weights"].sub(1).abs().max()) > 0.01


def logprobs_of(policy: Any, experience: Any) -> torch.Tensor:
    """Of its completions; a fresh policy is that of the start."""
    return torch.cat([policy.logprobs(experience.batch([number])) for number in range(len(experience.groups))])


def test_prompts_that_are_asked_again_are_not_those_that_wait():
    """Every place of the sequence of prompts is asked once, whatever dynamic sampling asks meanwhile."""
    asked: list[str] = []

    class Noting(toy.ShareOfGood):
        def score(self, prompts: Any, completions: Any) -> Any:
            asked.extend(prompt.id for prompt in prompts[::2])
            return super().score(prompts, completions)

    name, settings = CASES["grpo with equal groups asked again"]
    settings = settings | {"async_rollouts": {"max_staleness": 2}, "rollouts": 5}
    trainer = in_turn(toy.build_trainer(name, scorer=Noting(), **settings))
    trainer.train()
    assert trainer.asked_again > 0
    assert sorted(asked) == sorted(prompt.id for prompt in trainer.next_prompts(0, len(asked)))


def test_learning_waits_for_no_rollout_but_its_own(tmp_path):
    trainer = in_turn(build("grpo", tmp_path, **TWO_AHEAD | {"save_every": 100}), late=True)
    assign, finished = trainer.assign_credit, []

    def watching(*given: Any) -> Any:
        finished.append(trainer.collector.ahead._sampler.finished)
        return assign(*given)

    trainer.assign_credit = watching
    trainer.train()
    assert finished == [1, 2, 3, 4, 5]


@ignore_conv1d
@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_a_run_killed_after_any_write_ends_with_the_same_bits(case, tmp_path):
    name, settings = CASES[case]
    settings = SETTINGS | settings
    whole = KillingLog(tmp_path / "whole", stage="run")
    expected = run(in_turn(build(name, tmp_path / "whole", log=whole, **settings)))
    writes = 10**9 - whole.writes_left
    for number in range(1, writes, 2 if case == "ppo" else 5):
        folder = tmp_path / str(number)
        log = KillingLog(folder, stage="run")
        log.writes_left = number
        with pytest.raises(KilledError):
            in_turn(build(name, folder, log=log, **settings), late=True).train()
        assert same(run(in_turn(build(name, folder, **settings))), expected)
        assert logged(folder) == logged(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("staleness", BY_STALENESS)
def test_a_process_is_started_again_by_a_run_that_was_killed(staleness, tmp_path):
    settings = BY_STALENESS[staleness]
    expected = run(build("grpo", tmp_path / "whole", **settings))
    log = KillingLog(tmp_path / "hurt", stage="run")
    log.writes_left = 8
    with pytest.raises(KilledError):
        build("grpo", tmp_path / "hurt", log=log, **settings).train()
    assert CheckpointManager(tmp_path / "hurt" / "run").paths(), "the run had saved something"
    assert same(run(build("grpo", tmp_path / "hurt", **settings)), expected)
    assert logged(tmp_path / "hurt") == logged(tmp_path / "whole")


@pytest.mark.parametrize(("staleness", "finish"), [(1, 1), (1, 2), (1, 3), (2, 1), (2, 3), (2, 5)])
def test_a_signal_while_it_is_waited_for_saves_and_the_run_goes_on_with_the_same_bits(staleness, finish, tmp_path):
    settings = BY_STALENESS[staleness] | {"save_every": 100}
    expected = run(in_turn(build("grpo", tmp_path / "whole", **settings)))
    left = [finish]

    def hit() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRun, match="saved"):
        in_turn(build("grpo", tmp_path / "hurt", **settings), before_finish=hit).train()
    assert same(run(in_turn(build("grpo", tmp_path / "hurt", **settings))), expected)


@pytest.mark.parametrize("staleness", [1, 2])
def test_a_guard_that_goes_back_forgets_what_is_under_way(staleness, tmp_path: Path):
    trainer = in_turn(toy.build_trainer("grpo", async_rollouts={"max_staleness": staleness}, rollouts=3), late=True)
    before = trainer.state_dict()
    trainer.collect(0, Metrics())
    assert trainer.collector.ahead.has(1)
    trainer.load_state_dict(before)
    assert not trainer.collector.ahead.has(1)
    assert len(trainer.collector.ahead.buffer) == 0
    again = trainer.collect(0, Metrics())
    fresh = in_turn(toy.build_trainer("grpo", async_rollouts={"max_staleness": 1}, rollouts=3)).collect(0, Metrics())
    assert again.state_dict()["groups"] == fresh.state_dict()["groups"]


def test_a_guard_goes_back_also_where_what_is_under_way_has_failed():
    trainer = in_turn(toy.build_trainer("grpo", async_rollouts={"max_staleness": 1}, rollouts=3), late=True)

    class Failing:
        def __init__(self, sampler):
            self.sampler, self.close = sampler, sampler.close

        def begin(self, *given, **more):
            self.sampler.begin(*given, **more)

        def finish(self):
            raise TrainingError("a log-probability is not finite")

    before = trainer.state_dict()
    trainer.collect(0, Metrics())
    trainer.collector.ahead._sampler = Failing(trainer.collector.ahead._sampler)
    trainer.load_state_dict(before)
    assert not trainer.collector.ahead.has(1)
    again = trainer.collect(0, Metrics())
    fresh = in_turn(toy.build_trainer("grpo", async_rollouts={"max_staleness": 1}, rollouts=3)).collect(0, Metrics())
    assert again.state_dict()["groups"] == fresh.state_dict()["groups"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "staleness"), [("ppo", 1), ("grpo", 1), ("grpo", 3)])
def test_the_reward_rises_with_older_completions_too(name, staleness):
    log = TrainingLogger()
    settings = {"ppo": {"kl": {"coef": 0.01}}, "grpo": {"group_size": 4, "kl": {"coef": 0.01}}}[name]
    in_turn(
        toy.build_trainer(name, log=log, async_rollouts={"max_staleness": staleness}, rollouts=30, prompts_per_rollout=32,
                          minibatch_size=32, learning_rate=2e-2, **settings)
    ).train()  # fmt: skip
    scores = [e["metrics"][f"{name}/score_mean"] for e in log.read("metrics") if f"{name}/score_mean" in e["metrics"]]
    assert 0.35 < sum(scores[:2]) / 2 < 0.65
    assert sum(scores[-3:]) / 3 > 0.85
