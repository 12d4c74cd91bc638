"""What engines in Ray's actors cost: a rollout against the local engine's, a push of weights by size, a restart.

    python benchmarks/ray_engines.py                                        about five minutes
    python benchmarks/ray_engines.py --write docs/results/ray-engines.md

A rollout is the quickstart's: its prompts, 96 at a time, up to 40 tokens, with a model that `sft` trained for 20 steps. Before each one the
weights are changed, so a pool is given them and acknowledges them in the measured time. Engines take turns, and all have one thread. Seconds
of the processor are those of this process and of the engines together: on a busy machine they say more than the clock. A push
is measured from the call until every engine has acknowledged version and checksum, computed from its own memory. A restart is measured from
the kill of an idle engine until the next one has acknowledged the current weights.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf.config.engines import LocalEngineConfig
from rlhf.config.launch import EnginePoolConfig, RayLaunchConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.distributed.actor_pool import ActorPool
from rlhf.distributed.ray_cluster import RayCluster
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.manifest import machine
from rlhf.rollout.engine_pool import PooledEngine
from rlhf.rollout.engine_worker import build_worker
from rlhf.rollout.local import LocalEngine
from rlhf.training.log import read_jsonl

ROOT = Path(__file__).resolve().parent.parent
SIZES = {"1M": (128, 4), "20M": (448, 8), "100M": (768, 14)}
"""Width and layers of a Llama with about so many weights, with a vocabulary of 1,024."""
MEASURED = "benchmarks.ray_engines:build_measured"
POOLS: dict[str, dict[str, Any]] = {
    "1 in Ray": {"replicas": 1},
    "2 in Ray, `prompts_per_unit: 24`": {"replicas": 2, "prompts_per_unit": 24},
    "2 in Ray, `prompts_per_unit: 48`": {"replicas": 2, "prompts_per_unit": 48},
}
WAYS = ("object_store", "folder")


def build_measured(*arguments: Any) -> Any:
    """An engine that also says how many seconds of the processor it took so far."""
    worker = build_worker(*arguments)
    worker.processor_seconds = time.process_time
    return worker


@contextmanager
def pool_of(policy: Any, cluster: RayCluster, **settings: Any) -> Iterator[PooledEngine]:
    """Engines with these settings on a cluster that is there."""
    engine = PooledEngine(
        cluster,
        EnginePoolConfig(cpus=0.2, start_timeout_seconds=900, **settings),
        policy,
        LocalEngineConfig(),
        worker=MEASURED,
    )
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def cluster_of(replicas: int) -> Iterator[RayCluster]:
    """A local Ray with places for so many engines."""
    cluster = RayCluster(RayLaunchConfig(launcher="ray", pools={"engines": {"replicas": replicas, "cpus": 0.2}}))
    try:
        cluster.open()
        yield cluster
    finally:
        cluster.close()


def change(policy: Any) -> None:
    """Other weights, as after a step."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.0001)


def quickstart(folder: Path) -> tuple[PolicyModel, list[Prompt]]:
    """The policy and the prompts of the quickstart's PPO."""
    command = [sys.executable, "-m", "rlhf", "run", "recipes/quickstart.yaml", "--until", "sft", "--quiet"]
    subprocess.run([*command, "stages.sft.max_steps=20", "device=cpu", f"output_dir={folder}"], cwd=ROOT, check=True)
    policy = PolicyModel.from_pretrained(folder / "quickstart" / "sft" / "model")
    rows = read_jsonl(folder / "quickstart" / "world" / "prompts.jsonl")
    texts = [row["prompt"] for row in rows]
    return policy, [Prompt(text, policy.tokenizer(text)["input_ids"], text) for text in texts]


@dataclass
class Measured:
    """Of one kind of engine."""

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    """Of this process and of the engines'."""


def _pool_of(engine: PooledEngine) -> ActorPool:
    """Its actors, which take the newest weights before they do anything else."""
    return engine._holding(engine._newest())


def processor_seconds(engine: Any) -> float:
    """So far."""
    theirs = _pool_of(engine).each("processor_seconds") if isinstance(engine, PooledEngine) else []
    return time.process_time() + sum(theirs)


