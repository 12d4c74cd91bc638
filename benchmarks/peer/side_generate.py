"""Sampling alone: the local engine, and ``generate`` of transformers, on the same prompts, limits and distribution.

A step samples ``rows`` prompts ``group`` times. The first thing each side does is to complete the first prompts greedily in float32,
which the driver compares token by token; what is timed afterwards is sampling at temperature 1, where each side draws by itself. Only
real tokens count: padding, and what is computed for rows that have ended, is a side's own affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.peer.cases import EOS, PAD, Case
from benchmarks.peer.channel import Meter

GREEDY_PROMPTS, GREEDY_TOKENS = 8, 32
"""How many prompts are completed greedily for the comparison, and by how many tokens."""


def ours(task: dict[str, Any], case: Case, meter: Meter) -> None:
    """The library's local engine."""
    from rlhf.activity import doing, step_done, training_loop
    from rlhf.config.policy import SamplingConfig
    from rlhf.data.contracts import Prompt
    from rlhf.models.policy import PolicyModel
    from rlhf.rollout.local import LocalEngine

    policy = PolicyModel.from_pretrained(task["model"])
    prompts = [Prompt(id=str(n), ids=row["prompt"], text="") for n, row in enumerate(task["rows"])]
    sampling = SamplingConfig(max_new_tokens=case.max_new_tokens)
    greedy = SamplingConfig(max_new_tokens=GREEDY_TOKENS, temperature=0.0)
    with no_end(policy.model):
        said = LocalEngine(policy, compiled=True).generate(
            prompts[:GREEDY_PROMPTS], num_samples=1, sampling=greedy, seed=0, rollout_index=0
        )
    engine = LocalEngine(policy, autocast="bfloat16" if case.dtype == "bf16" else "none", compiled=True)
    meter.begin(greedy=[group[0].tokens for group in said])
    with training_loop("generate"):
        for step, part in enumerate(steps_of(prompts, case)):
            with doing("rollout decode"):  # what the trainers that ask it call it
                completions = engine.generate(
                    part, num_samples=case.group, sampling=sampling, seed=0, rollout_index=step
                )
            step_done()
            meter.step_done(
                sequences=[(len(p.ids), [len(c.tokens) for c in g]) for p, g in zip(part, completions, strict=True)]
            )


def theirs(task: dict[str, Any], case: Case, meter: Meter) -> None:
    """``generate`` with scaled-dot-product attention on left-padded prompts, under autocast as TRL calls it, or with cast weights."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32, attn_implementation="sdpa").eval()
    torch.manual_seed(0)
    prompts = [row["prompt"] for row in task["rows"]]
    with no_end(model):
        said = sample(model, prompts[:GREEDY_PROMPTS], 1, max_new_tokens=GREEDY_TOKENS, do_sample=False)
    cast = task["candidate"].get("cast_weights", False)
    if cast:
        model = model.to(torch.bfloat16)
    meter.begin(greedy=said)
    for part in steps_of(prompts, case):
        with torch.autocast("cpu", torch.bfloat16, enabled=case.dtype == "bf16" and not cast):
            rows = sample(model, part, case.group, max_new_tokens=case.max_new_tokens, do_sample=True, top_k=0)
        lengths = [[len(row) for row in rows[n * case.group : (n + 1) * case.group]] for n in range(len(part))]
        meter.step_done(sequences=list(zip(map(len, part), lengths, strict=True)))


@contextmanager
def no_end(model: Any) -> Iterator[None]:
    """Inside, EOS is never the most likely token; outside it always is, so that greedy completions would be one token long."""
    import torch

    row = model.get_output_embeddings().weight
    with torch.no_grad():
        row[EOS].neg_()
    yield
    with torch.no_grad():
        row[EOS].neg_()


def sample(model: Any, prompts: Sequence[Sequence[int]], group: int, **how: Any) -> list[list[int]]:
    """Completions up to and with EOS, ``group`` of each prompt one after the other."""
    import torch

    rows = [list(prompt) for prompt in prompts for _ in range(group)]
    longest = max(map(len, rows))
    ids = torch.tensor([[PAD] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=mask, pad_token_id=PAD, eos_token_id=EOS, **how)
    sampled = []
    for row in out[:, longest:].tolist():
        sampled.append(row[: row.index(EOS) + 1] if EOS in row else row)
    return sampled


def steps_of(prompts: Sequence[Any], case: Case) -> list[Sequence[Any]]:
    """The prompts of each step."""
    return [prompts[first : first + case.rows] for first in range(0, len(prompts), case.rows)]
