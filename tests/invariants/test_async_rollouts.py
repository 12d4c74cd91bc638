"""One step off: the bits are those of the same algorithm executed in turn, and of a run that was killed or interrupted."""

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
}  # fmt: skip


def run(trainer: Any) -> tuple[Any, Any, Any]:
    result = trainer.train()
    return toy.weights_of(trainer), result.metrics, result.evaluation


def same(actual: tuple[Any, Any, Any], expected: tuple[Any, Any, Any]) -> bool:
    return toy.largest_difference(actual[0], expected[0]) == 0.0 and actual[1:] == expected[1:]


@pytest.mark.parametrize("dies", [False, True], ids=["in peace", "with an engine lost in each rollout"])
def test_a_pool_beside_training_gives_the_bits_of_sampling_in_turn(dies, tmp_path):
    def fate(replica, life, method, arguments):
        return DIE if dies and method == "sample" and life % 2 == 0 else None

    cluster = FakeCluster(fate)
    cluster.pools = {"engines": EnginePoolConfig()}
    with working_for_this_process(cluster):
        trainer = build("grpo", tmp_path / "pool", **SETTINGS)
    trainer.collector.engine.notify = lambda text: None
    pooled = run(trainer)
    assert len(cluster.lives) > 1 if dies else cluster.lives == [0]
    assert same(run(in_turn(build("grpo", tmp_path / "turn", **SETTINGS))), pooled)
    assert logged(tmp_path / "turn") == logged(tmp_path / "pool")


def test_a_pool_that_is_closed_in_the_middle_of_a_rollout_ends_it(tmp_path):
    cluster = FakeCluster(lambda replica, life, method, arguments: HANG if method == "sample" else None)
    cluster.pools = {"engines": EnginePoolConfig()}
    with working_for_this_process(cluster):
        collector = build("grpo", tmp_path, **SETTINGS).collector
    assert collector.ahead is not None
    prompts = toy.prompts(2)
    collector.ahead.begin(prompts, rollout_index=0, version=0)
    collector.close()
    assert collector.engine.under_way is None


@pytest.mark.parametrize("name", ["ppo", "grpo"])
@pytest.mark.slow
def test_a_process_beside_training_gives_the_bits_of_sampling_in_turn(name, tmp_path):
    beside = run(build(name, tmp_path / "beside", **SETTINGS))
    for late in (False, True):
        folder = tmp_path / f"late {late}"
        assert same(run(in_turn(build(name, folder, **SETTINGS), late=late)), beside)
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


def test_a_rollout_is_sampled_by_the_weights_from_before_the_training_on_the_one_before():
    trainer = in_turn(
        toy.build_trainer("grpo", async_rollouts={"max_staleness": 1}, rollouts=3, learning_rate=1e-2), late=True
    )
    at_start: list[Any] = []
    collect, phases = trainer.collect, []

    def watching(phase: int, metrics: Metrics) -> Any:
        at_start.append(copy.deepcopy(trainer.policy))  # nothing was learned from this phase's rollout yet
        phases.append(phase)
        experience = collect(phase, metrics)
        asked = [toy.prompts(8)[number] for number in trainer.order.take(phase * 4, 4)]
        expected = LocalEngine(at_start[max(0, phase - 1)]).generate(
            asked, num_samples=3, sampling=trainer.config.sampling, seed=5, rollout_index=phase
        )
        tokens = [branch.tokens for group in experience.groups for branch in group.branches]
        assert tokens == [completion.tokens for group in expected for completion in group]
        return experience

    trainer.collect = watching
    trainer.train()
    assert phases == [0, 1, 2]


@pytest.mark.parametrize("name", ["ppo", "grpo", "vapo"])
def test_older_completions_are_corrected_and_fresh_ones_need_no_correction(name):
    log = TrainingLogger()
    trainer = in_turn(
        toy.build_trainer(name, log=log, async_rollouts={"max_staleness": 1}, rollouts=4, learning_rate=1e-2, seed=3,
                          **({"value_warmup_rollouts": 2} if name == "vapo" else {}))
    )  # fmt: skip
    trainer.train()
    metrics = [e["metrics"] for e in log.read("metrics") if "rollout/staleness" in e["metrics"]]
    assert [m["rollout/staleness"] for m in metrics] == [0, 1, 1, 1]
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


def test_weights_that_correct_multiply_the_loss_of_the_token():
    trainer = in_turn(toy.build_trainer("grpo", async_rollouts={"max_staleness": 1}, rollouts=3, learning_rate=1e-2))
    trainer.collect(0, Metrics())
    toy.change_weights(trainer.policy.model, by=0.05)
    experience = trainer.collect(1, Metrics())
    columns = experience.token_columns
    drawn = torch.tensor([n for group in trained_from(trainer, experience) for n in group])
    torch.testing.assert_close(
        columns["importance_weights"], (columns["old_logprobs"] - drawn).exp().clamp(max=2.0), rtol=1e-4, atol=1e-5
    )
    assert float(columns["importance_weights"].sub(1).abs().max()) > 0.01


def trained_from(trainer: Any, experience: Any) -> list[list[float]]:
    """Log-probabilities of its completions under the policy as it was at the start, which a fresh one of the seed is."""
    fresh = toy.build_policy()
    return [fresh.logprobs(experience.batch([number])).tolist() for number in range(len(experience.groups))]


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
def test_a_process_is_started_again_by_a_run_that_was_killed(tmp_path):
    expected = run(build("grpo", tmp_path / "whole", **SETTINGS))
    log = KillingLog(tmp_path / "hurt", stage="run")
    log.writes_left = 8
    with pytest.raises(KilledError):
        build("grpo", tmp_path / "hurt", log=log, **SETTINGS).train()
    assert CheckpointManager(tmp_path / "hurt" / "run").paths(), "the run had saved something"
    assert same(run(build("grpo", tmp_path / "hurt", **SETTINGS)), expected)
    assert logged(tmp_path / "hurt") == logged(tmp_path / "whole")


@pytest.mark.parametrize("finish", [1, 2, 3])
def test_a_signal_while_it_is_waited_for_saves_and_the_run_goes_on_with_the_same_bits(finish, tmp_path):
    settings = SETTINGS | {"save_every": 100}
    expected = run(in_turn(build("grpo", tmp_path / "whole", **settings)))
    left = [finish]

    def hit() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(InterruptedRun, match="saved"):
        in_turn(build("grpo", tmp_path / "hurt", **settings), before_finish=hit).train()
    assert same(run(in_turn(build("grpo", tmp_path / "hurt", **settings))), expected)


def test_a_guard_that_goes_back_forgets_what_is_under_way(tmp_path: Path):
    trainer = in_turn(toy.build_trainer("grpo", async_rollouts={"max_staleness": 1}, rollouts=3), late=True)
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
@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_the_reward_rises_one_step_off_too(name):
    log = TrainingLogger()
    settings = {"ppo": {"kl": {"coef": 0.01}}, "grpo": {"group_size": 4, "kl": {"coef": 0.01}}}[name]
    in_turn(
        toy.build_trainer(name, log=log, async_rollouts={"max_staleness": 1}, rollouts=30, prompts_per_rollout=32, minibatch_size=32,
                          learning_rate=2e-2, **settings)
    ).train()  # fmt: skip
    scores = [e["metrics"][f"{name}/score_mean"] for e in log.read("metrics") if f"{name}/score_mean" in e["metrics"]]
    assert 0.35 < sum(scores[:2]) / 2 < 0.65
    assert sum(scores[-3:]) / 3 > 0.85
