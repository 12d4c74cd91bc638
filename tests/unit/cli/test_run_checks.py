"""A run begins by looking for what its later stages would fail with."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import DataError, ModelError, RLHFError
from rlhf.models import sources
from rlhf.pipeline.validate import check_quickly
from rlhf.pipeline.validate.hub_models import check_hub_models

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
    assert "0.01" in (rate_of("lora=true") or "")
    assert "0.01" in (rate_of("lora.rank=4", "model=embedded") or ""), "in any order"
    assert rate_of("learning_rate=2e-5") is None, "a rate that is given is kept, also where it is the default"
    assert rate_of("lr_find=use") is None


def test_one_stage_of_a_model_whose_size_is_unknown_says_which_rate_it_takes(call, tmp_path):
    data = tmp_path / "sft.jsonl"
    data.write_text('{"prompt": "a", "completion": " b"}\n', encoding="utf-8")
    _, said, _ = call("sft", "model=nobody-has-this", f"data={data}", "-o", tmp_path / "run", "--dry-run")
    (line,) = [line for line in said.splitlines() if line.startswith("learning_rate")]
    assert "2e-05" in line
    assert "nobody-has-this could not be read" in line


@pytest.fixture
def asked(monkeypatch):
    """Names that the hub was asked for; it has none of them."""
    names = []

    def refuse(name, revision):
        names.append((name, revision))
        raise ModelError(f"no {name}")

    monkeypatch.setattr(sources, "_hub_has", refuse)
    return names


def test_a_new_run_asks_the_hub_for_its_models_before_anything_heavy(tmp_path, asked):
    stages = {"sft": STAGES["sft"], "dpo": STAGES["dpo"] | {"reference": {"path": "org/name", "revision": "v1"}}}
    recipe = RecipeConfig.of(
        {"name": "hub", "output_dir": str(tmp_path), "stages": {"world": STAGES["world"], **stages}}
    )
    check_hub_models(recipe, until="sft")
    assert not asked, "the embedded model, and what an earlier stage makes, are not on the hub"
    with pytest.raises(ModelError, match=r"^stages\.dpo\.reference: no org/name"):
        check_hub_models(recipe)
    assert asked == [("org/name", "v1")]


GONE = """
import sys
from rlhf.cli import main
sys.argv = ["rlhf", "sft", "model=org/gone", *sys.argv[1:]]
try:
    main()
finally:
    print(sorted({"torch", "transformers"} & sys.modules.keys()))
"""


def test_a_model_that_the_hub_does_not_have_costs_no_torch_and_leaves_no_run(tmp_path):
    data = tmp_path / "sft.jsonl"
    data.write_text('{"prompt": "a", "completion": " b"}\n', encoding="utf-8")
    nowhere = os.environ | {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-c", GONE, f"data={data}", "-o", str(tmp_path / "run")]
    ran = subprocess.run(command, capture_output=True, text=True, env=nowhere)
    assert ran.returncode == ModelError.exit_code
    assert "stages.sft.model: The hub can't be reached for the model 'org/gone'" in " ".join(ran.stderr.split())
    assert ran.stdout.splitlines()[-1] == "[]"
    assert not (tmp_path / "run").exists()
