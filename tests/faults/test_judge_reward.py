"""A run that learns from a judge is killed, or stopped by its limit: it ends with the same bits, and nothing is asked twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import InterruptedRun
from rlhf.files import sha256
from rlhf.pipeline.report.run_data import read_run
from rlhf.pipeline.report.words import headline
from rlhf.pipeline.run import Pipeline
from tests.fixtures.judging_server import Faults, JudgingServer, judging_server

ROOT = Path(__file__).parents[2]
PER_ROLLOUT = 4
"""Questions: one for the four siblings of each of four prompts."""


def recipe_in(folder: Path, url: str, **reward: Any) -> dict[str, Any]:
    judge = {"type": "endpoint", "url": url, "model": "world", "concurrency": 2, "backoff_seconds": 0.01}
    stages = {
        "world": {"kind": "world"},
        "grpo": {
            "kind": "grpo", "model": "embedded", "prompts": "stage:world/prompts.jsonl", "rollouts": 6, "save_every": 2,
            "prompts_per_rollout": 4, "group_size": 4, "minibatch_size": 16, "learning_rate": 1e-3,
            "sampling": {"max_new_tokens": 12}, "max_unscored_frac": 0.9,
            "reward": {"kind": "judge", "judge": judge, "mode": "group_ranks", **reward},
        },
    }  # fmt: skip
    return {"name": "run", "seed": 3, "output_dir": str(folder), "threads": 1, "stages": stages}


def weights(folder: Path) -> str:
    return sha256(folder / "run" / "grpo" / "model" / "model.safetensors")


def answers(server: JudgingServer) -> int:
    return sum(server.counts.values())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[str, int]:
    """The weights of a run that nothing happened to, and how many questions it took."""
    folder = tmp_path_factory.mktemp("whole")
    with judging_server(Faults(), port=20_301) as server:
        Pipeline(RecipeConfig.of(recipe_in(folder, server.url))).run()
        return weights(folder), answers(server)


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bits_and_repeats_no_question(whole, tmp_path):
    bits, num_questions = whole
    file = tmp_path / "recipe.yaml"
    with judging_server(Faults(), port=20_301) as server:
        file.write_text(yaml.safe_dump(recipe_in(tmp_path, server.url), sort_keys=False))
        for killed_after in (2, PER_ROLLOUT * 2 + 2, PER_ROLLOUT * 4 + 1, None):
            run = subprocess.Popen(
                [sys.executable, "-m", "rlhf", "run", str(file), "--quiet"],
                cwd=ROOT,
                env=os.environ,
                start_new_session=True,
            )
            while killed_after is not None and answers(server) < killed_after and run.poll() is None:
                time.sleep(0.002)
            if killed_after is not None:
                os.killpg(run.pid, signal.SIGKILL)
            code = run.wait(timeout=300)
            assert code == (0 if killed_after is None else -signal.SIGKILL)
        # an answer that was under way when the process was killed was never heard; at most two at a time were
        assert server.repeated <= 2 * 3
        assert answers(server) <= num_questions + 2 * 3
    assert weights(tmp_path) == bits


@pytest.mark.slow
def test_a_limit_stops_the_run_with_its_state_and_a_higher_one_goes_on_to_the_same_bits(whole, tmp_path):
    bits, num_questions = whole
    with judging_server(Faults(), port=20_301) as server:
        few = PER_ROLLOUT * 3 + 1
        with pytest.raises(InterruptedRun, match=r"max_requests.*is at step 3 of 6, and all of it is saved") as stop:
            Pipeline(RecipeConfig.of(recipe_in(tmp_path, server.url, max_requests=few))).run()
        assert stop.value.exit_code == 75
        assert answers(server) == few
        assert [path for path in (tmp_path / "run" / "grpo").glob("checkpoint-*") if path.is_dir()]
        (plan,) = [
            p
            for p in Pipeline(RecipeConfig.of(recipe_in(tmp_path, server.url, max_requests=500))).plan()
            if p.name == "grpo"
        ]
        assert plan.action == "goes on"
        Pipeline(RecipeConfig.of(recipe_in(tmp_path, server.url, max_requests=500))).run()
        assert (answers(server), server.repeated) == (num_questions, 0)
    assert weights(tmp_path) == bits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "reward"),
    [
        ({"kind": "ppo", "minibatch_size": 8, "group_size": 1}, {"mode": "points"}),
        ({"kind": "online_dpo", "minibatch_size": 8, "group_size": 2}, {"mode": "pairwise"}),
        ({"kind": "best_of_n", "num_samples": 4, "limit": 4}, {"mode": "group_ranks", "orders": 2}),
    ],
    ids=lambda value: value.get("kind", value.get("mode")),
)
def test_every_stage_that_learns_from_rewards_learns_from_a_judge(stage, reward, tmp_path):
    from tests.fixtures.judging_server import RUBRIC

    with judging_server(Faults()) as server:
        tree = recipe_in(tmp_path, server.url, rubric=RUBRIC)
        own = tree["stages"]["grpo"]
        keys = (
            ("model", "prompts", "sampling")
            if stage["kind"] == "best_of_n"
            else tuple(own.keys() - {"kind", "rollouts"})
        )
        more = {} if stage["kind"] == "best_of_n" else {"rollouts": 2}
        judged = {**own["reward"], **reward}
        tree["stages"]["learn"] = {**{key: own[key] for key in keys}, **more, **stage, "reward": judged}
        del tree["stages"]["grpo"]
        Pipeline(RecipeConfig.of(tree)).run()
        assert answers(server) > 0
    assert (tmp_path / "run" / "learn" / "judge_rewards.json").is_file()
    assert "learn: The judge world has no certificate" in headline(read_run(tmp_path / "run")).sentences[0]
