"""What rewards and a reference in Ray's actors cost: seconds of a rollout's scores against those of the process that trains.

    python benchmarks/scoring_pools.py                                        about five minutes
    python benchmarks/scoring_pools.py --serve --write docs/results/scoring-pools.md

A rollout has 384 completions of 40 random tokens, four for each of 96 prompts of 20. The reward model and the reference are Llamas with random
weights; the function burns 2 ms of a processor for each completion. With `--serve`, Ray Serve is asked by a reward of `kind: service`,
over HTTP, through a server in this process. Each way has one thread for each process and is asked in turns with the others; the first
rollout, which starts processes and loads models, is not counted. Ray runs its workers at niceness 15 (`RAY_worker_niceness`), so other
programs on the machine cost actors more than they cost this process.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf.config.launch import RayLaunchConfig
from rlhf.config.model import ModelConfig
from rlhf.config.serving import ServingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group
from rlhf.distributed.ray_cluster import RayCluster
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.pipeline.manifest import machine
from rlhf.rewards.factory import build_reward
from rlhf.rewards.reward_pool import pooled_rewards
from rlhf.rewards.types import TextCompletion
from rlhf.training.experience import RolloutExperience
from rlhf.training.frozen_models import logprobs_of
from rlhf.training.reference_pool import PooledReference

SIZES = {"1M": (128, 4), "20M": (448, 8)}
"""Width and layers of a Llama with about so many weights, with the embedded model's vocabulary."""
PROMPTS, SAMPLES, PROMPT_TOKENS, COMPLETION_TOKENS = 96, 4, 20, 40
MICROBATCH = 4096
"""Tokens of a micro-batch of the reference, so that a rollout has several."""
BURNED_SECONDS = 0.002


