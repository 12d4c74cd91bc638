"""A merge on the disk: whole or not there, the same bits however it was made, in bounded memory."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open

import rlhf.files
from rlhf.errors import ConfigError, ModelError, RunBusyError, StorageError
from rlhf.merging import arithmetic, merge_plan
from rlhf.merging import merger as module
from rlhf.merging.merge_method import never
from rlhf.merging.merger import ModelMerger
from rlhf.merging.method_table import METHODS, method_named
from tests.fixtures.merging import merge_tree, tensors_of, write_family, write_plain

ONE: dict[str, Any] = {"weight": 1.0}
KILLER = """\
import os, signal
from pathlib import Path

def killed(tensors, base, *, weight: list[float], name: str):
    mark = Path({mark!r})
    mark.write_text(mark.read_text() + name + "\\n" if mark.exists() else name + "\\n")
    if len(mark.read_text().splitlines()) == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return sum(w * t for w, t in zip(weight, tensors)) / sum(weight)
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> dict[str, Path]:
    return write_family(tmp_path_factory.mktemp("llama"))


def ties_of(llama: dict[str, Path], **settings: Any) -> dict[str, Any]:
    models: dict[Path, dict[str, Any]] = {
        llama["a"]: {"weight": 0.6, "density": 0.5},
        llama["b"]: {"weight": [0.1, 0.9], "density": 0.7},
    }
    return merge_tree("ties", models, base_model=llama["base"], **settings)


def bits_of(folder: Path) -> dict[str, bytes]:
    return {name: tensor.view(torch.uint8).numpy().tobytes() for name, tensor in tensors_of(folder).items()}


