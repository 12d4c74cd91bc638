"""docs/merging.md: its files merge models, its own method works, and its table of methods is the library's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml

from rlhf.config.merging import MergeConfig
from rlhf.merging.merger import ModelMerger
from rlhf.merging.method_table import METHODS, method_named
from tests.fixtures.merging import tensors_of, write_family
from tests.fixtures.source import ROOT

PAGE = (ROOT / "docs" / "merging.md").read_text(encoding="utf-8")
FILES = {
    name: code
    for _, name, code in re.findall(
        r"^```(yaml|python)\n# (\S+\.(?:yaml|py))\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
}


@pytest.fixture
def placed(tmp_path, monkeypatch) -> Path:
    """A folder in which the page's names of models are models."""
    folders = write_family(tmp_path, "llama", ("base", "a", "b"))
    for name, place in (("a", "runs/quickstart/sft/model"), ("b", "runs/quickstart/ppo/model")):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        folders[name].rename(tmp_path / place)
    for name, code in FILES.items():
        (tmp_path / name).write_text(code.replace("embedded", str(folders["base"])), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_file_is_a_merge(placed):
    report = ModelMerger("merge.yaml").merge("merged")
    assert {row["layer"] for row in report.layers} == {0, 1, 2, 3, "other"}
    assert not report.notes


def test_a_method_of_your_own_in_twenty_lines(placed):
    assert len(FILES["sign_median.py"].splitlines()) + len(FILES["own.yaml"].splitlines()) <= 20
    ModelMerger("own.yaml").merge("own")
    base, merged = tensors_of(placed / "base"), tensors_of(placed / "own")
    models = [tensors_of(placed / "runs" / "quickstart" / name / "model") for name in ("sft", "ppo")]
    for name, start in base.items():
        deltas = torch.stack([model[name] - start for model in models])
        agree = deltas[0].sign() == deltas[1].sign()
        lower = torch.where(deltas[0] < deltas[1], deltas[0], deltas[1])
        assert torch.allclose(merged[name], start + 0.8 * torch.where(agree, lower, 0), atol=1e-6)


def test_the_method_may_be_in_a_package(placed, monkeypatch):
    (placed / "my_merges").mkdir()
    (placed / "sign_median.py").rename(placed / "my_merges" / "sign_median.py")
    monkeypatch.syspath_prepend(str(placed))
    tree = yaml.safe_load(FILES["own.yaml"]) | {"merge_method": "my_merges.sign_median:sign_median"}
    tree |= {"base_model": str(placed / "base")}
    assert ModelMerger(tree).merge("own").method == "my_merges.sign_median:sign_median"


def test_every_file_is_read():
    for name, code in FILES.items():
        if name.endswith(".yaml"):
            MergeConfig.of(yaml.safe_load(code), source=name)


def test_the_table_lists_every_method_and_its_settings():
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", PAGE, re.MULTILINE))
    assert list(rows) == list(METHODS)
    rows["dare_ties"] = rows["dare_ties"].replace("the same", rows["dare_linear"])
    for name, text in rows.items():
        parameters = method_named(name).parameters.values()
        assert re.findall(r"\w+", text) == [p.name for p in parameters], name
        assert set(re.findall(r"\*(\w+)\*", text)) == {p.name for p in parameters if p.each}, name
