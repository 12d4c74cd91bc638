"""Our own engine on the same requests without a server: batches of so many, one after the other, in a process of its own on one core.

    python -m benchmarks.serving.engine FOLDER SECONDS BATCH [BATCH ...]

Prints a line of JSON: batch size -> tokens a second. Every batch waits for its longest completion, which a server does not.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

import torch

from benchmarks.serving.model import NEW_TOKENS, requests
from rlhf.config.model import ModelConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine


def main() -> None:
    """Measure and print."""
    folder, seconds, *batches = sys.argv[1:]
    torch.set_num_threads(1)
    policy = PolicyModel.from_pretrained(ModelConfig(path=folder))
    engine = LocalEngine(policy, autocast="bfloat16", compiled=True)
    speeds = {}
    for batch in map(int, batches):
        prompts = _prompts(policy, batch)
        _sample(engine, next(prompts), 0)  # weights cast, kernels compiled
        tokens, begin = 0, time.perf_counter()
        while time.perf_counter() - begin < float(seconds):
            tokens += _sample(engine, next(prompts), tokens)
        speeds[batch] = tokens / (time.perf_counter() - begin)
    print(json.dumps(speeds))


def _prompts(policy: PolicyModel, batch: int) -> Iterator[list[Prompt]]:
    conversations = requests(4096)
    for start in range(0, len(conversations), batch):
        yield [
            Prompt(
                str(number),
                policy.tokenizer.apply_chat_template(row, add_generation_prompt=True, return_dict=False),
                "",
            )
            for number, row in enumerate(conversations[start : start + batch])
        ]


def _sample(engine: LocalEngine, prompts: list[Prompt], step: int) -> int:
    sampling = SamplingConfig(max_new_tokens=NEW_TOKENS, temperature=1.0)
    groups = engine.generate(prompts, num_samples=1, sampling=sampling, seed=0, rollout_index=step)
    return sum(len(completion.tokens) for group in groups for completion in group)


if __name__ == "__main__":
    main()
