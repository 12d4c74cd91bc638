"""The calculator as a class of ours, as a class of TRL and behind an OpenEnv server: the same bits, and what each does wrong is said."""

from __future__ import annotations

import json

import pytest

from rlhf.config.methods.grpo import GRPOStage
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError, InterruptedRun, RewardError
from rlhf.pipeline.run import Pipeline
from tests.fixtures.openenv_server import CalculatorServer, serving

FIXTURES = "tests.fixtures.trl_calculator"
NATIVE = {"kind": "python", "source": "rlhf.rollout.calculator:Calculator", "arguments": {"call_reward": 0.5}}
TRL = {"kind": "trl", "source": f"{FIXTURES}:PaidCalculator"}
RIGHT = f"{FIXTURES}:right_answer"
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A run with a policy that has seen the calculator used, and problems for it."""
    folder = tmp_path_factory.mktemp("calculator")
    init = {
        "model_type": "llama", "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "max_position_embeddings": 128, "tie_word_embeddings": True, "initializer_range": 0.1,
    }  # fmt: skip
    stages = {
        "calculator": {"kind": "calculator", "tool_frac": 1.0, "num_demonstrations": 1600},
        "sft": {
            "kind": "sft", "model": {"tokenizer": "stage:calculator/tokenizer", "init": init}, "data": "stage:calculator/sft.jsonl",
            "learning_rate": 5e-3, "max_steps": 120, "batch_size": 16,
        },
    }  # fmt: skip
    Pipeline(
        RecipeConfig.of({"name": "taught", "output_dir": str(folder), "seed": 1, "threads": 1, "stages": stages})
    ).run()
    return folder / "taught"


def recipe(taught, folder, environment, **changes):
    stage = {
        "kind": "grpo", "model": str(taught / "sft" / "model"), "prompts": str(taught / "calculator" / "prompts.jsonl"),
        "environment": {"max_turns": 3, "timeout_seconds": 20, **environment}, "sampling": {"max_new_tokens": 48, "stop": [")="]},
        "rollouts": 2, "prompts_per_rollout": 4, "group_size": 4, "minibatch_size": 16, "learning_rate": 1e-3, "seed": 1, **changes,
    }  # fmt: skip
    return RecipeConfig.of({"name": "run", "output_dir": str(folder), "threads": 1, "stages": {"grpo": stage}})


def trained(taught, folder, environment, **changes):
    """Token ids of every completion, with who said them, and the bytes of the weights."""
    Pipeline(recipe(taught, folder, environment, **changes)).run()
    made = folder / "run" / "grpo"
    rows = [json.loads(line) for line in (made / "rollouts.jsonl").read_text().splitlines()]
    kept = [{key: row[key] for key in ("completion", "completion_ids", "score")} for row in rows]
    return kept, (made / "model" / "model.safetensors").read_bytes()


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


@slow
@pytest.mark.parametrize("kind", ["trl", "openenv"])
def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(taught, native, tmp_path, monkeypatch, kind):
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
        environment = TRL if kind == "trl" else {"kind": "openenv", "source": server.url}
        more = {"reward": RIGHT} if kind == "trl" else {}
        with pytest.raises(InterruptedRun):
            trained(taught, tmp_path, environment, save_every=1, **more)
        assert trained(taught, tmp_path, environment, save_every=1, **more) == native
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
        ({"kind": "verifiers", "source": "x"}, "runs its own agent"),
        ({"kind": "openenv", "source": "ftp://host"}, "full address"),
        ({"kind": "openenv", "source": "http://me:pass@host"}, "nothing else"),
        ({"kind": "trl", "source": {}}, "names no class"),
        ({"kind": "trl", "source": {"a": "nothing"}}, r"package\.module:Class"),
    ):
        with pytest.raises(ConfigError, match=wanted):
            of(environment)
