"""What `engine.speculate`, `engine.weights` and `engine.compiled` bring for a model and its prompts on this machine.

    python tools/rollout_options.py runs/quickstart_grpo/grpo/model runs/quickstart_grpo/world/prompts.jsonl \\
        --prompts 1 --samples 8 --max-new-tokens 40 --speculate '{"kind": "prompt_lookup", "max_rows": 8}'
    python tools/rollout_options.py ... --weights int8
    python tools/rollout_options.py ... --compiled

Pairs of requests, the plain engine and the one in question by turns, on one thread; processor seconds, and the median of their ratios.
Prompts are rows with a `prompt` or with `ids`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from rlhf.config.engines import LocalEngineConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, pack
from rlhf.models.policy import PolicyModel
from rlhf.rollout.engines import build_engine
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion
from rlhf.training.mismatch import probability_gap


def read_prompts(path: Path, policy: PolicyModel, count: int) -> list[Prompt]:
    """The first rows of a file."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:count]]
    return [
        Prompt(str(number), row.get("ids") or policy.tokenizer(row["prompt"])["input_ids"], "")
        for number, row in enumerate(rows)
    ]


def timed(engine: LocalEngine, prompts: list[Prompt], step: int, **how: Any) -> tuple[float, list[list[Completion]]]:
    """Processor seconds of a request, and what it gave."""
    engine.load_weights(step)
    start = time.process_time()
    groups = engine.generate(prompts, seed=0, rollout_index=step, **how)
    return time.process_time() - start, groups


def gap(policy: PolicyModel, prompts: list[Prompt], groups: list[list[Completion]]) -> float:
    """Mean difference of probabilities between the engine and the policy."""
    batch = pack([Group(p.ids, [Branch(c.tokens) for c in group]) for p, group in zip(prompts, groups, strict=True)])
    said = torch.tensor([number for group in groups for c in group for number in c.logprobs])
    return probability_gap(said, policy.logprobs(batch).cpu())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    for name, default in (("prompts", 16), ("samples", 8), ("max-new-tokens", 64), ("pairs", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--weights", default="same")
    parser.add_argument("--speculate", type=json.loads, default=None)
    parser.add_argument("--compiled", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    policy = PolicyModel.from_pretrained(asked.model)
    prompts = read_prompts(asked.file, policy, asked.prompts)
    settings = LocalEngineConfig.of(
        {"weights": asked.weights, "speculate": asked.speculate, "compiled": asked.compiled}
    )
    plain, other = LocalEngine(policy), build_engine(policy, settings)
    assert isinstance(other, LocalEngine)
    sampling = SamplingConfig(max_new_tokens=asked.max_new_tokens, temperature=asked.temperature)
    how: dict[str, Any] = {"num_samples": asked.samples, "sampling": sampling}
    timed(plain, prompts, 0, **how), timed(other, prompts, 0, **how)  # what is done once only
    pairs = [(timed(plain, prompts, n, **how), timed(other, prompts, n, **how)) for n in range(1, asked.pairs + 1)]
    (_, expected), (_, actual) = pairs[-1]
    tokens = [[[c.tokens for c in group] for group in groups] for groups in (expected, actual)]
    print(f"{sum(len(c) for group in tokens[0] for c in group)} tokens, the same in both: {tokens[0] == tokens[1]}")
    print(f"probabilities differ from the policy's by {gap(policy, prompts, actual):.2g} on average")
    for name, value in other.figures.items():
        print(f"{name} {value:.3f}")
    seconds = [statistics.median(pair[side][0] for pair in pairs) for side in (0, 1)]
    ratio = statistics.median(first[0] / second[0] for first, second in pairs)
    print(f"{seconds[0]:.3f} -> {seconds[1]:.3f} processor seconds, {ratio:.2f}x")


if __name__ == "__main__":
    main()