def test_the_folder_is_a_model_that_transformers_loads(llama, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    report = ModelMerger(ties_of(llama, dtype="bfloat16")).merge(tmp_path / "deep" / "out")
    out = tmp_path / "deep" / "out"
    model, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert model.dtype == torch.bfloat16
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert AutoTokenizer.from_pretrained(out).get_vocab()
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md", "config.json", "generation_config.json", "merge_config.yaml", "merge_report.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    assert [path.name for path in out.parent.iterdir()] == ["out"]  # nothing is left next to it
    with safe_open(out / "model.safetensors", framework="pt") as file:  # by the library that owns the format
        assert file.metadata() == {"format": "pt"}
    card = (out / "README.md").read_text(encoding="utf-8")
    head = yaml.safe_load(card.split("---")[1])
    assert head["base_model"] == [str(llama[name]) for name in ("base", "a", "b")]
    assert head["base_model_relation"] == "merge"
    weights = llama["a"] / "model.safetensors"
    assert report.parents[str(llama["a"])]["files"][str(weights)] == rlhf.files.sha256(weights)
    assert rlhf.files.sha256(weights) in card


def test_parents_that_are_not_hashed_are_said_to_be_so(llama, tmp_path):
    report = ModelMerger(ties_of(llama), hashes=False).merge(tmp_path / "out")
    assert {word for parent in report.parents.values() for word in parent["files"].values()} == {"not hashed"}
    assert "not hashed" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    ModelMerger(ties_of(llama)).merge(tmp_path / "hashed")
    assert bits_of(tmp_path / "out") == bits_of(tmp_path / "hashed")


def test_the_file_that_it_writes_down_makes_it_again(llama, tmp_path):
    ModelMerger(ties_of(llama)).merge(tmp_path / "one")
    ModelMerger(tmp_path / "one" / "merge_config.yaml").merge(tmp_path / "two")
    assert bits_of(tmp_path / "one") == bits_of(tmp_path / "two")


@pytest.mark.parametrize("method", ["ties", "dare_ties"])
def test_threads_and_shards_do_not_change_a_bit(llama, tmp_path, method):
    tree = ties_of(llama) | {"merge_method": method}
    ModelMerger(tree, threads=1).merge(tmp_path / "one")
    ModelMerger(tree, threads=4, shard_bytes=20_000).merge(tmp_path / "many")
    assert bits_of(tmp_path / "one") == bits_of(tmp_path / "many")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    parts = sorted(set(index["weight_map"].values()))
    assert len(parts) > 5
    assert all((tmp_path / "many" / part).stat().st_size < 20_000 + 5_000 for part in parts)
    assert index["metadata"]["total_size"] == sum(map(len, bits_of(tmp_path / "one").values()))
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(tmp_path / "many")


@pytest.mark.parametrize("method", METHODS)
def test_parts_give_what_whole_tensors_give(llama, tmp_path, monkeypatch, method):
    tree = ties_of(llama) | {"merge_method": method}
    if method == "linear":
        tree = merge_tree(method, {llama["a"]: {"weight": 0.3}, llama["b"]: {"weight": 0.4}})
    elif method in ("slerp", "passthrough"):
        tree = merge_tree(method, {llama["a"]: {}}, parameters={"t": 0.3} if method == "slerp" else {"scale": 0.5})
        tree |= {"base_model": str(llama["base"])} if method == "slerp" else {}
    elif method == "model_stock":
        tree = merge_tree(method, {llama["a"]: {}, llama["b"]: {}}, base_model=llama["base"])
    monkeypatch.setattr(arithmetic, "BLOCK", 100)  # the largest tensors have hundreds of elements
    parts = ModelMerger(tree).merge(tmp_path / "parts")
    known = method_named(method)
    monkeypatch.setattr(merge_plan, "method_named", lambda _: replace(known, by_parts=never))
    whole = ModelMerger(tree).merge(tmp_path / "whole")
    first, second = tensors_of(tmp_path / "parts"), tensors_of(tmp_path / "whole")
    assert all(torch.equal(first[name], second[name]) for name in second)
    for one, other in zip(parts.layers, whole.layers, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert value == pytest.approx(other[key])


def test_what_is_drawn_depends_on_the_seed_alone(llama, tmp_path):
    tree = ties_of(llama) | {"merge_method": "dare_linear"}
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        ModelMerger(tree | {"seed": seed}).merge(tmp_path / name)
    assert bits_of(tmp_path / "one") == bits_of(tmp_path / "same") != bits_of(tmp_path / "other")


def test_parents_in_shards_are_read(llama, tmp_path):
    parts = {}
    for name in ("base", "a", "b"):
        ModelMerger(merge_tree("passthrough", {llama[name]: {}}), shard_bytes=30_000).merge(tmp_path / name)
        parts[name] = tmp_path / name
    ModelMerger(ties_of(llama)).merge(tmp_path / "whole")
    ModelMerger(ties_of(parts)).merge(tmp_path / "sharded")
    assert bits_of(tmp_path / "whole") == bits_of(tmp_path / "sharded")


def test_a_folder_that_is_not_empty_is_left_alone(llama, tmp_path):
    (tmp_path / "out").mkdir()
    ModelMerger(ties_of(llama)).merge(tmp_path / "out")  # an empty one is taken
    before = bits_of(tmp_path / "out")
    with pytest.raises(ModelError, match="not empty"):
        ModelMerger(ties_of(llama, dtype="bfloat16")).merge(tmp_path / "out")
    stamp = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    assert ModelMerger(ties_of(llama)).merge(tmp_path / "out").method == "ties"  # the same merge: nothing to do
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == stamp
    assert bits_of(tmp_path / "out") == before
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelError, match="file"):
        ModelMerger(ties_of(llama)).merge(tmp_path / "file")


def test_a_full_disk_is_known_before_anything_is_written(llama, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(rlhf.files.shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(StorageError, match="The merged model"):
        ModelMerger(ties_of(llama)).merge(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_keeps_what_is_done(llama, tmp_path, monkeypatch):
    written = module.write_tensor
    count = 0

    def full(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count > 20:
            raise OSError(28, "No space left on device")
        written(*arguments)

    monkeypatch.setattr(module, "write_tensor", full)
    with pytest.raises(StorageError, match="no room left"):
        ModelMerger(ties_of(llama), threads=1, shard_bytes=20_000).merge(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done = list((tmp_path / ".out.merging" / ".done").iterdir())
    assert done
    monkeypatch.setattr(module, "write_tensor", written)
    ModelMerger(ties_of(llama), threads=1, shard_bytes=20_000).merge(tmp_path / "out")
    ModelMerger(ties_of(llama)).merge(tmp_path / "whole")
    assert bits_of(tmp_path / "out") == bits_of(tmp_path / "whole")


def test_not_a_number_in_a_parent_is_named(tmp_path):
    a = write_plain(tmp_path / "a", {"layers.0.w": torch.ones(3)})
    b = write_plain(tmp_path / "b", {"layers.0.w": torch.tensor([1, math.nan, 1])})
    with pytest.raises(ModelError, match=r"b: layers\.0\.w holds NaN"):
        ModelMerger(merge_tree("linear", {a: ONE, b: ONE})).merge(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / ".out.merging").exists()


def test_what_does_not_fit_the_type_is_named(tmp_path):
    a = write_plain(tmp_path / "a", {"layers.0.w": torch.full((3,), 1e6)})
    with pytest.raises(ModelError, match=r"layers\.0\.w .*float16"):
        ModelMerger(merge_tree("linear", {a: ONE}, dtype="float16")).merge(tmp_path / "out")


@pytest.mark.parametrize("weights", [(1, -1, 0), (0, 0, 0), (0.1, 0.2, -0.3), ([1, 2], [-1, -2], 0)])
def test_weights_that_add_up_to_nothing(tmp_path, weights):
    names = ("a", "b", "c")
    models = {
        write_plain(tmp_path / name, {"layers.0.w": torch.ones(3)}): {"weight": weight}
        for name, weight in zip(names, weights, strict=True)
    }
    with pytest.raises(ConfigError, match=r"parameters\.weight.*layers\.0\.w"):
        ModelMerger(merge_tree("linear", models)).plan()


def test_two_processes_do_not_merge_into_one_folder(llama, tmp_path):
    with module._locked(tmp_path / ".out.merging", "x"), pytest.raises(RunBusyError, match="out"):
        ModelMerger(ties_of(llama)).merge(tmp_path / "out")


@pytest.mark.parametrize("arguments", [{"threads": 0}, {"shard_bytes": 0}])
def test_numbers_below_one(llama, arguments):
    with pytest.raises(ConfigError, match="at least 1"):
        ModelMerger(ties_of(llama), **arguments)


def test_the_report_has_numbers_of_each_layer(llama, tmp_path):
    report = ModelMerger(ties_of(llama)).merge(tmp_path / "out")
    base, a, merged = (tensors_of(folder) for folder in (llama["base"], llama["a"], tmp_path / "out"))
    row = next(row for row in report.layers if row["layer"] == 2)
    names = [name for name in base if ".layers.2." in name]

    def away(other: dict[str, Any]) -> float:
        return math.sqrt(sum(float((other[name] - base[name]).double().square().sum()) for name in names))

    assert row["tensors"] == len(names)
    assert row["distance"][str(llama["a"])] == pytest.approx(away(a))
    assert row["result_distance"] == pytest.approx(away(merged))
    assert row["kept"][str(llama["b"])] == pytest.approx(0.7, abs=0.01)
    assert 0 < row["sign_conflict"] < 0.7
    stored = json.loads((tmp_path / "out" / "merge_report.json").read_text())
    assert [entry["name"] for entry in stored["tensors"]] == list(
        dict.fromkeys(entry["name"] for entry in stored["tensors"])
    )
    assert {entry["name"] for entry in stored["tensors"]} == merged.keys()
    assert "sign conflict" in report.summary()


def test_trimming_over_whole_models_keeps_a_share_of_the_whole(tmp_path):
    base = write_plain(tmp_path / "base", {"layers.0.w": torch.zeros(10), "layers.1.w": torch.zeros(10)})
    large, small = torch.arange(11.0, 21), torch.arange(1.0, 11)
    a = write_plain(tmp_path / "a", {"layers.0.w": large, "layers.1.w": small})
    tree = merge_tree("ties", {a: {"weight": 1, "density": 0.5}}, base_model=base, parameters={"trim_over": "model"})
    ModelMerger(tree).merge(tmp_path / "out")
    merged = tensors_of(tmp_path / "out")
    assert torch.equal(merged["layers.0.w"], large)
    assert not merged["layers.1.w"].any()
    with pytest.raises(ConfigError, match="density"):
        ModelMerger(tree | {"models": [{"model": str(a), "parameters": {"weight": 1, "density": [0.5, 0.9]}}]}).merge(
            tmp_path / "no"
        )


MERGE = """\
import sys
from rlhf.merging.merger import ModelMerger
from rlhf.merging.method_table import METHODS, method_named
ModelMerger(sys.argv[1], threads=1, shard_bytes=20_000).merge(sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 17, 39])
def test_a_killed_merge_goes_on_where_it_was(llama, tmp_path, at):
    code, mark = tmp_path / "killer.py", tmp_path / "mark"
    code.write_text(KILLER.format(mark=str(mark), at=at), encoding="utf-8")
    tree = merge_tree(f"{code}:killed", {llama["a"]: ONE, llama["b"]: {"weight": 3.0}})
    (tmp_path / "merge.yaml").write_text(yaml.safe_dump(tree), encoding="utf-8")
    command = [sys.executable, "-c", MERGE, str(tmp_path / "merge.yaml"), str(tmp_path / "out")]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    first = mark.read_text().splitlines()
    assert len(first) == at
    assert subprocess.run(command).returncode == 0
    again = mark.read_text().splitlines()[at:]
    assert len(set(first) | set(again)) == 39
    assert len(set(first) & set(again)) <= 5  # of the part that was being written
    ModelMerger(tree, threads=1, shard_bytes=20_000).merge(tmp_path / "whole")
    assert bits_of(tmp_path / "out") == bits_of(tmp_path / "whole")


RESIDENT = """\
import json, re, sys
from pathlib import Path
from rlhf.merging.merger import ModelMerger
from rlhf.merging.method_table import METHODS, method_named
from rlhf.merging import methods, vocabulary, thresholds
import rlhf.merging.methods.ties, torch, tokenizers
torch.ones(4).sum()
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
Path("/proc/self/clear_refs").write_text("5")  # the peak starts over: a child inherits its parent's
before = peak()
ModelMerger(json.loads(sys.argv[1]), threads=4, shard_bytes=int(sys.argv[3])).merge(sys.argv[2])
print((peak() - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["linear", "ties", "dare_ties", "model_stock"])
def test_memory_is_a_few_tensors_and_no_model(tmp_path, method):
    side, layers = 1024, 24  # 4 MiB a tensor in float32, 96 MiB a model, four of them
    names = ("base", "a", "b", "c")
    folders = {}
    for seed, name in enumerate(names):
        generator = torch.Generator().manual_seed(seed)
        tensors = {f"layers.{layer}.w": torch.randn(side, side, generator=generator) for layer in range(layers)}
        folders[name] = write_plain(tmp_path / name, tensors)
    settings = {} if method == "model_stock" else {"weight": 0.5} | ({} if method == "linear" else {"density": 0.5})
    base = {} if method == "linear" else {"base_model": folders["base"]}
    tree = merge_tree(method, {folders[name]: settings for name in names if not base or name != "base"}, **base)
    command = [sys.executable, "-c", RESIDENT, json.dumps(tree), str(tmp_path / "out"), str(32 << 20)]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    )
    assert result.returncode == 0, result.stderr
    tensor, model = 4 * side * side, 4 * side * side * layers
    used = int(result.stdout)
    print(
        f"{method}: {used / 2**20:.0f} MiB beyond the imports; a tensor is {tensor / 2**20:.0f} MiB, a model {model / 2**20:.0f} MiB"
    )
    assert (
        used < 14 * tensor + (24 << 20) < model
    )  # four parents, a few working copies, and what imports on the way take


OWN = """\
def failing(tensors, base, *, weight: list[float] = 1.0):
    raise ValueError("no")

def wrong_shape(tensors, base):
    return tensors[0][:1]

def nothing(tensors, base):
    return None

def noted(tensors, base, *, name: str, seeds: list[int], notes: dict, weight: list[float] = 2.0):
    notes["first"] = [float(tensor[0]) for tensor in tensors]
    notes["weight"] = weight
    notes["of"] = name
    return tensors[0]
"""


@pytest.mark.parametrize(
    ("name", "word"), [("failing", "ValueError: no"), ("wrong_shape", r"shape \[1\]"), ("nothing", "NoneType")]
)
def test_a_method_of_the_users_that_fails_is_named_with_the_tensor(tmp_path, name, word):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    a = write_plain(tmp_path / "a", {"layers.0.w": torch.ones(3)})
    with pytest.raises(ModelError, match=rf"{name}.*layers\.0\.w.*{word}|{name}.*{word}.*layers\.0\.w"):
        ModelMerger(merge_tree(f"{tmp_path / 'own.py'}:{name}", {a: {}})).merge(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_users_method_notes_is_in_the_report(tmp_path):
    (tmp_path / "own.py").write_text(OWN, encoding="utf-8")
    a = write_plain(tmp_path / "a", {"layers.0.w": torch.full((3,), 7.0)})
    report = ModelMerger(merge_tree(f"{tmp_path / 'own.py'}:noted", {a: {}})).merge(tmp_path / "out")
    (row,) = report.tensors
    assert row["first"] == {str(a): 7.0}
    assert row["weight"] == {str(a): 2.0}
    assert row["of"] == "layers.0.w"


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_a_finished_merge_whose_weights_are_no_longer_whole_is_an_error(llama, tmp_path, damage):
    """The report alone says that it was merged; a rerun that found it would leave a folder without a model."""
    out = tmp_path / "out"
    ModelMerger(ties_of(llama)).merge(out)
    weights = out / "model.safetensors"
    if damage == "gone":
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:-8])
    for again in (ModelMerger(ties_of(llama)).merge, ModelMerger(ties_of(llama)).dry_run):
        with pytest.raises(ModelError, match="Delete the folder and merge again"):
            again(out)


def test_threads_and_shards_are_whole_numbers(llama):
    for how in ({"threads": 1.5}, {"shard_bytes": "5GB"}):
        with pytest.raises(ConfigError, match=next(iter(how))):
            ModelMerger(ties_of(llama), **how)


def test_an_interrupted_merge_says_what_is_kept_and_where(llama, tmp_path):
    def stopped(done, total):
        raise KeyboardInterrupt

    merger = ModelMerger(ties_of(llama), threads=1)
    with pytest.raises(KeyboardInterrupt) as caught:
        merger.merge(tmp_path / "out", progress=stopped)
    assert str(tmp_path / ".out.merging") in "".join(caught.value.__notes__)
    assert (tmp_path / ".out.merging").is_dir()
    merger.merge(tmp_path / "out")
