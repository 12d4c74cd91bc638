"""Speculative decoding side by side: seconds for each token of one completion at a time, with and without drafts, ours and of transformers.

    rlhf run recipes/speculative.yaml
    python benchmarks/speculative.py runs/speculative/target/model --draft runs/speculative/draft/model

Every way continues the same prompts by the same number of tokens, one prompt after the other, in turns: a round is each way once, and
the table has medians over rounds, in processor seconds (one thread) and by the clock. Prompts are read within them, and ours lays out
its weights within them, once in each round. No token ends a completion. Texts: held-out openings of stories (`plain`), and an opening
repeated several times (`repetitive`). transformers' assisted generation runs as it is by default, and with a constant number of drafted
tokens, which is ours.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rlhf.config.engines import DraftModelConfig, PromptLookupConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.formatting import percentage, rounded
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine

OPENINGS = "recipes/data/story_rows.py:held_out_openings"
REPEATS = 6
BASELINE = "rlhf, compiled"
NGRAM = 2


@dataclass(slots=True)
class Spent:
    """What one way took in each round."""

    processor: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    figures: list[dict[str, float]] = field(default_factory=list)


Way = Callable[[Sequence[Prompt], SamplingConfig, int], tuple[list[list[int]], dict[str, float]]]
"""Prompts, sampling, round -> tokens of each, and what else is known."""


def main() -> None:
    """Measure and print."""
    args = arguments()
    torch.set_num_threads(args.threads)
    policy, draft = endless(PolicyModel.from_pretrained(args.target)), endless(PolicyModel.from_pretrained(args.draft))
    ways = our_ways(policy, draft, args) | their_ways(args)
    count, drafted = (sum(p.numel() for p in each.model.parameters()) / 1e6 for each in (policy, draft))
    print(
        f"target {rounded(count)}M parameters, draft {rounded(drafted)}M, {args.draft_tokens} drafted tokens, {args.threads} thread, "
        f"{args.prompts} prompts, {args.max_new_tokens} new tokens, {args.rounds} rounds; load average before "
        f"{rounded(os.getloadavg()[0], 1)}\n"
    )
    for text, temperature in (("plain", 1.0), ("plain", 0.0), ("repetitive", 0.0)):
        if args.texts and text not in args.texts:
            continue
        sampling = SamplingConfig(max_new_tokens=args.max_new_tokens, temperature=temperature)
        prompts = prompts_of(policy, text, args.prompts)
        spent = measured(ways, prompts, sampling, args.rounds)
        print_table(f"{text}, {'greedy' if temperature == 0 else f'temperature {temperature:g}'}", spent)
    print(f"load average after: {rounded(os.getloadavg()[0], 1)}")


def endless(policy: PolicyModel) -> PolicyModel:
    """No token ends a text."""
    config = policy.model.config
    config.eos_token_id = policy.model.generation_config.eos_token_id = int(config.vocab_size)
    policy.tokenizer.eos_token = None
    return policy


def prompts_of(policy: PolicyModel, text: str, count: int) -> list[Prompt]:
    """Tokenized; the first few of those held out."""
    rows = list(GRPODataset(OPENINGS, policy.tokenizer, limit=count))
    if text == "plain":
        return rows
    return list(GRPODataset([{"prompt": " ".join([row.text] * REPEATS)} for row in rows], policy.tokenizer))


def our_ways(policy: PolicyModel, draft: PolicyModel, args: argparse.Namespace) -> dict[str, Way]:
    """The local engine."""
    how = {"draft_tokens": args.draft_tokens}
    drafted = DraftModelConfig.of({"model": args.draft, **how})
    lookup = PromptLookupConfig.of({"ngram_tokens": NGRAM, **how})
    engines = {
        "rlhf": LocalEngine(policy, max_rows=1),
        BASELINE: LocalEngine(policy, max_rows=1, compiled=True),
        "rlhf, compiled, draft model": LocalEngine(policy, max_rows=1, compiled=True, speculate=drafted, draft=draft),
        "rlhf, compiled, draft model, keeps distribution": LocalEngine(
            policy, max_rows=1, compiled=True, speculate=drafted.updated(keeps="distribution"), draft=draft
        ),
        "rlhf, compiled, prompt lookup": LocalEngine(policy, max_rows=1, compiled=True, speculate=lookup),
    }

    def way(engine: LocalEngine) -> Way:
        def run(
            prompts: Sequence[Prompt], sampling: SamplingConfig, number: int
        ) -> tuple[list[list[int]], dict[str, float]]:
            engine.load_weights(number)
            groups = engine.generate(prompts, num_samples=1, sampling=sampling, seed=number, rollout_index=0)
            return [completion.tokens for [completion] in groups], engine.figures

        return run

    return {name: way(engine) for name, engine in engines.items()}


def their_ways(args: argparse.Namespace) -> dict[str, Way]:
    """``generate`` of transformers, in models of its own."""
    target, draft = (AutoModelForCausalLM.from_pretrained(name).eval() for name in (args.target, args.draft))
    for model in (target, draft):
        model.generation_config.eos_token_id = model.config.eos_token_id = None

    def way(**how: Any) -> Way:
        @torch.no_grad()
        def run(
            prompts: Sequence[Prompt], sampling: SamplingConfig, number: int
        ) -> tuple[list[list[int]], dict[str, float]]:
            constant = how.get("constant", False)
            draft.generation_config.num_assistant_tokens = args.draft_tokens if constant else 20
            draft.generation_config.num_assistant_tokens_schedule = "constant"
            draft.generation_config.assistant_confidence_threshold = 0.0 if constant else 0.4
            torch.manual_seed(number)
            drawn = {"do_sample": True, "top_k": 0} if sampling.temperature else {"do_sample": False}
            options = {key: value for key, value in how.items() if key != "constant"}
            outs = []
            for prompt in prompts:
                ids = torch.tensor([list(prompt.ids)])
                out = target.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=sampling.max_new_tokens, pad_token_id=0, **drawn, **options
                )  # fmt: skip
                outs.append(out[0, ids.shape[1] :].tolist())
            return outs, {}

        return run

    return {
        "transformers": way(),
        "transformers, assistant_model": way(assistant_model=draft),
        "transformers, assistant_model, constant": way(assistant_model=draft, constant=True),
        "transformers, prompt_lookup": way(prompt_lookup_num_tokens=args.draft_tokens, max_matching_ngram_size=NGRAM),
    }


def measured(
    ways: dict[str, Way], prompts: Sequence[Prompt], sampling: SamplingConfig, rounds: int
) -> dict[str, Spent]:
    """Each way in turn, after a round that is not counted."""
    spent = {name: Spent() for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            wall, processor = time.perf_counter(), time.process_time()
            tokens, figures = way(prompts, sampling, number)
            took = (time.process_time() - processor, time.perf_counter() - wall)
            one = spent[name]
            assert all(len(each) == sampling.max_new_tokens for each in tokens), f"{name}: a completion ended early"
            if number:
                total = sum(map(len, tokens))
                one.processor.append(took[0] / total)
                one.wall.append(took[1] / total)
                one.tokens.append([token for each in tokens for token in each])
                one.figures.append(figures)
    return spent


def print_table(title: str, spent: dict[str, Spent]) -> None:
    """Medians over rounds; ratios are medians of each round's ratio to the baseline."""
    base = spent[BASELINE]
    print(f"### {title}\n")
    print(
        "| | ms a token, processor | by the clock | baseline / this, processor | by the clock | accepted | tokens a pass | as without |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, one in spent.items():
        ratios = [
            statistics.median(a / b for a, b in zip(first, second, strict=True))
            for first, second in ((base.processor, one.processor), (base.wall, one.wall))
        ]
        accepted, gained = (
            mean_of(one.figures, f"rollout/{key}") for key in ("draft_accept_frac", "tokens_per_forward")
        )
        reference = spent["transformers" if name.startswith("transformers") else BASELINE].tokens
        pairs = [
            a == b for row, other in zip(reference, one.tokens, strict=True) for a, b in zip(row, other, strict=True)
        ]
        cells = [
            rounded(1e3 * statistics.median(one.processor)),
            rounded(1e3 * statistics.median(one.wall)),
            *(rounded(ratio) for ratio in ratios),
            percentage(accepted) if accepted is not None else "",
            rounded(gained) if gained is not None else "",
            percentage(statistics.mean(pairs)),
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print()


def mean_of(rounds: Sequence[dict[str, float]], key: str) -> float | None:
    """Over the rounds that have it."""
    values = [figures[key] for figures in rounds if key in figures]
    return statistics.mean(values) if values else None


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", help="Folder of the model that is sampled from.")
    parser.add_argument("--draft", required=True, help="Folder of the draft model.")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--texts", nargs="*", choices=["plain", "repetitive"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
