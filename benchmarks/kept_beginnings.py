"""What keeping keys and values along a search tree saves, on the reasoning world: every strategy with its beginnings kept, with them read
again, and on vLLM, whose own cache keeps them.

    rlhf run recipes/reasoning_search.yaml --until prm
    python -m benchmarks.kept_beginnings runs/reasoning_search --write docs/results/kept_beginnings.md

vLLM's attention on a CPU needs heads of 32, and the recipe's are 16 wide; so with it the run is one of
`name=two_heads stages.sft.model.init.num_attention_heads=2 stages.sft.model.init.num_key_value_heads=2`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from rlhf.config.engines import VLLMEngineConfig
from rlhf.config.policy import SamplingConfig
from rlhf.config.search import SearchConfig
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.data.reasoning.rewards import outcome_reward
from rlhf.files import write_text
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.manifest import machine, versions
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.vllm import VLLMEngine
from rlhf.search.configured_search import build_search, search_with
from rlhf.search.contract import SearchResult, total_cost

STRATEGIES: Sequence[dict[str, Any]] = (
    {"kind": "best_of_n", "num_samples": 8},
    {"kind": "beam", "width": 1, "samples": 8},
    {"kind": "beam", "width": 2, "samples": 4},
    {"kind": "mcts", "max_children": 8},
)


class ReadAgain:
    """The engine without what it keeps."""

    weight_version = 0

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self.context_length = engine.context_length

    def generate(self, prompts: Any, **how: Any) -> Any:
        return self._engine.generate(prompts, **how)

    def fingerprint(self) -> str:
        return self._engine.fingerprint()


def main() -> None:
    """Measure and print."""
    options = arguments()
    torch.set_num_threads(1)
    run = options.run
    policy = PolicyModel.from_pretrained(str(run / "sft/model"))
    prompts = list(GRPODataset(str(run / "world/test_prompts.jsonl"), policy.tokenizer))[: options.prompts]
    local = LocalEngine(policy)
    engines: dict[str, Any] = {"read again": ReadAgain(local), "kept": local}
    if options.vllm:
        engines["vLLM"] = VLLMEngine(policy, VLLMEngineConfig(python=options.vllm, kv_cache_gib=1))
    rows = []
    for strategy in STRATEGIES:
        config = SearchConfig(
            strategy=strategy,
            reward={"kind": "process", "source": str(run / "prm/model"), "aggregate": "product"},
            answer={"pattern": r"A(\d)\.$"},
        )
        answers: dict[str, list[list[int]]] = {}
        for name, engine in engines.items():
            results, wall, processor = measured(config, engine, policy, prompts, options.seed)
            answers[name] = [result.completion.tokens if result.completion else [] for result in results]
            rows.append(row(config.strategy.title, name, results, prompts, wall, processor))
            print(rows[-1], flush=True)
        same = sum(a == b for a, b in zip(answers["read again"], answers["kept"], strict=True))
        print(f"{config.strategy.title}: {same} of {len(prompts)} answers are the same to the token", flush=True)
        rows[-1 - bool(options.vllm)] += f" {same} of {len(prompts)} |"
        rows[-2 - bool(options.vllm)] += " |"
        if options.vllm:
            rows[-1] += " |"
    text = page(rows)
    write_text(options.write, text) if options.write else print(text)


def measured(
    config: SearchConfig, engine: Any, policy: PolicyModel, prompts: Sequence[Prompt], seed: int
) -> tuple[list[SearchResult], float, float]:
    """Results, seconds, and processor seconds of all processes."""
    scorer, helpers = build_search(config, [config.strategy], policy, engine)
    how = {"engine": engine, "scorer": scorer, "helpers": helpers, "sampling": SamplingConfig(max_new_tokens=64)}
    search_with(config, config.strategy, prompts[:8], seed=seed + 1, **how)  # vLLM starts, kernels are compiled
    wall, processor = time.perf_counter(), _processor_seconds()
    run = search_with(config, config.strategy, prompts, seed=seed, **how)
    return run.results, time.perf_counter() - wall, _processor_seconds() - processor


def row(
    title: str, name: str, results: Sequence[SearchResult], prompts: Sequence[Prompt], wall: float, processor: float
) -> str:
    """A line of the table."""
    cost, count = total_cost(results), len(results)
    texts = [result.completion.text if result.completion else "" for result in results]
    solved = outcome_reward(["" for _ in prompts], texts, answer=[str(prompt.columns["answer"]) for prompt in prompts])
    cells = [
        f"{sum(solved) / count:.3f}", f"{cost.policy_tokens / count:.0f}", f"{cost.prefill_tokens / count:.1f}",
        f"{cost.kept_tokens / count:.1f}", f"{processor:.1f}", f"{wall:.1f}",
    ]  # fmt: skip
    return f"| {title} | {name} | " + " | ".join(cells) + " |"


def page(rows: Sequence[str]) -> str:
    """The table and how it was made."""
    described = machine()
    lines = [
        "# Keys and values kept along a search tree",
        "",
        "<!-- written by benchmarks/kept_beginnings.py; do not edit by hand -->",
        "",
        f"Made by `{shlex.join(['python', '-m', 'benchmarks.kept_beginnings', *sys.argv[1:]])}` on {described['cpu']}, one thread, "
        "on a machine that did other things too; " + ", ".join(f"{name} {number}" for name, number in versions().items()) + ".",
        "",
        "Tokens are those of a problem; *read* and *kept* are prompts and beginnings that the policy read, and did not have to read "
        "because their keys and values were kept. Seconds are those of all problems, the reward model's included: processor seconds of "
        "every process, and those of a clock. What vLLM's cache kept it does not tell.",
        "",
        "| strategy | beginnings | solved | sampled | read | kept | processor seconds | seconds | same answers |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _processor_seconds() -> float:
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run with world, sft and prm")
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter of an environment with vLLM")
    parser.add_argument("--write", type=Path, help="the page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
