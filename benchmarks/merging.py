"""Merging side by side: `rlhf merge` and mergekit on the same files, each in a process of its own.

    RLHF_MERGEKIT_PYTHON=/tmp/mergekit/bin/python python benchmarks/merging.py --hidden 1024 --layers 16 --rounds 3

The models have random weights of Llama's shape, made on the spot. Both sides run as a person runs them, with the same number of threads, in
turns; the results are compared, where both compute in the same type. A row has the medians over rounds of the seconds of merging by the
clock, which say little on a shared machine, and of the processor. Imports are not counted; ours hashes the parents, measures every tensor
and syncs the result to the disk within them, mergekit does none of it. The peak of memory is of resident pages; mergekit maps its files,
so the parents' pages count as far as they were touched.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

METHODS: dict[str, dict[str, Any]] = {
    "linear": {"weight": 0.5},
    "task_arithmetic": {"weight": 0.5},
    "ties": {"weight": 0.5, "density": 0.5},
    "dare_ties": {"weight": 0.5, "density": 0.5},
    "slerp": {},
    "model_stock": {},
}
RANDOM = {"dare_ties"}
"""Methods whose masks differ: their results are not compared."""
MEASURED = """
import json, re, sys, time
from pathlib import Path
tree, out, threads = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
{imports}
Path("/proc/self/clear_refs").write_text("5")
begin, busy = time.perf_counter(), time.process_time()
{merge}
seconds, busy = time.perf_counter() - begin, time.process_time() - busy
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
print(json.dumps([seconds, busy, peak]))
"""
OURS = MEASURED.format(
    imports="import torch\nfrom rlhf.merging.merger import ModelMerger",
    merge="ModelMerger(tree, threads=threads).merge(out)",
)
PEER = MEASURED.format(
    imports="import torch\nfrom mergekit.config import MergeConfiguration\nfrom mergekit.merge import MergeOptions, run_merge\n"
    "torch.set_num_threads(threads)",
    merge="run_merge(MergeConfiguration.model_validate(tree), out, MergeOptions(write_model_card=False, quiet=True, num_threads=threads))",
)


def write_models(root: Path, hidden: int, layers: int, dtype: torch.dtype) -> list[Path]:
    """A base and two models near it."""
    config = LlamaConfig(
        vocab_size=32_000, hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=layers, num_attention_heads=8,
        tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    folders = []
    for name in ("base", "a", "b"):
        folders.append(root / name)
        model.to(dtype).save_pretrained(folders[-1])
        tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(32_000)}, unk_token="t0"))
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0").save_pretrained(folders[-1])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.01 * torch.randn(parameter.shape, dtype=dtype)
    return folders


def tree_of(method: str, folders: list[Path], dtype: str) -> dict[str, Any]:
    """The same file for both."""
    base, *others = map(str, folders)
    listed = [{"model": name, "parameters": METHODS[method]} for name in others]
    if method == "slerp":
        listed = [{"model": base}, {"model": others[0]}]
    tree = {
        "merge_method": method,
        "models": listed,
        "dtype": dtype,
        "parameters": {"t": 0.4} if method == "slerp" else {},
    }
    return tree if method == "linear" else tree | {"base_model": base}


def measure(python: str, script: str, tree: dict[str, Any], out: Path, threads: int) -> tuple[float, float, float]:
    """Seconds, processor seconds and peak bytes of one merge."""
    shutil.rmtree(out, ignore_errors=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    command = [python, "-c", script, json.dumps(tree), str(out), str(threads)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        raise SystemExit(result.stderr[-2000:])
    seconds, busy, peak = json.loads(result.stdout.splitlines()[-1])
    return float(seconds), float(busy), float(peak)


def main() -> None:
    """The table, on standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    options = parser.parse_args()
    peer = os.environ.get("RLHF_MERGEKIT_PYTHON")
    if not peer:
        raise SystemExit(
            "Set RLHF_MERGEKIT_PYTHON to the interpreter of an environment with mergekit (docs/merging.md)."
        )
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        folders = write_models(root, options.hidden, options.layers, getattr(torch, options.dtype))
        size = (folders[0] / "model.safetensors").stat().st_size
        print(
            f"a model has {size / 2**20:.0f} MiB in {options.dtype}, {options.threads} threads, {options.rounds} rounds\n"
        )
        print(
            "| method | seconds, ours | mergekit | processor seconds, ours | mergekit | MiB, ours | mergekit | largest difference |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for method in options.methods:
            tree = tree_of(method, folders, options.dtype)
            rounds = [
                (
                    measure(sys.executable, OURS, tree, root / "ours", options.threads),
                    measure(peer, PEER, tree, root / "peer", options.threads),
                )
                for _ in range(options.rounds)
            ]
            cells = [
                f"{statistics.median(row[side][part] for row in rounds) / unit:.{digits}f}"
                for part, unit, digits in ((0, 1, 1), (1, 1, 1), (2, 2**20, 0))
                for side in (0, 1)
            ]
            print(
                f"| {method} | {' | '.join(cells)} | {'other masks' if method in RANDOM else difference(root)} |",
                flush=True,
            )


def difference(root: Path) -> str:
    """Over all elements."""
    ours, theirs = (load_file(root / who / "model.safetensors") for who in ("ours", "peer"))
    return f"{max(float((ours[name].float() - theirs[name].float()).abs().max()) for name in theirs):.1e}"


if __name__ == "__main__":
    main()
