"""Sampling side by side: the local engine against ``generate`` of transformers, on the same model, prompts and limits.

    python benchmarks/generation.py --rows 96 --group 1 --threads 1

Greedy completions of both are compared first; a benchmark of different work would say nothing. Then both sample at
temperature 1, in turns, and the table gives the median of several rounds in processor seconds (wall time on a shared
machine says little). Only real tokens count: what ``generate`` computes for rows that have ended is its own affair,
and so is padding.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.data.world.build import build_world
from rlhf.models.attention import native_attention
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.stopping import eos_ids


@dataclass(frozen=True, slots=True)
class Round:
    """One side's completions."""

    tokens: list[list[int]]
    """EOS included, nothing behind it."""
    seconds: float
    """Processor time."""

    @property
    def speed(self) -> float:
        """Real tokens a processor second."""
        return sum(map(len, self.tokens)) / self.seconds


def main() -> None:
    """Measure and print."""
    args = arguments()
    torch.set_num_threads(args.threads)
    policy = PolicyModel.from_pretrained(args.model)
    prompts = load_prompts(args.prompts, policy)[: max(1, args.rows // args.group)]
    sampling = SamplingConfig(max_new_tokens=args.max_new_tokens)
    greedy = sampling.updated(temperature=0.0)
    engine = LocalEngine(policy, max_rows=args.rows, autocast=args.autocast)

    ours = sample_ours(engine, prompts, args.group, greedy, step=0)
    theirs = sample_theirs(policy, prompts, args.group, greedy, args.autocast)
    same = sum(a == b for a, b in zip(ours.tokens, theirs.tokens, strict=True))
    print(f"greedy: {same} of {len(ours.tokens)} completions are the same ({args.autocast} autocast)")
    assert args.autocast != "none" or same == len(ours.tokens), "in float32 the two sides must do the same work"

    sides: dict[str, Callable[[int], Round]] = {
        "rlhf": lambda step: sample_ours(engine, prompts, args.group, sampling, step=step),
        "transformers": lambda step: sample_theirs(policy, prompts, args.group, sampling, args.autocast),
    }
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for step in range(args.rounds):
        for name, run in sides.items():
            speeds[name].append(run(step).speed)
    ratio = statistics.median(a / b for a, b in zip(*speeds.values(), strict=True))
    lengths = [len(tokens) for tokens in ours.tokens]
    work = f"{len(prompts)} prompts x {args.group}, up to {args.max_new_tokens} new tokens"
    print(f"{work} (greedy mean {statistics.mean(lengths):.1f}), {args.threads} threads, {args.rounds} rounds")
    for name, found in speeds.items():
        middle = statistics.median(found)
        print(f"  {name:13} {middle:8,.0f} tokens a processor second ({min(found):,.0f} to {max(found):,.0f})")
    print(f"  ratio         {ratio:8.2f} (median over rounds)")


def sample_ours(
    engine: LocalEngine, prompts: list[Prompt], group: int, sampling: SamplingConfig, *, step: int
) -> Round:
    """The local engine."""
    start = time.process_time()
    groups = engine.generate(prompts, num_samples=group, sampling=sampling, seed=0, step=step)
    seconds = time.process_time() - start
    return Round([completion.tokens for found in groups for completion in found], seconds)


@torch.no_grad()
def sample_theirs(
    policy: PolicyModel, prompts: list[Prompt], group: int, sampling: SamplingConfig, autocast: str
) -> Round:
    """``generate`` on left-padded prompts, with scaled-dot-product attention."""
    start = time.process_time()
    repeated = [prompt.ids for prompt in prompts for _ in range(group)]
    longest = max(map(len, repeated))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in repeated])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in repeated])
    how = (
        {"do_sample": True, "temperature": sampling.temperature, "top_k": 0}
        if sampling.temperature
        else {"do_sample": False}
    )
    ends = eos_ids(policy.model, policy.tokenizer)
    with native_attention(policy.model, "sdpa"), torch.autocast("cpu", torch.bfloat16, enabled=autocast != "none"):
        out = policy.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=sampling.max_new_tokens,
            pad_token_id=0,
            eos_token_id=ends,
            **how,
        )
    rows = out[:, longest:].tolist()
    seconds = time.process_time() - start
    cuts = [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in rows]
    return Round([row[:cut] for row, cut in zip(rows, cuts, strict=True)], seconds)


def load_prompts(source: str | None, policy: PolicyModel) -> list[Prompt]:
    """The embedded world's prompts, or those of a file."""
    if source is not None:
        return list(GRPODataset(source, policy.tokenizer))
    with tempfile.TemporaryDirectory() as folder:
        build_world(0, Path(folder))
        return list(GRPODataset(str(Path(folder) / "prompts.jsonl"), policy.tokenizer))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--prompts", help="a file of prompts; by default those of the embedded world")
    parser.add_argument("--rows", type=int, default=96, help="completions sampled side by side")
    parser.add_argument("--group", type=int, default=1, help="completions for each prompt")
    parser.add_argument("--max-new-tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--autocast", choices=["none", "bfloat16"], default="none")
    return parser.parse_args()


if __name__ == "__main__":
    main()
