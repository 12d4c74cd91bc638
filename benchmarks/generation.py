"""Sampling side by side: the local engine against ``generate`` of transformers, on the same model, prompts and lengths.

    python benchmarks/generation.py --model-shape A --prompts 8 --group 8 --dtype bfloat16

The model has random weights of a given shape, made on the spot; prompts and lengths of completions are log-normal. Every row is
forced to the same length on both sides: no token ends a text, a row ends where its length says. Greedy completions are compared
first, in float32 (a benchmark of different work would say nothing). Then both sides sample at temperature 1, in turns, and the
table gives medians over rounds in processor seconds: wall time on a shared machine says little. Only real tokens count: what
``generate`` computes for rows that have ended is its own affair, and so is padding.

``bfloat16`` is what TRL does: float32 weights under autocast. ``--cast-peer`` gives the peer a bfloat16 copy of the weights as
well, which is the fastest that it has.
"""

from __future__ import annotations

import argparse
import copy
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, StoppingCriteria

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.models.attention import native_attention
from rlhf.models.policy import PolicyModel
from rlhf.rollout.continuous_batching import SamplingRun
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.packed import PackedDecoder

SHAPES = {
    "A": LlamaConfig(
        vocab_size=32_000, hidden_size=256, intermediate_size=688, num_hidden_layers=6, num_attention_heads=8,
        max_position_embeddings=2048, tie_word_embeddings=False,
    ),
    "B": LlamaConfig(
        vocab_size=50_000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
        max_position_embeddings=2048, tie_word_embeddings=True,
    ),
}  # fmt: skip
"""21M and 124M parameters: models A and B of the project's measurements."""
SIGMA = 0.6
"""Of the log-normal lengths."""
PHASES = {
    "prefill": (PackedDecoder, "prefill"),
    "decode": (PackedDecoder, "step"),
    "compact": (PackedDecoder, "keep"),
    "all": (SamplingRun, "completions"),
}


@dataclass(frozen=True, slots=True)
class Round:
    """One side's completions."""

    tokens: list[list[int]]
    seconds: float
    """Processor time."""

    @property
    def speed(self) -> float:
        """Real tokens a processor second."""
        return sum(map(len, self.tokens)) / self.seconds


class ForcedEngine(LocalEngine):
    """Ends each row where it is told to."""

    lengths: np.ndarray

    def _limits(self, requests: Sequence[tuple[int, int]], most: int) -> np.ndarray:
        return self.lengths


class ForcedLengths(StoppingCriteria):
    """The same for ``generate``."""

    def __init__(self, lengths: np.ndarray, longest_prompt: int) -> None:
        self.ends = torch.from_numpy(lengths) + longest_prompt

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: object) -> Tensor:  # type: ignore[override]
        return input_ids.shape[1] >= self.ends


def main() -> None:
    """Measure and print."""
    args = arguments()
    torch.set_num_threads(args.threads)
    rng = np.random.default_rng(args.seed)
    policy = build_policy(args.model_shape)
    prompts = build_prompts(policy, log_normal(rng, args.prompts, mean=args.prompt_mean, most=1024), rng)
    lengths = log_normal(rng, args.prompts * args.group, mean=args.length_mean, most=args.max_new_tokens)
    sampling = SamplingConfig(max_new_tokens=args.max_new_tokens)
    work = Work(policy, prompts, args.group, lengths)

    if not args.skip_check:
        greedy = sampling.updated(temperature=0.0)
        ours = work.ours(ForcedEngine(policy), greedy, step=0)
        theirs = work.theirs(policy.model, greedy, autocast=False)
        same = sum(a == b for a, b in zip(ours.tokens, theirs.tokens, strict=True))
        print(f"greedy, float32: {same} of {len(ours.tokens)} completions are the same")
        assert same == len(ours.tokens), "the two sides must do the same work"

    half = args.dtype == "bfloat16"
    engine = ForcedEngine(policy, autocast="bfloat16" if half else "none")
    clock = Clock()
    sides: dict[str, Callable[[int], Round]] = {
        "rlhf": lambda step: work.ours(engine, sampling, step=step),
        "transformers": lambda step: work.theirs(policy.model, sampling, autocast=half),
    }
    if args.own_code:
        plain = ForcedEngine(policy, autocast="bfloat16" if half else "none", fused=False)
        sides["rlhf, own code"] = lambda step: work.ours(plain, sampling, step=step)
    if args.cast_peer:
        cast = copy.deepcopy(policy.model).to(torch.bfloat16)
        sides["transformers, cast"] = lambda step: work.theirs(cast, sampling, autocast=False)
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for step in range(args.rounds):
        for name, run in sides.items():
            with clock.running(on=name == "rlhf"):
                speeds[name].append(run(step).speed)
    report(args, lengths, prompts, speeds, clock)


