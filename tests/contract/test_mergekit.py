"""Element by element as mergekit 0.1.5, in the environment that RLHF_MERGEKIT_PYTHON names; docs/merging.md says how to make one.

Five families, every method that both have. With transformers 5.23 mergekit 0.1.5 merges no GPT-NeoX (it wants a buffer that is no longer
saved), and writes no config.json for stacked layers of Qwen2 and Gemma 2 (``layer_types`` keeps its length); its weights are
compared. Both compute in float32 here; where mergekit computes in the weights' own type (bfloat16), ours rounds once at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf.merging.merger import ModelMerger
from rlhf.merging.vocabulary import tokens_of
from tests.fixtures.merging import FAMILIES, LETTERS, merge_tree, tensors_of, write_family, write_tokenizer
from tests.fixtures.source import ROOT, SOURCE

PYTHON = os.environ.get("RLHF_MERGEKIT_PYTHON")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="needs mergekit: set RLHF_MERGEKIT_PYTHON, see docs/merging.md"),
]


def cases(p: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Name -> a merge."""
    base, a, b, c = p["base"], p["a"], p["b"], p["c"]
    gradient = [{"filter": "attn", "value": [0.2, 0.9, 0.1]}, {"filter": "mlp", "value": 0.6}, {"value": 0.5}]
    three = {
        a: {"weight": 0.5, "density": 0.6},
        b: {"weight": [0.1, 0.8], "density": 0.4},
        c: {"weight": gradient, "density": 0.7},
    }

    def slices(*parts: tuple[Path, int, int], **settings: Any) -> dict[str, Any]:
        listed = [{"sources": [{"model": str(m), "layer_range": [x, y]}]} for m, x, y in parts]
        return {"slices": listed, **settings}

    def both(model: Path, x: int, y: int, **own: Any) -> dict[str, Any]:
        ranges = [(base, y - x), (model, y - x)]
        of_base, of_model = (
            {"model": str(m), "layer_range": [start, start + n]} for (m, n), start in zip(ranges, (0, x), strict=True)
        )
        return {"sources": [of_base, of_model | own]}

    by_name = {
        "linear": merge_tree("linear", three),
        "linear unnormalized": merge_tree("linear", three, parameters={"normalize": False}),
        "linear with a base": merge_tree("linear", {a: {"weight": 2}}, base_model=base, parameters={"weight": 1}),
        "task arithmetic": merge_tree("task_arithmetic", three, base_model=base),
        "task arithmetic, normalized": merge_tree("task_arithmetic", three, base_model=base, parameters={"normalize": True, "lambda": 0.7}),
        "ties": merge_tree("ties", three, base_model=base),
        "ties, int8 mask": merge_tree("ties", three, base_model=base, parameters={"int8_mask": True, "lambda": 1.5, "normalize": False}),
        "dare linear": merge_tree("dare_linear", three, base_model=base),
        "dare linear, as it is": merge_tree("dare_linear", three, base_model=base, parameters={"rescale": False}),
        "dare ties": merge_tree("dare_ties", three, base_model=base, parameters={"normalize": True}),
        "slerp": merge_tree("slerp", {base: {}, a: {}}, base_model=base, parameters={"t": gradient}),
        "slerp, far": merge_tree("slerp", {base: {}, p["far"]: {}}, base_model=base, parameters={"t": [0, 0.3, 1]}),
        "model stock": merge_tree("model_stock", {a: {}, b: {}, c: {}}, base_model=base),
        "model stock by rows": merge_tree("model_stock", {a: {}, b: {}}, base_model=base, parameters={"filter_wise": True}),
        "passthrough": {"merge_method": "passthrough", **slices((a, 0, 3), (b, 1, 4)), "dtype": "float32"},
        "slices": {
            "merge_method": "task_arithmetic", "base_model": str(base),
            "slices": [both(a, 1, 3, parameters={"weight": [0, 1]}), {**both(b, 2, 4), "parameters": {"weight": 0.3}}],
        },
        "to bfloat16": merge_tree("ties", three, base_model=base, dtype="float32", out_dtype="bfloat16"),
    }  # fmt: skip
    return by_name


def run_peer(jobs: list[tuple[dict[str, Any], Path]], where: Path) -> None:
    """All jobs in one process: importing mergekit takes seconds."""
    file = where / "jobs.json"
    file.write_text(json.dumps([[tree, str(folder)] for tree, folder in jobs]), encoding="utf-8")
    script = ROOT / "tests" / "contract" / "mergekit_peer.py"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run([str(PYTHON), str(script), str(file)], capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stderr[-3000:]
    errors = {
        folder.name: Path(f"{folder}.error").read_text() for _, folder in jobs if Path(f"{folder}.error").is_file()
    }
    assert {name: error for name, error in errors.items() if "layer_types" not in error} == {}


def largest_difference(ours: Path, theirs: Path) -> float:
    """Over all elements of all tensors, which must be the same ones."""
    mine, peer = tensors_of(ours), tensors_of(theirs)
    assert mine.keys() == peer.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == peer[name].dtype, name
        assert tensor.shape == peer[name].shape, name
    return max(float((tensor.double() - peer[name].double()).abs().max()) for name, tensor in mine.items())


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "gpt_neox"])
def test_every_method_gives_the_numbers_of_mergekit(family, tmp_path):
    parents = write_family(tmp_path / "parents", family)
    parents |= far(tmp_path / "parents", family)
    wanted = cases(parents)
    run_peer([(tree, tmp_path / "peer" / name) for name, tree in wanted.items()], tmp_path)
    differences = {}
    for name, tree in wanted.items():
        ModelMerger(tree).merge(tmp_path / "ours" / name)
        differences[name] = largest_difference(tmp_path / "ours" / name, tmp_path / "peer" / name)
    print(family, differences)
    assert {name: value for name, value in differences.items() if value > 0} == {}


