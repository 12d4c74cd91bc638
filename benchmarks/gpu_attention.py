"""A pass forward and back over packed pairs and groups on a GPU, by FlexAttention and by torch's own attention; and sampling.

    python -m benchmarks.gpu_attention                       0.5B with random weights, bfloat16 autocast, sequences of 1,200 tokens
    python -m benchmarks.gpu_attention --prompt 3000         longer ones
    python -m benchmarks.gpu_attention --profile             also which operations the time goes into

The model is that of `make bench-gpu`, made on the spot. Seconds are medians of five passes after two; docs/devices.md has what was measured.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.peer.cases import gpu_cases
from benchmarks.peer.driver import build_model
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, pack
from rlhf.models.adapters import compile_backbone
from rlhf.models.flex_choice import Use, flex_attention_used
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine

COMPLETION = 500
WARM_UP, TIMED = 2, 5
SAMPLED_PROMPT, SAMPLED_TOKENS = 300, 128


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each batch and kind of attention, and one for sampling."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=700, help="tokens of a prompt; completions have 500")
    parser.add_argument("--compile", action="store_true", help="the backbone by torch.compile, as `model.compile` asks")
    parser.add_argument("--profile", action="store_true", help="print the operations of a pass that take longest")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU here, and this compares kernels for one.")
    policy = PolicyModel.from_pretrained(str(build_model(gpu_cases(device="cuda")[0])))
    numbers = torch.Generator().manual_seed(0)
    if args.compile:
        compile_backbone(policy.model)
    batches = {
        "4 pairs": [_group(args.prompt, 2, numbers) for _ in range(4)],
        "2 groups of 8": [_group(args.prompt, 8, numbers) for _ in range(2)],
    }
    print(torch.cuda.get_device_name(), f"torch {torch.__version__}", sep=", ")
    for name, groups in batches.items():
        tokens = pack(groups).num_tokens
        for use, attention in (("always", "FlexAttention"), ("never", "torch's own")):
            seconds, peak = _measured(policy, groups, use)
            print(
                f"{name}, {tokens} tokens, {attention}: {seconds:.3f} s, {tokens / seconds:.0f} tokens/s, {peak:.0f} MiB"
            )
        if args.profile:
            _print_profile(name, functools.partial(_pass, policy, groups, "never"))
    engine = LocalEngine(policy, autocast="bfloat16")
    prompts = [Prompt(str(n), _tokens(SAMPLED_PROMPT, numbers), "") for n in range(4)]
    sampling = SamplingConfig(max_new_tokens=SAMPLED_TOKENS)
    for _ in range(WARM_UP):
        began = time.perf_counter()
        completions = engine.generate(prompts, num_samples=8, sampling=sampling, seed=0, rollout_index=0)
        taken = time.perf_counter() - began
    count = sum(len(completion.tokens) for group in completions for completion in group)
    print(f"sampling, 4 prompts 8 times: {count} tokens, {count / taken:.0f} tokens/s")


def _measured(policy: PolicyModel, groups: list[Group], use: Use) -> tuple[float, float]:
    """Seconds of a pass, and MiB at its highest."""
    taken = []
    for number in range(WARM_UP + TIMED):
        if number == WARM_UP:
            torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        began = time.perf_counter()
        _pass(policy, groups, use)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
        policy.model.zero_grad(set_to_none=True)
    return statistics.median(taken[WARM_UP:]), torch.cuda.max_memory_allocated() / 2**20


def _pass(policy: PolicyModel, groups: list[Group], use: Use) -> None:
    """Forward and back."""
    with flex_attention_used(use), torch.autocast("cuda", dtype=torch.bfloat16):
        (-policy.score(pack(groups)).logprobs.mean()).backward()


def _print_profile(name: str, work: Callable[[], object]) -> None:
    """Operations by their time on the GPU, and by the processor's."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=kinds) as profile:
        work()
        torch.cuda.synchronize()
    for column in ("self_device_time_total", "self_cpu_time_total"):
        print(f"{name}, by {column}")
        print(profile.key_averages().table(sort_by=column, row_limit=18, max_name_column_width=60))


def _group(prompt: int, completions: int, numbers: torch.Generator) -> Group:
    return Group(_tokens(prompt, numbers), [Branch(_tokens(COMPLETION, numbers)) for _ in range(completions)])


def _tokens(count: int, numbers: torch.Generator) -> list[int]:
    return torch.randint(10, 30_000, (count,), generator=numbers).tolist()


if __name__ == "__main__":
    main()