def report(
    args: argparse.Namespace, lengths: np.ndarray, prompts: list[Prompt], speeds: dict[str, list[float]], clock: Clock
) -> None:
    """The table."""
    size = f"prompts of {statistics.mean(len(p.ids) for p in prompts):.0f} tokens, {lengths.mean():.0f} new ones"
    print(
        f"shape {args.model_shape}, {args.dtype}, {args.prompts} x {args.group}, {size}, {args.threads} threads, {args.rounds} rounds"
    )
    for name, speeds_of_engine in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(speeds["rlhf"], speeds_of_engine, strict=True))
        spread = f"({min(speeds_of_engine):,.0f} to {max(speeds_of_engine):,.0f})"
        print(
            f"  {name:19} {statistics.median(speeds_of_engine):8,.0f} tokens a processor second {spread:18} ours / this {ratio:6.2f}"
        )
    total = clock.seconds["all"]
    parts = {name: seconds / total for name, seconds in clock.seconds.items() if name != "all"}
    parts["sampling and the rest"] = 1 - sum(parts.values())
    print("  of our time: " + ", ".join(f"{name} {share:.0%}" for name, share in parts.items()))
    steps = clock.calls["decode"]
    print(f"  {steps / args.rounds:.0f} decoding steps a round, {1e3 * clock.seconds['decode'] / steps:.2f} ms each")


@dataclass(frozen=True, slots=True)
class Work:
    """What both sides do."""

    policy: PolicyModel
    prompts: list[Prompt]
    group: int
    lengths: np.ndarray

    def ours(self, engine: ForcedEngine, sampling: SamplingConfig, *, step: int) -> Round:
        """The local engine."""
        engine.lengths = self.lengths
        start = time.process_time()
        groups = engine.generate(self.prompts, num_samples=self.group, sampling=sampling, seed=0, rollout_index=step)
        return Round([c.tokens for group in groups for c in group], time.process_time() - start)

    @torch.no_grad()
    def theirs(self, model: PreTrainedModel, sampling: SamplingConfig, *, autocast: bool) -> Round:
        """``generate`` on left-padded prompts, with scaled-dot-product attention."""
        start = time.process_time()
        repeated = [prompt.ids for prompt in self.prompts for _ in range(self.group)]
        longest = max(map(len, repeated))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in repeated])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in repeated])
        how = {"do_sample": True, "top_k": 0} if sampling.temperature else {"do_sample": False}
        with native_attention(model, "sdpa"), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=sampling.max_new_tokens,
                pad_token_id=0,
                eos_token_id=None,
                stopping_criteria=[ForcedLengths(self.lengths, longest)],
                **how,
            )
        seconds = time.process_time() - start
        rows = out[:, longest:].tolist()
        return Round([row[:n] for row, n in zip(rows, self.lengths, strict=True)], seconds)


class Clock:
    """Processor seconds inside the parts of our engine."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.calls = dict.fromkeys(PHASES, 0)
        self.on = False
        for name, (owner, method) in PHASES.items():
            setattr(owner, method, self._timed(name, getattr(owner, method)))

    def running(self, *, on: bool) -> Clock:
        """Count inside ``with`` or do not."""
        self.on = on
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.on = False

    def _timed(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        def run(*args: object, **kwargs: object) -> object:
            start = time.process_time()
            returned = method(*args, **kwargs)
            if self.on:
                self.seconds[name] += time.process_time() - start
                self.calls[name] += 1
            return returned

        return run


def build_policy(shape: str) -> PolicyModel:
    """Random weights, and a tokenizer whose end token the model cannot say."""
    config = SHAPES[shape]
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    model.generation_config.eos_token_id = None
    words = {f"w{number}": number for number in range(config.vocab_size)} | {"</s>": config.vocab_size}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")))
    tokenizer.eos_token = "</s>"
    model.config.eos_token_id = None
    return PolicyModel(model, tokenizer)


def build_prompts(policy: PolicyModel, lengths: np.ndarray, rng: np.random.Generator) -> list[Prompt]:
    """Random ids."""
    vocabulary = policy.model.config.vocab_size
    return [Prompt(f"prompt-{i}", rng.integers(0, vocabulary, n).tolist(), "") for i, n in enumerate(lengths)]


def log_normal(rng: np.random.Generator, count: int, *, mean: float, most: int) -> np.ndarray:
    """int64 [count] lengths of this mean before the cut at ``most``."""
    lengths = rng.lognormal(math.log(mean) - SIGMA**2 / 2, SIGMA, count)
    return np.clip(lengths.round(), 1, most).astype(np.int64)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-shape", choices=sorted(SHAPES), default="A")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=8, help="completions for each prompt")
    parser.add_argument("--prompt-mean", type=float, default=160, help="tokens")
    parser.add_argument("--length-mean", type=float, default=64, help="new tokens")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--cast-peer", action="store_true", help="also a peer whose weights are bfloat16")
    parser.add_argument("--own-code", action="store_true", help="also our engine through the model's own modules")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of prompts and lengths")
    parser.add_argument("--skip-check", action="store_true", help="do not compare greedy completions first")
    return parser.parse_args()


if __name__ == "__main__":
    main()