def far(root: Path, family: str) -> dict[str, Path]:
    """A model at right angles to the base, for the arc of SLERP."""
    import transformers

    config_class, model_class, settings = FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        model = getattr(transformers, model_class)(getattr(transformers, config_class)(**settings))
    model.save_pretrained(root / "far")
    write_tokenizer(root / "far")
    return {"far": root / "far"}


@pytest.mark.parametrize("source", ["union", "base", "of a"])
@pytest.mark.parametrize("tied", [False, True])
def test_vocabularies_are_joined_as_by_mergekit(tied, source, tmp_path):
    parents = write_family(tmp_path / "parents", "llama", ("base", "a", "b"), tie_word_embeddings=tied)
    write_tokenizer(parents["a"], [*LETTERS[:20], *"012345"])
    write_tokenizer(parents["b"], [*reversed(LETTERS)])
    where = source if source != "of a" else str(parents["a"])
    of_b = str(parents["b"])
    tokens: dict[str, Any] = {"3": {"source": {"kind": "zero"}}, "c": {"source": of_b, "force": True}}
    if source == "union":  # with others mergekit 0.1.5 fails on a token that it adds
        tokens["new"] = {"source": {"kind": "model_token", "model": of_b, "token": "q"}}
    tokenizer = {
        "source": where,
        "pad_to_multiple_of": 8,
        "tokens": {t: v for t, v in tokens.items() if t != "3" or source != "base"},
    }
    tree = merge_tree(
        "linear", {parents["base"]: {"weight": 1}, parents["a"]: {"weight": 1}, parents["b"]: {"weight": 2}},
        base_model=parents["base"], tokenizer=tokenizer,
    )  # fmt: skip
    run_peer([(tree, tmp_path / "peer")], tmp_path)
    ModelMerger(tree).merge(tmp_path / "ours")
    mine, theirs = tensors_of(tmp_path / "ours"), tensors_of(tmp_path / "peer")
    here, there = tokens_of(tmp_path / "ours"), tokens_of(tmp_path / "peer")
    assert here.keys() == there.keys()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        if "embed_tokens" in name or "lm_head" in name:  # mergekit numbers added tokens in the order of a set
            for token, row in here.items():
                assert torch.equal(tensor[row], theirs[name][there[token]]), (name, token)
            assert torch.allclose(tensor[len(here) :], theirs[name][len(here) :], atol=1e-6)
        else:
            assert torch.equal(tensor, theirs[name]), name
    ours, peer = (json.loads((tmp_path / who / "config.json").read_text()) for who in ("ours", "peer"))
    assert ours["vocab_size"] == peer["vocab_size"]


@pytest.mark.parametrize("method", ["task_arithmetic", "ties", "linear", "slerp"])
def test_in_bfloat16_ours_rounds_once_where_mergekit_rounds_each_step(method, tmp_path):
    p = write_family(tmp_path / "parents", "llama", ("base", "a", "b"), dtype=torch.bfloat16)
    settings = {"parameters": {"t": 0.4}} if method == "slerp" else {}
    models: dict[Path, dict[str, Any]] = {p["a"]: {"weight": 0.5}, p["b"]: {"weight": 0.3}}
    models = {p["base"]: {}, p["a"]: {}} if method == "slerp" else models
    models |= {p["base"]: {"weight": 0.2}} if method == "linear" else {}
    plain = merge_tree(method, models, base_model=p["base"], dtype="bfloat16", **settings)
    precise = plain | {"dtype": "float32", "out_dtype": "bfloat16"}
    run_peer([(plain, tmp_path / "plain"), (precise, tmp_path / "precise")], tmp_path)
    ModelMerger(plain).merge(tmp_path / "ours")
    assert largest_difference(tmp_path / "ours", tmp_path / "precise") == 0
    ours, peer = tensors_of(tmp_path / "ours"), tensors_of(tmp_path / "plain")
    far = torch.cat([(ours[name].float() - peer[name].float()).abs().reshape(-1) for name in ours])
    print(
        f"{method}: mean {far.mean():.2e}, largest {far.max():.2e}, other signs elected {float((far > 0.01).float().mean()):.2e}"
    )
    assert float(far.mean()) < 1e-3


def test_an_adapter_is_merged_as_by_peft(tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    parents = write_family(tmp_path / "parents", "llama", ("base", "a"))
    lora = LoraConfig(r=4, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "up_proj"])
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(parents["base"]), lora)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    tree = merge_tree(
        "linear", {Path(f"{parents['base']}+{tmp_path / 'adapter'}"): {"weight": 0.4}, parents["a"]: {"weight": 0.6}}
    )
    run_peer([(tree, tmp_path / "peer")], tmp_path)
    ModelMerger(tree).merge(tmp_path / "ours")
    assert largest_difference(tmp_path / "ours", tmp_path / "peer") < 1e-6
