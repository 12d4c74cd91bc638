"""`rlhf generate`. Heavy imports happen inside the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.options import DeviceOption
from rlhf.models.sources import check_there
from rlhf.pipeline.models import named_model

if TYPE_CHECKING:
    from rlhf.data.contracts import Prompt


def generate(
    model: Annotated[
        str, typer.Argument(help="Model folder, stage of a run or hub name; `embedded` for the built-in one.")
    ],
    prompts: Annotated[
        str | None, typer.Argument(help="A data file with prompts; without it, one prompt a line from standard input.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Completions for each prompt.", min=1)] = 1,
    max_new_tokens: Annotated[int, typer.Option(help="Longest completion in tokens.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0)] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same samples.")] = 0,
    limit: Annotated[int | None, typer.Option(help="Use only this many prompts.", min=1)] = None,
    device: DeviceOption = "auto",
) -> None:
    """Sample completions; one JSON object a line on standard output."""
    model = named_model(model)  # a run holds several, and which one is meant makes the difference
    check_there(model)
    from rlhf.config.policy import SamplingConfig
    from rlhf.data.datasets import GRPODataset
    from rlhf.models.device import placed_on
    from rlhf.models.policy import PolicyModel
    from rlhf.rollout.local import LocalEngine

    with placed_on(device):
        policy = PolicyModel.from_pretrained(model)
    source: Any = prompts if prompts is not None else [line.rstrip("\n") for line in sys.stdin if line.strip()]
    rows = list(GRPODataset(source, policy.tokenizer, limit=limit))
    sampling = SamplingConfig(max_new_tokens=max_new_tokens, temperature=temperature)
    rows = [replace(row, id=name) for row, name in zip(rows, _names(rows), strict=True)]  # samples are drawn by the id
    groups = LocalEngine(policy).generate(rows, num_samples=samples, sampling=sampling, seed=seed, rollout_index=0)
    for prompt, group in zip(rows, groups, strict=True):
        for completion in group:
            row = {
                "id": prompt.id,
                "prompt": prompt.messages or prompt.text,
                "completion": completion.text,
                "model": model,
                "sampling": {
                    **sampling.model_dump(mode="json", exclude_defaults=True),
                    "seed": seed,
                    "sample": completion.sample,
                },
                "finish_reason": completion.finish_reason,
                "logprob": round(sum(completion.logprobs), 4),
            }
            print(json.dumps(row, ensure_ascii=False))


def _names(prompts: Sequence[Prompt]) -> list[str]:
    """The ids that the rows bring; of others a name by the prompt's text, which is the same in any file and on any line."""
    from rlhf.data.expand import prompt_names

    by_text = prompt_names(prompt.messages or prompt.text for prompt in prompts)
    return [
        name if prompt.columns.get("id") in (None, "") else prompt.id
        for name, prompt in zip(by_text, prompts, strict=True)
    ]
