"""Samples to judge, and functions that judge them, well or badly; a worker process imports them by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

from rlhf.data.contracts import Prompt
from rlhf.rollout.types import Completion

HERE = "tests.unit.rewards.helpers"


def prompt(
    number: int = 0, *, ids: list[int] | None = None, text: str = "Why?", messages=None, **columns: Any
) -> Prompt:
    return Prompt(f"p{number}", ids or [5, 6, 7], text, columns, messages)


def completion(text: str = "Because.", *, sample: int = 0, tokens: list[int] | None = None, reason="eos") -> Completion:
    tokens = tokens or [8, 9]
    return Completion(
        prompt_id="p",
        sample=sample,
        tokens=tokens,
        logprobs=[-0.5] * len(tokens),
        finish_reason=reason,
        weight_version=0,
        text=text,
    )


def samples(*texts: str, **columns: list[Any]) -> tuple[list[Prompt], list[Completion]]:
    prompts = [prompt(n, **{name: values[n] for name, values in columns.items()}) for n in range(len(texts))]
    return prompts, [completion(text) for text in texts]


def length(prompts, completions, **kwargs):
    return [len(text) for text in completions]


def only_what_it_names(completions, answer):
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


async def slowly(completions, **kwargs):
    return [1.0] * len(completions)


def everything(**kwargs):
    return [sorted(kwargs) == ["answer", "bonus", "completion_ids", "completions", "ended", "prompts"]] * len(
        kwargs["completions"]
    )


def greedy_for_memory(prompts, completions, **kwargs):
    prompts.clear()
    completions[:] = ["changed"] * len(completions)
    kwargs["notes"][0]["seen"] = True
    return [0.0] * len(completions)


def none_for_short(prompts, completions, **kwargs):
    return [None if len(text) < 4 else 1.0 for text in completions]


def one_too_few(prompts, completions, **kwargs):
    return [0.0] * (len(completions) - 1)


def nan_on_bad(prompts, completions, **kwargs):
    return [float("nan") if text == "bad" else 1.0 for text in completions]


def text_on_bad(prompts, completions, **kwargs):
    return ["great" if text == "bad" else 1.0 for text in completions]


def raise_on_bad(prompts, completions, **kwargs):
    if "bad" in completions:
        raise KeyError("no such answer")
    return [1.0] * len(completions)


def raise_on_many(prompts, completions, **kwargs):
    if len(completions) > 1:
        raise RuntimeError("too many")
    return [1.0]


def hang_on_bad(prompts, completions, **kwargs):
    if "bad" in completions:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", f"of-{os.getpid()}"])
        time.sleep(600)
    return [1.0] * len(completions)


def die_on_bad(prompts, completions, **kwargs):
    if "bad" in completions:
        os._exit(3)
    return [1.0] * len(completions)


def a_dict(prompts, completions, **kwargs):
    return {"score": 1.0}


def own_process(prompts, completions, **kwargs):
    print("a word on standard output")
    return [os.getpid()] * len(completions)


def last_word(prompts, completions, **kwargs):
    return [float(c[-1]["content"] == "Because." and c[-1]["role"] == "assistant" and p[0]["role"] == "user")
            for p, c in zip(prompts, completions, strict=True)]  # fmt: skip


def made_elsewhere(inner):
    return lambda prompts, completions: inner(prompts, completions)
