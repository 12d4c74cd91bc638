"""Greedy soups on a capability suite: what stays, by which rule, and what a merge's file may say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.config.merging import MergeConfig
from rlhf.errors import ConfigError
from rlhf.evaluation.suites.scorers import sequence_logprobs
from rlhf.evaluation.suites.suite import load_suite
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.greedy_soup import SuiteGate, SuiteScore, soup_of
from tests.fixtures.gate_records import suite_run
from tests.fixtures.merging import LETTERS, tensors_of, write_family

CHOICES = ["b", "c"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """``good``, its twin ``same``, and ``odd``, whose head is turned round so far that a mean with it is turned round as well."""
    root = tmp_path_factory.mktemp("models")
    good = write_family(root, "llama", ("good",))["good"]
    same, odd = (Path(shutil.copytree(good, root / name)) for name in ("same", "odd"))
    weights = load_file(odd / "model.safetensors")
    weights["lm_head.weight"] = -5 * weights["lm_head.weight"]
    save_file(weights, odd / "model.safetensors", metadata={"format": "pt"})
    return {"good": good, "same": same, "odd": odd}


@pytest.fixture
def suite(models, tmp_path) -> Path:
    """What ``good`` likes of two choices is right, but for every eighth item: so no model has a score of 0 or 1."""
    policy = PolicyModel.from_pretrained(str(models["good"]))
    items = []
    for number, prompt in enumerate([a + b for a in LETTERS[:8] for b in LETTERS[:6]]):
        (first, _), (second, _) = sequence_logprobs(policy, [prompt, prompt], CHOICES)
        liked = int(second > first)
        items.append({"prompt": prompt, "choices": CHOICES, "answer": liked if number % 8 else 1 - liked})
    path = tmp_path / "letters.yaml"
    path.write_text(yaml.safe_dump({"name": "letters", "scorer": "choices", "margin": 0.1, "items": items}))
    return path


def merge_file(folder: Path, models: list[Path], **more: object) -> Path:
    path = folder / "soup.yaml"
    listed = [{"model": str(model)} for model in models]
    path.write_text(yaml.safe_dump({"merge_method": "linear", "models": listed, **more}), encoding="utf-8")
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["merge", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_twin_stays_and_a_model_that_hurts_is_left_out(models, suite, tmp_path):
    file = merge_file(tmp_path, [models[name] for name in ("odd", "good", "same")])
    out = tmp_path / "out"
    found = json.loads(run(file, "--greedy", suite, "-o", out, "--dry-run", "--json"))
    assert found["suite"]["num_items"] == 48
    assert not out.exists()
    text = run(file, "--greedy", suite, "-o", out)
    assert "left out" in text
    record = json.loads((out / "soup.json").read_text())
    assert record["ingredients"] == [str(models["good"]), str(models["same"])]
    assert record["score"] == 42 / 48
    assert [ruling["decision"] for ruling in record["suite"]["rulings"]] == ["pass", "fail"]
    assert torch.equal(tensors_of(out)["lm_head.weight"], tensors_of(models["good"])["lm_head.weight"])
    PolicyModel.from_pretrained(str(out))


def test_json_is_the_record(models, suite, tmp_path):
    file = merge_file(tmp_path, [models["good"], models["same"]])
    printed = json.loads(run(file, "--greedy", suite, "-o", tmp_path / "out", "--json"))
    assert printed == json.loads((tmp_path / "out" / "soup.json").read_text())


@pytest.mark.parametrize(
    ("items", "before", "after", "stays"),
    [
        (400, 300, 300, True),
        (400, 300, 310, True),
        (400, 300, 299, False),  # within the margin, and yet lower
        (12, 9, 9, False),  # too few to rule a loss out
    ],
)
def test_what_stays(tmp_path, items, before, after, stays):
    path = tmp_path / "s.yaml"
    listed = [{"id": str(i), "prompt": f"{i}?", "answer": "yes"} for i in range(items)]
    path.write_text(yaml.safe_dump({"name": "s", "scorer": "exact", "margin": 0.05, "items": listed}))
    gate, of = SuiteGate(str(path)), load_suite(path)

    def score(right: int) -> SuiteScore:
        run = suite_run([float(i < right) for i in range(items)], fingerprint=of.fingerprint)
        return SuiteScore.of(run)

    assert gate.accept(score(after), score(before)) is stays
    assert len(gate.rulings) == 1


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"merge_method": "ties"}, "merge_method"),
        ({"base_model": "a"}, "base_model"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"models": [{"model": "a", "parameters": {"weight": 1.0}}, {"model": "b"}]}, "parameters"),
        ({"models": [{"model": "a+lora"}, {"model": "b"}]}, r"a\+lora"),
    ],
)
def test_a_file_that_says_more_than_which_models(changes, key):
    tree = {"merge_method": "linear", "models": [{"model": "a"}, {"model": "b"}], **changes}
    with pytest.raises(ConfigError, match=key):
        soup_of(MergeConfig.of(tree))
