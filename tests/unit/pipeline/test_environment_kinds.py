"""The calculator as a class of ours and of TRL, behind an OpenEnv server and of verifiers: the same bits, and what each does wrong is said."""

from __future__ import annotations

import pytest

from rlhf.config.methods.grpo import GRPOStage
from rlhf.errors import ConfigError, InterruptedRun, RewardError
from rlhf.pipeline.run import Pipeline
from tests.fixtures.openenv_server import CalculatorServer, serving
from tests.fixtures.taught_calculator import NATIVE, recipe, teach, trained
from tests.fixtures.verifiers_peer import beside_fake, calculator_rows, settings_of

FIXTURES = "tests.fixtures.trl_calculator"
TRL = {"kind": "trl", "source": f"{FIXTURES}:PaidCalculator"}
RIGHT = f"{FIXTURES}:right_answer"
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    return teach(tmp_path_factory.mktemp("calculator"))


@pytest.fixture(scope="module")
def native(taught, tmp_path_factory):
    rows, weights = trained(taught, tmp_path_factory.mktemp("native"), NATIVE)
    assert sum(")=" in row["completion"] for row in rows) > 10, "the calculator was asked"
    assert len({row["score"] for row in rows}) > 1, "and not always well"
    return rows, weights


@slow
def test_a_class_of_trl_gives_the_bits_of_ours(taught, native, tmp_path):
    assert trained(taught, tmp_path, TRL, reward=RIGHT) == native


@slow
def test_an_openenv_server_gives_the_bits_of_ours(taught, native, tmp_path):
    with serving(CalculatorServer(call_reward=0.5)) as server:
        given = {"kind": "openenv", "source": server.url}
        assert trained(taught, tmp_path, given) == native
        assert 1 < server.most_sessions <= 16


@slow
def test_a_server_of_one_session_gives_the_same_rollouts(taught, native, tmp_path):
    with serving(CalculatorServer(max_sessions=1, call_reward=0.5)) as server:
        rows, _ = trained(taught, tmp_path, {"kind": "openenv", "source": server.url}, rollouts=1)
        assert rows == native[0][: len(rows)]
        assert server.most_sessions == 1


@pytest.fixture(scope="module")
def verifiers(taught, tmp_path_factory):
    """The calculator as a taskset, its tasks as rows, and what ours makes of these rows."""
    folder = tmp_path_factory.mktemp("tasks")
    prompts = taught / "calculator" / "prompts.jsonl"
    source = beside_fake(folder) / "pocket_calculator.py"
    settings = settings_of(source, taskset={"file": str(prompts)}, timeout_seconds=20)
    rows = str(calculator_rows(settings, prompts, folder / "rows.jsonl"))
    return settings.model_dump(exclude_unset=True), rows, trained(taught, folder / "ours", NATIVE, prompts=rows)


@slow
def test_an_environment_of_verifiers_gives_the_bits_of_ours(taught, verifiers, tmp_path):
    given, rows, ours = verifiers
    assert trained(taught, tmp_path, given, prompts=rows) == ours
    assert sum(")=" in row["completion"] for row in ours[0]) > 10


@slow
@pytest.mark.parametrize("kind", ["trl", "openenv", "verifiers"])
def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(taught, native, verifiers, tmp_path, monkeypatch, kind):
    from rlhf.rollout.episodes import EpisodeEngine

    generate = EpisodeEngine.generate
    rollouts = []

    def interrupted(self, *arguments, **named):
        rollouts.append(named["rollout_index"])
        if len(rollouts) == 2:
            raise InterruptedRun
        return generate(self, *arguments, **named)

    monkeypatch.setattr(EpisodeEngine, "generate", interrupted)
    with serving(CalculatorServer(call_reward=0.5)) as server:
        environment, more, wanted = {
            "trl": (TRL, {"reward": RIGHT}, native),
            "openenv": ({"kind": "openenv", "source": server.url}, {}, native),
            "verifiers": (verifiers[0], {"prompts": verifiers[1]}, verifiers[2]),
        }[kind]
        with pytest.raises(InterruptedRun):
            trained(taught, tmp_path, environment, save_every=1, **more)
        assert trained(taught, tmp_path, environment, save_every=1, **more) == wanted
    assert rollouts == [0, 1, 1], "the first rollout is not made again"


@slow
def test_a_server_that_dies_stops_the_run_with_one_error(taught, tmp_path):
    with serving(CalculatorServer()) as server:
        settings = recipe(taught, tmp_path, {"kind": "openenv", "source": server.url}, rollouts=1)
        server.fault = "dies"
        with pytest.raises(RewardError, match=r"the environment's step, in turn 1,.* did not answer step"):
            Pipeline(settings).run()


def test_kinds_are_told_apart_and_a_plain_text_is_a_class_of_ours():
    def of(environment):
        return GRPOStage.of({"kind": "grpo", "model": "m", "prompts": "p", "environment": environment}).environment

    assert of("a.b:C") == of({"source": "a.b:C"}) == of({"kind": "python", "source": "a.b:C"})
    for environment, wanted in (
        ({"factory": "a.b:C"}, r"environment\.factory: unknown key\..*`?source`?"),
        ({"kind": "gym", "source": "x"}, "unknown kind 'gym'"),
        ({"kind": "verifiers", "source": "x", "options": {"taskset": {"id": "y"}}}, "leave taskset.id out"),
        (
            {"kind": "verifiers", "source": "x", "options": {"agent": {"harness": {"id": None}}}},
            r"agent\.harness\.id is null",
        ),
        ({"kind": "openenv", "source": "ftp://host"}, "full address"),
        ({"kind": "openenv", "source": "http://me:pass@host"}, "nothing else"),
        ({"kind": "trl", "source": {}}, "names no class"),
        ({"kind": "trl", "source": {"a": "nothing"}}, r"package\.module:Class"),
    ):
        with pytest.raises(ConfigError, match=wanted):
            of(environment)
