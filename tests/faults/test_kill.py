"""kill -9 at random moments of a whole run: it ends with the same bits. The short form of `make kills`."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.faults.test_full_disk_of_a_run import STAGES
from tools.kill_proof import LOG_WITH_TIMES, Proof, bits_of, differences, prove


def test_of_a_log_with_times_everything_else_is_compared(tmp_path):
    def bits(created: str, score: float) -> str | None:
        log = {
            "eval": {"created": created, "eval_id": created, "run_id": created, "task": "run/evaluate"},
            "stats": {"started_at": created, "completed_at": created, "model_usage": {}},
            "samples": [{"id": "p1", "scores": {"judge": {"value": score}}}],
        }
        path = tmp_path / LOG_WITH_TIMES
        path.write_text(json.dumps(log))
        return bits_of(path, "the hash of the file")

    assert bits("today", 1.0) == bits("tomorrow", 1.0) != bits("today", 0.5)
    assert bits_of(tmp_path / "evaluation.json", "a hash") == "a hash"
    assert bits_of(tmp_path / LOG_WITH_TIMES, None) is None, "of a file that one of two runs did not write"


@pytest.mark.slow
def test_a_run_that_is_killed_at_random_moments_ends_with_the_same_bits(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"name": "short", "seed": 3, "threads": 1, "stages": STAGES}, sort_keys=False))
    proof = prove(str(recipe), (), 3, seed=8, work=tmp_path / "work")
    assert len(proof.kills) == 3
    assert proof.differences == []
    assert proof.files > 20
    assert proof.metrics > 50
    # and the comparison sees what it looks for
    hurt = tmp_path / "work" / "killed" / "short"
    record = hurt / "sft" / "artifact.json"
    told = json.loads(record.read_text())
    told["files"]["model/model.safetensors"] = "0" * 64
    record.write_text(json.dumps(told))
    events = hurt / "events.jsonl"
    events.write_text(events.read_text().replace('"loss/train": ', '"loss/train": 1'))
    difference = list(differences(tmp_path / "work" / "whole" / "short", hurt, Proof("")))
    assert any("sft/model/model.safetensors has other bytes" in text for text in difference)
    assert any("events.jsonl" in text for text in difference)
