"""`rlhf merge`, as a person types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.errors import ConfigError, ModelError, StorageError
from tests.fixtures.merging import merge_tree, tensors_of, write_plain


@pytest.fixture
def file(tmp_path) -> Path:
    parents = {
        write_plain(tmp_path / name, {"layers.0.w": torch.full((4,), value)}): {"weight": 1.0, "density": 0.5}
        for name, value in (("a", 1.0), ("b", 3.0))
    }
    path = tmp_path / "merge.yaml"
    path.write_text(yaml.safe_dump(merge_tree("linear", parents)), encoding="utf-8")
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["merge", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_folder_has_the_name_of_the_file_by_default(file):
    output = run(file)
    assert tensors_of(file.with_suffix(""))["layers.0.w"].tolist() == [2.0] * 4
    assert "density is not used by linear" in output
    assert str(file.with_suffix("")) in output.replace("\n", "")


def test_a_dry_run_writes_nothing(file):
    before = sorted(file.parent.iterdir())
    assert "1 tensors" in run(file, "--dry-run")
    assert sorted(file.parent.iterdir()) == before


def test_a_dry_run_as_json(file, tmp_path):
    found = json.loads(run(file, "--dry-run", "--json"))
    assert (found["num_tensors"], found["nbytes"], found["finished"]) == (1, 16, False)
    assert any("density" in note for note in found["notes"])
    run(file, "--quiet")
    assert json.loads(run(file, "--dry-run", "--json"))["finished"]
    assert "there already" in run(file, "--dry-run")


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_full_disk_is_found_by_a_dry_run_as_well(file, monkeypatch, options):
    usage = shutil._ntuple_diskusage(total=2**40, used=2**40 - 10, free=10)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match="merged model"):
        run(file, *options)


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_weights_that_cancel_are_found_before_anything_is_read(file, options):
    tree = yaml.safe_load(file.read_text())
    tree["models"][0]["parameters"], tree["models"][1]["parameters"] = {"weight": 0.5}, {"weight": -0.5}
    file.write_text(yaml.safe_dump(tree))
    with pytest.raises(ConfigError, match=r"parameters\.weight.*layers\.0\.w"):
        run(file, *options)
    file.write_text(yaml.safe_dump({**tree, "parameters": {"normalize": False}}))
    run(file, *options)


def test_json_is_the_report(file, tmp_path):
    report = json.loads(run(file, "-o", tmp_path / "out", "--json", "--seed", 3))
    assert report["config"]["seed"] == 3
    assert report == json.loads((tmp_path / "out" / "merge_report.json").read_text())


def test_errors_are_those_of_the_library(file, tmp_path):
    with pytest.raises(ModelError, match="not empty"):
        run(file, "-o", tmp_path)
    with pytest.raises(ModelError, match="not empty"):
        run(file, "-o", tmp_path, "--dry-run")
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        run(tmp_path / "missing.yaml")


def test_an_empty_file_is_told_what_a_merge_needs(tmp_path):
    (tmp_path / "empty.yaml").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="a merge needs at least `merge_method:`"):
        run(tmp_path / "empty.yaml")
