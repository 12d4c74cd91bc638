"""Merging side by side: `rlhf merge` and mergekit on the same files, each side in a process of its own.

    RLHF_MERGEKIT_PYTHON=/tmp/mergekit/bin/python python benchmarks/merging.py --write docs/results/merging-speed.md

The models have random weights of Llama's shape in several shards, made on the spot. Both sides run as a person runs them, with the same
number of threads, in turns, ours with hashes of the parents and without; the results are compared, where both compute in the same type.
mergekit writes no card, and writes its shards in the background (``async_write``), the fastest of its settings for local safetensors files
on a CPU. A row has the fewest seconds of all rounds by the clock, which say little on a shared machine, and of the processor. Imports are
not counted; ours measures every tensor and syncs the result to the disk within them, mergekit does not. The peak of memory is of resident
pages; mergekit maps its files, so that the parents' pages count as far as they were touched: the other peak is of pages that belong to the
process alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlhf.formatting import rounded
from rlhf.pipeline.manifest import machine, versions

METHODS: dict[str, dict[str, Any]] = {
    "linear": {"weight": 0.5},
    "task_arithmetic": {"weight": 0.5},
    "ties": {"weight": 0.5, "density": 0.5},
    "dare_linear": {"weight": 0.5, "density": 0.5},
    "dare_ties": {"weight": 0.5, "density": 0.5},
    "slerp": {},
    "model_stock": {},
    "passthrough": {},
}
RANDOM = {"dare_linear", "dare_ties"}
"""Methods whose masks differ: their results are not compared."""
MEASURED = """
import ctypes, json, re, shutil, sys, threading, time
from pathlib import Path
trees, out, threads = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
{imports}
def pages(name):
    return int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
for method, tree in trees.items():
    shutil.rmtree(f"{{out}}-{{method}}", ignore_errors=True)
    {forget}
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    own, finished = [0], threading.Event()
    def watch():
        while not finished.wait(0.02):
            own[0] = max(own[0], pages("RssAnon"))
    watcher = threading.Thread(target=watch)
    watcher.start()
    begin, busy = time.perf_counter(), time.process_time()
    {merge}
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    finished.set()
    watcher.join()
    print(json.dumps([method, seconds, busy, pages("VmHWM"), own[0]]), flush=True)
