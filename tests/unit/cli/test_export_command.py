"""`rlhf export`, as a person types it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.errors import ConfigError, ModelError
from tests.fixtures.exported import FAMILIES, tiny_policy


@pytest.fixture
def folder(tmp_path):
    return tiny_policy(FAMILIES["llama"]).save_pretrained(tmp_path / "tiny")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["export", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_largest_differences_are_printed(folder, tmp_path):
    options = ("--quantization", "int8", "--max-increase", 0.5, "--rows", 2)
    output = run(folder, "--format", "gguf", "--out", tmp_path / "out", *options)
    assert "(Q8_0)" in output
    assert "rounding allows" in output
    assert "perplexity" in output
    assert (tmp_path / "out" / "tiny-Q8_0.gguf").is_file()


def test_without_the_check_it_is_said(folder, tmp_path):
    assert "--no-check" in run(folder, "-o", tmp_path / "out", "--no-check")


def test_json_is_the_record_and_the_folder_is_named_after_the_model(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = json.loads(run(folder, "--json", "--rows", 2))
    assert printed == json.loads((tmp_path / "tiny-safetensors" / "export.json").read_text())
    assert printed["tensors"]["largest_differences"] == []


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        (("MODEL", "--format", "tensorrt"), ConfigError, "trtexec"),
        (("MODEL", "--format", "pickle"), ConfigError, "safetensors"),
        (("MODEL", "--quantization", "int8"), ConfigError, "int8"),
        (("no/such/model",), ModelError, "no/such/model"),
        (("MODEL", "--texts", "missing.jsonl"), Exception, "missing.jsonl"),
    ],
)
def test_wrong_input_is_one_error(folder, tmp_path, arguments, error, named):
    given = [str(folder) if argument == "MODEL" else argument for argument in arguments]
    with pytest.raises(error, match=named):
        run(*given, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
