"""Environments in actors: the episodes of one process, to the bit, whatever happens to the actors; the cluster is simulated here."""

from __future__ import annotations

import random

import pytest

from rlhf.config.environments import PythonEnvironmentConfig, TRLEnvironmentConfig
from rlhf.config.launch import PoolConfig, RayLaunchConfig
from rlhf.config.methods.grpo import GRPOStage
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.distributed.current_cluster import working_for_this_process
from rlhf.errors import ConfigError, TrainingError
from rlhf.pipeline.stages.context import StageContext
from rlhf.pipeline.stages.stage_pools import pooled_environments
from rlhf.rewards.functions import load_function
from rlhf.rewards.in_memory import name_of
from rlhf.rollout.environment_pool import PooledEnvironments
from rlhf.rollout.environments import EnvironmentContext, open_environment
from rlhf.rollout.episodes import EpisodeEngine
from rlhf.rollout.types import Completion
from rlhf.seeds import derive_seed
from rlhf.training.log import TrainingLogger
from tests.fixtures import tiny
from tests.fixtures.actors import DIE, HANG, FakeCluster

TOKENIZER = tiny.build_tokenizer()
OURS = "tests.fixtures.environments"
DIARY = PythonEnvironmentConfig(source=f"{OURS}:Diary")
GREETING = TRLEnvironmentConfig(kind="trl", source="tests.fixtures.trl_calculator:Greeting")
CONTEXT = {"tokenizer": TOKENIZER, "load": load_function}
PROMPTS = [Prompt(f"p{n}", TOKENIZER(f"Question {n}: ")["input_ids"], f"Question {n}: ") for n in range(3)]
TURNS = [" calc(1+2)=", " calc(4*5)=", " the cow", " answer 3"]


class Babbler:
    """An engine whose turns depend on the seed, the prompt and the sample, and on what was said before."""

    weight_version = 0

    def generate(self, prompts, *, num_samples, sampling, seed, rollout_index):
        return [[self._said(prompt, sample, seed) for sample in range(num_samples)] for prompt in prompts]

    def _said(self, prompt, sample, seed):
        text = random.Random(derive_seed(seed, prompt.id, sample, *prompt.ids)).choice(TURNS)
        tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
        return Completion(
            prompt_id=prompt.id, sample=sample, tokens=tokens, logprobs=[-0.5] * len(tokens), finish_reason="stop",
            weight_version=0, text=text,
        )  # fmt: skip


def engine_of(settings, pooled=None, **how):
    opened = open_environment(settings, EnvironmentContext(**CONTEXT, arguments=settings.arguments))
    return EpisodeEngine(
        Babbler(), opened.make, TOKENIZER, max_turns=5, speaks_first=opened.speaks_first,
        timeout_seconds=settings.timeout_seconds, environments=None if pooled is None else pooled.rollout, **how,
    )  # fmt: skip


def play(engine, *, rollouts=1):
    how = {"num_samples": 4, "sampling": SamplingConfig(max_new_tokens=400), "seed": 1}
    return [engine.generate(PROMPTS, rollout_index=number, **how) for number in range(rollouts)]


def pool(cluster, settings=DIARY, **changes):
    said = []
    context = EnvironmentContext(**CONTEXT, arguments=settings.arguments)
    pooled = PooledEnvironments(
        cluster, PoolConfig(**{"replicas": 2, **changes}), settings, context, notify=said.append
    )
    return pooled, said


def plays(cluster):
    """(replica, life) of each piece of work."""
    return [(replica, life) for replica, life, method, _ in cluster.asked if method == "play"]


@pytest.mark.parametrize("settings", [DIARY, GREETING], ids=["python", "trl"])
@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_the_number_of_actors_changes_no_bit(settings, replicas):
    cluster = FakeCluster()
    pooled, said = pool(cluster, settings, replicas=replicas)
    ours, theirs = play(engine_of(settings, pooled), rollouts=2), play(engine_of(settings), rollouts=2)
    assert ours == theirs
    assert {c.turns for groups in theirs for group in groups for c in group} >= {2, 3}, "episodes of unlike length"
    assert {replica for replica, _ in plays(cluster)} == set(range(replicas))
    assert not said


def test_all_actors_are_asked_before_the_first_answer_is_awaited_and_episodes_stay_where_they_are():
    class Watched(FakeCluster):
        def wait(self, calls, timeout_seconds):
            self.asked.append((None, 0, "wait", ()))
            return super().wait(calls, timeout_seconds)

    cluster = Watched()
    pooled, _ = pool(cluster, replicas=3)
    cluster.asked.clear()
    play(engine_of(DIARY, pooled))
    first = [method for _, _, method, _ in cluster.asked].index("wait")
    assert sorted(replica for replica, _, _, _ in cluster.asked[:first]) == [0, 1, 2]
    homes = {}
    for replica, _, method, arguments in cluster.asked:
        for ask in arguments[0] if method == "play" else ():
            assert homes.setdefault(ask.episode, replica) == replica
    assert len(homes) == 12


