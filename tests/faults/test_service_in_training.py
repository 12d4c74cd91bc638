"""A reward service that fails while a policy is trained: nothing of a half-scored rollout is learned, and the same run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf.errors import RewardError
from rlhf.rewards.service import ServiceReward
from rlhf.rewards.service_calls import Patience
from rlhf.training.log import TrainingLogger
from tests.fixtures import toy
from tests.unit.rewards.servers import lengths, says, serving

PATIENCE = Patience(
    timeout_seconds=5.0, deadline_seconds=20.0, retries=1, backoff_seconds=0.01, max_backoff_seconds=0.02
)


def build(folder: Path, url: str, **settings: Any) -> Any:
    scorer = ServiceReward(url, patience=PATIENCE, request_size=3, concurrency=1, on_error="report")
    log = TrainingLogger(folder, stage="grpo")
    changed = {"rollouts": 4, "save_every": 1, **settings}
    return toy.build_trainer("grpo", log=log, checkpoint_dir=folder / "grpo", scorer=scorer, **changed)


def steps(folder: Path) -> list[int]:
    return [event["step"] for event in TrainingLogger(folder, stage="grpo").read("metrics")]


def test_a_service_that_dies_in_the_middle_of_a_rollout_costs_that_rollout_only(tmp_path):
    with serving(lengths) as service:
        whole = build(tmp_path / "whole", service.url)
        whole.train()
        a_rollout = len(service.asked) // 4
    broken = [*[lengths] * (a_rollout + 1), says({"error": "out of memory"}, status=503)]
    with serving(*broken) as service:
        trainer = build(tmp_path / "hurt", service.url)
        with pytest.raises(RewardError) as caught:
            trainer.train()
    message = str(caught.value)
    assert service.url in message
    assert "503" in message
    assert steps(tmp_path / "hurt") == steps(tmp_path / "whole")[: len(steps(tmp_path / "whole")) // 4]
    with serving(lengths) as service:
        resumed = build(tmp_path / "hurt", service.url)
        resumed.train()
        assert len(service.asked) == 3 * a_rollout, "the finished rollout is not asked for again"
    assert toy.largest_difference(toy.weights_of(resumed), toy.weights_of(whole)) == 0.0
    assert steps(tmp_path / "hurt") == steps(tmp_path / "whole")


def test_an_answer_of_null_for_one_completion_leaves_its_prompt_out(tmp_path):
    def holed(handler: Any, body: dict[str, Any]) -> None:
        scores = [float(len(text)) for text in body["completions"]]
        reply = {"scores": [None, *scores[1:]], "errors": ["too long to judge", *[None] * (len(scores) - 1)]}
        says(reply)(handler, body)

    with serving(holed, lengths) as service:
        trainer = build(tmp_path, service.url, max_unscored_frac=0.5, rollouts=1)
        trainer.train()
    (alarm,) = [e for e in TrainingLogger(tmp_path, stage="grpo").read("alarm") if e["guard"] == "unscored"]
    assert "too long to judge" in alarm["message"]
    assert "1 of 4 prompts are left out" in alarm["message"]
