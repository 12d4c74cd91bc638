"""A signal in any stage of a run stops the run: nothing that handles errors of rows, files or judges may swallow it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import CheckpointError, InterruptedRun
from rlhf.pipeline.artifacts import Artifact
from rlhf.pipeline.run import Pipeline
from tests.fixtures import cheap_stages

STAGES = {
    "world": {"kind": "world"},
    "sft": {"kind": "sft", "model": "embedded", "data": "stage:world/prompts.jsonl"},
    "dpo": {"kind": "dpo", "model": "stage:sft", "data": "stage:world/pairs.jsonl"},
}


def pipeline_in(folder: Any, **settings: Any) -> Pipeline:
    stages = {name: {**stage, **settings.get(name, {})} for name, stage in STAGES.items()}
    return Pipeline(RecipeConfig.of({"name": "run", "output_dir": str(folder), "stages": stages}))


def hit(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)
    time.sleep(5)


def answers_errors(stage: Any, at: Any) -> Any:
    with contextlib.suppress(Exception):  # what a reader of rows or a judge does with an error
        hit()
    return cheap_stages.make(stage, at)


def swallows_everything(stage: Any, at: Any) -> Any:
    with contextlib.suppress(BaseException):  # what a careless library does
        hit(signal.SIGINT)
    return cheap_stages.make(stage, at)


@pytest.mark.parametrize("careless", [answers_errors, swallows_everything])
def test_a_signal_stops_the_run_and_the_same_command_goes_on(careless, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        cheap_stages.install(patch, sft=careless)
        with pytest.raises(InterruptedRun) as caught:
            pipeline_in(tmp_path).run()
        assert "In stage 'sft'" in caught.value.__notes__[0]
        assert Artifact.read(tmp_path / "run" / "world") is not None
        assert Artifact.read(tmp_path / "run" / "sft") is None, "a stage that was interrupted is not finished"
    done = cheap_stages.install(monkeypatch)
    pipeline_in(tmp_path).run()
    assert done == ["sft", "dpo"]


def test_nothing_trains_on_a_model_whose_bytes_turned(tmp_path, monkeypatch):
    done = cheap_stages.install(monkeypatch)
    pipeline_in(tmp_path).run()
    weights = tmp_path / "run" / "sft" / "model" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    done.clear()
    changed = {"dpo": {"beta": 0.3}}
    with pytest.raises(CheckpointError) as caught:
        pipeline_in(tmp_path, **changed).run()
    assert done == []
    message = str(caught.value)
    assert f"{weights} is not what stage 'sft' wrote" in message
    assert "--from sft" in message
    weights.write_bytes(whole)
    pipeline_in(tmp_path, **changed).run()
    assert done == ["dpo"]