def burn(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """A function that takes its time."""
    until = time.process_time() + BURNED_SECONDS * len(completions)
    while time.process_time() < until:
        pass
    return [float(len(said)) for said in completions]


def random_policy(width: int, layers: int, tokenizer: Any) -> PolicyModel:
    """A Llama with random weights."""
    config = LlamaConfig(
        hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=8, vocab_size=len(tokenizer), max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip
    return PolicyModel(LlamaForCausalLM(config).eval(), tokenizer)


def rollout(tokenizer: Any, *, seed: int) -> tuple[list[Prompt], list[TextCompletion]]:
    """Prompts and completions of random tokens."""
    rng, prompts, completions = random.Random(seed), [], []
    for number in range(PROMPTS):
        ids = [rng.randrange(10, len(tokenizer)) for _ in range(PROMPT_TOKENS)]
        for sample in range(SAMPLES):
            tokens = [rng.randrange(10, len(tokenizer)) for _ in range(COMPLETION_TOKENS)]
            prompts.append(Prompt(f"{seed}-{number}", ids, str(tokenizer.decode(ids))))
            completions.append(TextCompletion(str(tokenizer.decode(tokens)), tokens=tokens, sample=sample))
    return prompts, completions


def measured(ways: dict[str, Callable[[int], Any]], *, rounds: int) -> dict[str, list[float]]:
    """Way -> seconds of each rollout, the ways in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way(number)
            if number:
                seconds[name].append(time.perf_counter() - began)
    return seconds


@contextmanager
def cluster_of(role: str, replicas: int) -> Iterator[RayCluster]:
    """A local Ray, or the one that is there, with places for so many actors."""
    cluster = RayCluster(RayLaunchConfig.of({"launcher": "ray", "pools": {role: {"replicas": replicas, "cpus": 0.2}}}))
    cluster.open()
    try:
        yield cluster
    finally:
        cluster.close()


@contextmanager
def served(folder: str) -> Iterator[str]:
    """A server with two replicas of Ray Serve; its address."""
    uvicorn = importlib.import_module("uvicorn")
    app = importlib.import_module("rlhf.serving").create_app(
        folder, config=ServingConfig.of({"ray": {"replicas": 2, "cpus": 0.2}})
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", loop="asyncio"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1/score"
    finally:
        server.should_exit = True
        thread.join()
        importlib.import_module("ray.serve").shutdown()  # the next measurement starts a Ray of its own


def rewards(spec: dict[str, Any], tokenizer: Any, *, rounds: int, serve: bool) -> dict[str, list[float]]:
    """A reward in this process, in one and two actors, and in Ray Serve."""
    rollouts = [rollout(tokenizer, seed=seed) for seed in range(rounds + 1)]
    with ExitStack() as stack:
        scorers = {"this process": build_reward(spec, tokenizer=tokenizer)}
        for replicas in (1, 2):
            cluster = stack.enter_context(cluster_of("reward", replicas))
            pool = functools.partial(pooled_rewards, cluster, cluster.pools["reward"])
            scorer: Any = build_reward(spec, tokenizer=tokenizer, pool=pool)
            stack.callback(scorer.close)
            scorers[f"pool, {replicas}"] = scorer
        if serve:
            url = stack.enter_context(served(spec["source"]))
            scorers["Ray Serve, 2"] = build_reward({"kind": "service", "url": url})
        ways = {name: lambda number, scorer=scorer: scorer.score(*rollouts[number]) for name, scorer in scorers.items()}
        return measured(ways, rounds=rounds)


def references(folder: str, policy: PolicyModel, *, rounds: int) -> dict[str, list[float]]:
    """A reference in this process, and in one and two actors."""
    experiences = []
    for seed in range(rounds + 1):
        prompts, completions = rollout(policy.tokenizer, seed=seed)
        groups = [
            Group(prompts[first].ids, [Branch(said.tokens) for said in completions[first : first + SAMPLES]])
            for first in range(0, len(prompts), SAMPLES)
        ]
        experiences.append(RolloutExperience(groups))
    policy.choose_path(experiences[0].groups[:3])
    with ExitStack() as stack:
        models: dict[str, Any] = {"this process": policy}
        for replicas in (1, 2):
            cluster = stack.enter_context(cluster_of("reference", replicas))
            pooled = PooledReference(
                cluster, cluster.pools["reference"], ModelConfig.of({"path": folder}), seed=0, same_as=policy, autocast="none", notify=print
            )  # fmt: skip
            stack.callback(pooled.close)
            models[f"pool, {replicas}"] = pooled
        ways = {
            name: lambda number, model=model: logprobs_of(
                model, experiences[number], temperature=1.0, device=policy.device, max_tokens=MICROBATCH
            )
            for name, model in models.items()
        }
        return measured(ways, rounds=rounds)


def tables(*, rounds: int, serve: bool) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """What is scored, and way -> seconds."""
    tokenizer = PolicyModel.from_pretrained("embedded").tokenizer
    with tempfile.TemporaryDirectory() as work:
        for size, (width, layers) in SIZES.items():
            policy = random_policy(width, layers, tokenizer)
            RewardModel.from_policy(policy, seed=1).save_pretrained(Path(work) / f"reward-{size}")
            policy.save_pretrained(Path(work) / f"policy-{size}")
            spec = {"kind": "learned", "source": f"{work}/reward-{size}"}
            yield f"reward model, {size}", rewards(spec, tokenizer, rounds=rounds, serve=serve)
            policy = PolicyModel.from_pretrained(f"{work}/policy-{size}").requires_grad_(False)
            yield f"reference, {size}", references(f"{work}/policy-{size}", policy, rounds=rounds)
        function = {"kind": "function", "function": f"{__file__}:burn"}
        yield "function, 2 ms a completion", rewards(function, tokenizer, rounds=rounds, serve=False)


def page(found: dict[str, dict[str, list[float]]], command: str) -> str:
    """The table."""
    facts = machine()
    lines = [
        "# Rewards and a reference in Ray's actors: what they cost",
        "",
        "<!-- written by benchmarks/scoring_pools.py; do not edit by hand -->",
        "",
        f"Made by `{command}` on {facts['cpu']}, {facts['cores']} cores that other programs used as well (load average "
        f"{os.getloadavg()[2]:.0f} in the last quarter of an hour), one thread for each process; Ray {metadata.version('ray')}, torch "
        f"{metadata.version('torch')}.",
        "",
        *(line.strip() for line in (__doc__ or "").strip().split("\n\n")[-1].splitlines()),
        "",
        "| scored | where | rollouts | seconds of a rollout, median | quarter to three quarters | fewest | of this process's (medians) |",
        "|---|---|---|---|---|---|---|",
    ]
    for what, ways in found.items():
        own = statistics.median(ways["this process"])
        for where, seconds in ways.items():
            low, middle, high = statistics.quantiles(seconds, n=4)
            lines.append(
                f"| {what} | {where} | {len(seconds)} | {middle:.3f} | {low:.3f} to {high:.3f} | {min(seconds):.3f} | {middle / own:.2f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print or write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--serve", action="store_true", help="ask Ray Serve as well")
    parser.add_argument("--write", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    write = f" --write {chosen.write}" if chosen.write else ""
    serve = " --serve" if chosen.serve else ""
    found: dict[str, dict[str, list[float]]] = {}
    for what, ways in tables(rounds=chosen.rounds, serve=chosen.serve):
        found[what] = ways
        print(what, {where: round(statistics.median(seconds), 3) for where, seconds in ways.items()}, flush=True)
        if chosen.write:
            text = page(found, f"python benchmarks/scoring_pools.py{serve}{write}")
            chosen.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