"""
OURS, UNHASHED = (
    MEASURED.format(
        imports="import torch, rlhf.files\nfrom rlhf.merging.merger import ModelMerger",
        forget="rlhf.files._sha256_of.cache_clear()",
        merge=f"ModelMerger(tree, threads=threads, hashes={hashes}).merge(f'{{out}}-{{method}}')",
    )
    for hashes in (True, False)
)
PEER = MEASURED.format(
    imports="import torch\nfrom mergekit.config import MergeConfiguration\nfrom mergekit.merge import MergeOptions, run_merge\n"
    "torch.set_num_threads(threads)",
    forget="pass",
    merge="run_merge(MergeConfiguration.model_validate(tree), f'{out}-{method}', MergeOptions("
    "write_model_card=False, quiet=True, lazy_unpickle=True, async_write=True, write_threads=threads))",
)


def write_models(root: Path, hidden: int, layers: int, dtype: torch.dtype) -> list[Path]:
    """A base and two models near it."""
    config = LlamaConfig(
        vocab_size=32_000, hidden_size=hidden, intermediate_size=hidden * 11 // 4, num_hidden_layers=layers, num_attention_heads=8,
        tie_word_embeddings=False,
    )  # fmt: skip
    folders = [root / name for name in ("base", "a", "b")]
    if all((folder / "tokenizer.json").is_file() for folder in folders):
        return folders
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    for folder in folders:
        model.to(dtype).save_pretrained(folder, max_shard_size="150MB")
        tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(32_000)}, unk_token="t0"))
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="t0").save_pretrained(folder)
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
    if method == "passthrough":
        listed = [{"model": others[0]}]
    tree = {
        "merge_method": method,
        "models": listed,
        "dtype": dtype,
        "parameters": {"t": 0.4} if method == "slerp" else {},
    }
    return tree if method in ("linear", "passthrough") else tree | {"base_model": base}


def measure(python: str, script: str, trees: dict[str, Any], out: Path, threads: int) -> dict[str, list[float]]:
    """Method -> seconds, processor seconds, peak bytes and peak bytes of its own, merged one after the other in one process."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    command = [python, "-c", script, json.dumps(trees), str(out), str(threads)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    if result.returncode:
        raise SystemExit(result.stderr[-2000:])
    rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[")]
    return {method: [float(value) for value in values] for method, *values in rows}


COLUMNS = (
    ("seconds", 1, 1),
    ("processor seconds", 1, 1),
    ("MiB", 2**20, 0),
    ("MiB of its own", 2**20, 0),
)


def compared(folders: list[Path], root: Path, peer: str, threads: int, options: argparse.Namespace) -> list[str]:
    """Rows: the best of each side's rounds."""
    sides = ((sys.executable, OURS, "ours"), (sys.executable, UNHASHED, "ours"), (peer, PEER, "peer"))
    rounds = []
    for number in range(options.rounds):
        methods = [method for method in options.methods if number == 0 or method not in options.once]
        trees = {method: tree_of(method, folders, options.dtype) for method in methods}
        rounds.append([measure(python, script, trees, root / out, threads) for python, script, out in sides])
    lines = []
    for method in options.methods:
        measured = [row for row in rounds if method in row[0]]
        cells = []
        for part, (_, unit, digits) in enumerate(COLUMNS):
            ours, unhashed, theirs = (min(row[side][method][part] for row in measured) / unit for side in range(3))
            times = f"{rounded(theirs / ours, 1)}x, {rounded(theirs / unhashed, 1)}x"
            cells.append(f"{rounded(ours, digits)} / {rounded(unhashed, digits)} / {rounded(theirs, digits)} ({times})")
        lines.append(f"| {method} | {threads} | {len(measured)} | {' | '.join(cells)} | {difference(root, method)} |")
    return lines


def difference(root: Path, method: str) -> str:
    """Over all elements."""
    if method in RANDOM:
        return "other masks"
    ours, theirs = (
        {
            name: tensor
            for file in (root / f"{who}-{method}").glob("*.safetensors")
            for name, tensor in load_file(file).items()
        }
        for who in ("ours", "peer")
    )
    return f"{max(float((ours[name].float() - theirs[name].float()).abs().max()) for name in theirs):.1e}"


def head(options: argparse.Namespace, nbytes: int) -> list[str]:
    """What the page is and how it was made."""
    command = (
        f"python benchmarks/merging.py --hidden {options.hidden} --layers {options.layers} --rounds {options.rounds}"
    )
    of_packages = ", ".join(f"{name} {versions()[name]}" for name in ("rlhf", "torch"))
    return [
        "# Merging: seconds and memory against mergekit 0.1.5",
        "",
        "<!-- written by benchmarks/merging.py; do not edit by hand -->",
        "",
        f"Made by `{command} --dtype {options.dtype} --write {options.write}` on {machine()['cpu']}, {os.cpu_count()} cores that other "
        f"programs used as well; {of_packages}.",
        "",
        *__doc__.split("\n\n")[2].strip().splitlines(),
        "",
        f"A model has {rounded(nbytes / 2**20, 0)} MiB in {options.dtype}. Cells: ours / ours with `--no-hashes` / mergekit (how many times as "
        "much as each of ours mergekit takes).",
        "",
        f"| method | threads | rounds | {' | '.join(name for name, _, _ in COLUMNS)} | largest difference |",
        "|---|---|---|" + "---|" * (len(COLUMNS) + 1),
    ]  # fmt: skip


def main() -> None:
    """The table, on standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--once", nargs="*", default=["ties", "dare_ties", "dare_linear"], help="Methods that have one round."
    )
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--folder", type=Path, help="Where models are kept; a temporary one by default.")
    parser.add_argument("--write", type=Path, help="Markdown file.")
    options = parser.parse_args()
    peer = os.environ.get("RLHF_MERGEKIT_PYTHON")
    if not peer:
        raise SystemExit(
            "Set RLHF_MERGEKIT_PYTHON to the interpreter of an environment with mergekit (docs/merging.md)."
        )
    with tempfile.TemporaryDirectory() as temporary:
        root = options.folder or Path(temporary)
        folders = write_models(root, options.hidden, options.layers, getattr(torch, options.dtype))
        size = sum(file.stat().st_size for file in folders[0].glob("*.safetensors"))
        lines = head(options, size)
        print("\n".join(lines), flush=True)
        for threads in options.threads:
            rows = compared(folders, root, peer, threads, options)
            lines += rows
            print("\n".join(rows), flush=True)
    if options.write:
        options.write.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
