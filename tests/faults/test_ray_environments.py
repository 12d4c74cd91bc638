"""Environments in Ray's own actors: a run of the bits of one process, also when an actor is killed in the middle of an episode."""

from __future__ import annotations

import importlib.util
import json

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import TrainingError
from rlhf.pipeline.run import Pipeline

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of its processes and sockets
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install ray"),
]
OURS = "tests.fixtures.environments"
EACH = {"cpus": 0.25, "timeout_seconds": 60, "max_restarts": 1}
POOLS = {"environments": {"replicas": 2, **EACH}}


def run(folder, pools, name, **arguments):
    prompts = folder.parent / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"User: {n}+1?\nAssistant:"}) + "\n" for n in range(6)))
    stage = {
        "kind": "grpo", "model": "embedded", "prompts": str(prompts), "rollouts": 2, "prompts_per_rollout": 3, "group_size": 4,
        "minibatch_size": 12, "learning_rate": 1e-4, "sampling": {"max_new_tokens": 64}, "seed": 3,
        "environment": {
            "source": f"{OURS}:{name}", "arguments": arguments, "max_turns": 4, "max_turn_tokens": 5, "timeout_seconds": 10
        },
    }  # fmt: skip
    tree = {"name": "run", "output_dir": str(folder), "threads": 1, "stages": {"policy": stage}}
    Pipeline(RecipeConfig.of(tree | ({"launch": {"launcher": "ray", "pools": pools}} if pools else {}))).run()
    made = folder / "run" / "policy"
    rows = [json.loads(line) for line in (made / "rollouts.jsonl").read_text().splitlines()]
    return rows, (made / "model" / "model.safetensors").read_bytes()


def alarms(folder):
    events = [json.loads(line) for line in (folder / "run" / "events.jsonl").read_text().splitlines()]
    return [event["message"] for event in events if event["event"] == "alarm"]


@pytest.mark.parametrize("also", [{}, {"engines": {"replicas": 1, **EACH}}], ids=["alone", "with engines"])
def test_a_run_whose_actor_is_killed_in_an_episode_has_the_bits_of_one_process(tmp_path, also):
    done = tmp_path / "done"
    done.touch()
    expected = run(tmp_path / "local", None, "Mortal", once=f"file {done}")
    assert any(len(row["completion"].split(".")) > 2 for row in expected[0]), "episodes of several turns"
    done.unlink()
    assert run(tmp_path / "ray", {**POOLS, **also}, "Mortal", once=f"file {done}") == expected
    assert done.exists()
    (told,) = alarms(tmp_path / "ray")
    assert "pool `environments`" in told
    assert "in the middle of its work" in told


def test_an_environment_that_is_not_deterministic_ends_the_run_and_one_that_always_kills_too(tmp_path):
    done = tmp_path / "done"
    with pytest.raises(TrainingError, match=r"environments:ForgetfulMortal is not deterministic"):
        run(tmp_path / "forgetful", POOLS, "ForgetfulMortal", once=f"file {done}")
    assert done.exists()
    with pytest.raises(TrainingError, match=r"pool `environments` .*max_restarts is 1"):
        run(tmp_path / "mortal", POOLS, "Mortal", once=f"file {tmp_path}/nowhere/done")