def test_an_actor_that_dies_at_any_moment_changes_no_bit():
    undisturbed = FakeCluster()
    pooled, _ = pool(undisturbed)
    expected = play(engine_of(DIARY))
    assert play(engine_of(DIARY, pooled)) == expected
    for moment in range(len(plays(undisturbed))):
        lives = iter(range(1000))
        cluster = FakeCluster(
            lambda replica, life, method, asked, lives=lives, moment=moment: (
                DIE if method == "play" and next(lives) == moment else None
            )
        )
        pooled, said = pool(cluster)
        assert play(engine_of(DIARY, pooled)) == expected, moment
        assert len(said) == 1


def test_an_actor_that_hangs_is_replaced_and_only_its_episodes_are_played_again():
    settings = DIARY.updated(timeout_seconds=0.1)
    lives = iter(range(1000))
    cluster = FakeCluster(lambda replica, life, method, asked: HANG if method == "play" and next(lives) == 9 else None)
    pooled, said = pool(cluster, settings, timeout_seconds=0.5)
    assert play(engine_of(settings, pooled)) == play(engine_of(settings))
    assert "did not answer within 0.5 seconds" in said[0]
    ((lost, past),) = [(r, asked[0]) for r, life, method, asked in cluster.asked if method == "bring_back" and asked[0]]
    assert past
    assert all(one.episode % 2 == lost and one.events for one in past)


def test_actors_that_keep_dying_end_the_run_with_the_cause():
    cluster = FakeCluster(lambda replica, life, method, asked: DIE if method == "play" else None)
    pooled, _ = pool(cluster, max_restarts=2)
    with pytest.raises(TrainingError, match=r"pool `environments` ended \(as the test says\).*max_restarts is 2"):
        play(engine_of(DIARY, pooled))


def test_an_environment_that_gives_something_else_when_it_is_played_again_is_named():
    settings = PythonEnvironmentConfig(source=f"{OURS}:Forgetful")
    lives = iter(range(1000))
    cluster = FakeCluster(lambda replica, life, method, asked: DIE if method == "play" and next(lives) == 6 else None)
    pooled, _ = pool(cluster, settings)
    with pytest.raises(TrainingError, match=r"environments:Forgetful is not deterministic.*'p.' .*turn 1 gave Turn\("):
        play(engine_of(settings, pooled))
    assert pooled.pool.alive == 0, "what is left of the rollout is given up"


@pytest.mark.parametrize("moment", [None, 4, 7])
def test_failures_are_those_of_one_process(moment):
    settings = DIARY.updated(arguments={"fails_in": 2})
    lives = iter(range(1000))
    cluster = FakeCluster(
        lambda replica, life, method, asked: DIE if method == "play" and next(lives) == moment else None
    )
    pooled, said = pool(cluster, settings)
    ours, theirs = play(engine_of(settings, pooled)), play(engine_of(settings))
    assert ours == theirs
    failed = [c.environment_error for group in theirs[0] for c in group if c.environment_error is not None]
    assert set(failed) == {"the environment's step, in turn 2, raised ValueError: no page 2"}
    assert len(said) == (moment is not None)


def test_environments_that_hang_stop_the_run_as_in_one_process():
    settings = DIARY.updated(arguments={"hangs_in": 1}, timeout_seconds=0.05)
    pooled, said = pool(FakeCluster(), settings)
    for engine in (engine_of(settings, pooled), engine_of(settings)):
        with pytest.raises(
            TrainingError, match=r"3 environments of one rollout hung.*Raise environment\.timeout_seconds"
        ):
            play(engine)
    assert not said, "the actors live"


def test_what_can_not_be_used_is_refused_before_an_episode_begins():
    with pytest.raises(ConfigError, match=r"launch\.pools\.environments\.timeout_seconds is 100.*180"):
        pool(FakeCluster(), timeout_seconds=100)
    with pytest.raises(ConfigError, match="Diarist"):
        pool(FakeCluster(), PythonEnvironmentConfig(source=f"{OURS}:Diarist"))


class Current:
    """What ``pool_of`` looks for."""

    def __init__(self):
        self.pools = RayLaunchConfig.of({"launcher": "ray", "pools": {"environments": {}}}).pools.by_role()
        self.fake = FakeCluster()
        self.start_actor, self.wait, self.put = self.fake.start_actor, self.fake.wait, self.fake.put


class Here:
    """A class that no other process can import."""


Here.__module__ = "__main__"


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        (f"{OURS}:Diary", None),
        ({"kind": "trl", "source": "tests.fixtures.trl_calculator:Greeting"}, None),
        ({"kind": "openenv", "source": "http://127.0.0.1:1"}, "its server plays the episodes"),
        ({"kind": "verifiers", "source": "words"}, "the process of verifiers plays the episodes"),
        (name_of(Here), "its class exists in this process only"),
    ],
    ids=["python", "trl", "openenv", "verifiers", "of this process"],
)
def test_an_environment_that_is_no_object_of_an_importable_class_stays_in_the_process_that_trains(
    tmp_path, environment, why
):
    stage = GRPOStage.of({"kind": "grpo", "model": "m", "prompts": "p", "environment": environment})
    at = StageContext("grpo", tmp_path, TrainingLogger())
    settings, context = stage.environment, EnvironmentContext(**CONTEXT)
    assert pooled_environments(settings, context, at) is None, "no pool"
    with working_for_this_process(Current()):
        pooled = pooled_environments(settings, context, at)
    assert (pooled is None) == (why is not None)
    notes = [event["message"] for event in at.log.events]
    assert [note.endswith(f"{why}.") for note in notes] == [True] * (why is not None)
