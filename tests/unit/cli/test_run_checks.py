"""A run begins by looking for what its later stages would fail with."""

from __future__ import annotations

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import DataError, RLHFError
from rlhf.pipeline.validate import check_quickly

STAGES = {
    "world": {"kind": "world"},
    "sft": {"kind": "sft", "model": "embedded", "data": "stage:world/sft.jsonl", "max_steps": 1},
    "dpo": {"kind": "dpo", "model": "stage:sft", "data": "no/pairs.jsonl", "max_steps": 1},
    "grpo": {"kind": "grpo", "model": "stage:sft", "prompts": "no/prompts.jsonl", "reward": "no/reward.py:score"},
}


def recipe_of(tmp_path, *names):
    stages = {name: STAGES[name] for name in names}
    return RecipeConfig.of({"name": "late", "output_dir": str(tmp_path), "stages": stages})


def test_all_that_is_missing_is_told_before_anything_runs(tmp_path):
    with pytest.raises(RLHFError) as caught:
        check_quickly(recipe_of(tmp_path, *STAGES))
    message = str(caught.value)
    assert message.startswith("late can't run to its end:\n")
    for words in ("stages.dpo.data: ", "no/pairs.jsonl", "stages.grpo.prompts: ", "no/prompts.jsonl", "no/reward.py"):
        assert words in message
    assert not list(tmp_path.iterdir()), "looking writes nothing"


def test_one_complaint_is_one_line_of_its_own_class(tmp_path):
    with pytest.raises(DataError, match=r"^stages\.dpo\.data: .*no/pairs\.jsonl"):
        check_quickly(recipe_of(tmp_path, "world", "sft", "dpo"))


def test_stages_that_are_not_asked_for_are_not_looked_at(tmp_path):
    check_quickly(recipe_of(tmp_path, *STAGES), until="sft")


def test_one_stage_without_a_rate_takes_what_is_usual_for_its_method_and_size(call, tmp_path):
    data = tmp_path / "sft.jsonl"
    data.write_text('{"prompt": "a", "completion": " b"}\n' * 4, encoding="utf-8")

    def rate_of(*settings):
        code, said, _ = call("sft", "model=embedded", f"data={data}", "-o", tmp_path / "run", "--dry-run", *settings)
        assert code == 0
        return next((line for line in said.splitlines() if line.startswith("learning_rate")), None)

    assert "0.001" in (rate_of() or "")
    assert "0.01" in (rate_of("model.lora.rank=4") or ""), "adapters take a larger one"
    assert rate_of("learning_rate=2e-5") is None, "a rate that is given is kept, also where it is the default"
    assert rate_of("lr_find=use") is None


def test_one_stage_of_a_model_whose_size_is_unknown_says_which_rate_it_takes(call, tmp_path):
    data = tmp_path / "sft.jsonl"
    data.write_text('{"prompt": "a", "completion": " b"}\n', encoding="utf-8")
    _, said, _ = call("sft", "model=nobody-has-this", f"data={data}", "-o", tmp_path / "run", "--dry-run")
    (line,) = [line for line in said.splitlines() if line.startswith("learning_rate")]
    assert "2e-05" in line
    assert "nobody-has-this could not be read" in line