def rollouts(folder: Path, *, rounds: int) -> dict[str, Measured]:
    """Engine -> seconds of each rollout, weights included."""
    policy, prompts = quickstart(folder)
    measured: dict[str, Measured] = {}
    with ExitStack() as stack:
        cluster = stack.enter_context(cluster_of(sum(settings["replicas"] for settings in POOLS.values())))
        engines: dict[str, Any] = {"local": LocalEngine(policy)}
        first = 0
        for name, settings in POOLS.items():
            part = copy.copy(cluster)  # each pool in places of its own: it counts its replicas from 0
            part._bundle = functools.partial(lambda first, role, replica: first + replica, first)  # type: ignore[method-assign]
            first += settings["replicas"]
            engines[name] = stack.enter_context(pool_of(policy, part, **settings))
        for number in range(rounds + 2):
            change(policy)
            asked = prompts[number * 96 % 1920 :][:96]
            for name, engine in engines.items():
                before, began = processor_seconds(engine), time.perf_counter()
                engine.load_weights(number)
                engine.generate(
                    asked, num_samples=1, sampling=SamplingConfig(max_new_tokens=40), seed=1, rollout_index=number
                )
                took = time.perf_counter() - began
                if number >= 2:  # the first ones start and warm up
                    one = measured.setdefault(name, Measured())
                    one.clock.append(took)
                    one.processor.append(processor_seconds(engine) - before)
    return measured


def random_policy(width: int, layers: int, tokenizer: Any) -> PolicyModel:
    """A Llama with random weights."""
    config = LlamaConfig(
        hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=8, vocab_size=1024, max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip
    return PolicyModel(LlamaForCausalLM(config).eval(), tokenizer)


def settled(engine: PooledEngine) -> None:
    """Every engine has acknowledged the newest weights."""
    _pool_of(engine).each("started")


def pushes(*, rounds: int) -> list[tuple[str, int, str, float, float]]:
    """(size, weights, way, seconds of a push to two engines, seconds of a restart of one)."""
    tokenizer = PolicyModel.from_pretrained("embedded").tokenizer
    rows = []
    with cluster_of(2) as cluster:
        for size, (width, layers) in SIZES.items():
            policy = random_policy(width, layers, tokenizer)
            for way in WAYS:
                with pool_of(policy, cluster, replicas=2, weights=way) as engine:
                    settled(engine)
                    took = []
                    for version in range(1, rounds + 1):
                        change(policy)
                        began = time.perf_counter()
                        engine.load_weights(version)
                        settled(engine)
                        took.append(time.perf_counter() - began)
                with pool_of(policy, cluster, replicas=1, weights=way) as engine:
                    settled(engine)
                    again = []
                    for _ in range(max(2, rounds // 3)):
                        began = time.perf_counter()
                        engine.restart()
                        settled(engine)
                        again.append(time.perf_counter() - began)
                rows.append((size, policy.num_parameters, way, statistics.median(took), statistics.median(again)))
                print(rows[-1], flush=True)
            del policy
            gc.collect()
    return rows


def page(sampled: dict[str, Measured], pushed: Sequence[tuple[str, int, str, float, float]], command: str) -> str:
    """Both tables."""
    facts = machine()
    lines = [
        "# Engines in Ray's actors: what they cost",
        "",
        "<!-- written by benchmarks/ray_engines.py; do not edit by hand -->",
        "",
        f"Made by `{command}` on {facts['cpu']}, {facts['cores']} cores that other programs used as well; "
        f"Ray {metadata.version('ray')}, torch {metadata.version('torch')}.",
        "",
        *(line.strip() for line in (__doc__ or "").strip().split("\n\n")[-1].splitlines()),
        "",
        "| engines | rollouts | clock, s: fewest | median | processor, s: fewest | median | of the local engine's processor |",
        "|---|---|---|---|---|---|---|",
    ]
    local = statistics.median(sampled["local"].processor)
    for name, one in sampled.items():
        middle = statistics.median(one.processor)
        lines.append(
            f"| {name} | {len(one.clock)} | {min(one.clock):.3f} | {statistics.median(one.clock):.3f} | {min(one.processor):.3f} | "
            f"{middle:.3f} | {middle / local:.2f} |"
        )
    lines += [
        "",
        "| weights | MiB in float32 | way | seconds of a push to two engines | seconds of a restart |",
        "|---|---|---|---|---|",
    ]
    for _, weights, way, push, restart in pushed:
        lines.append(f"| {weights / 1e6:.1f}M | {weights * 4 / 2**20:.0f} | {way} | {push:.2f} | {restart:.1f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print or write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--write", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        sampled = rollouts(Path(folder), rounds=chosen.rounds)
    for name, seconds in sampled.items():
        print(name, [round(number, 3) for number in seconds.processor], flush=True)
    pushed = pushes(rounds=max(3, chosen.rounds // 5))
    write = f" --write {chosen.write}" if chosen.write else ""
    text = page(sampled, pushed, f"python benchmarks/ray_engines.py --rounds {chosen.rounds}{write}")
    if chosen.write:
        chosen.write.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
