"""Preference pairs: completions of a model, compared by an annotator."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.config.stages import PreferencesStage
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.data.words import counted
from rlhf.files import write_jsonl
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import load_policy
from rlhf.rewards.functions import load_function
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion
from rlhf.seeds import derive_seed

Annotator = Callable[..., Sequence[Mapping[str, Any] | None]]
"""(prompts, completions of each, *, ended, noise, seed) -> for each prompt None, or the numbers of the ``chosen`` and the
``rejected`` completion and any further columns."""

SAMPLES_AT_ONCE = 256
"""Prompts asked in one call when preferences are collected."""


def run_preferences(stage: PreferencesStage, at: StageContext) -> StageOutcome:
    """Samples of a model, compared by an annotator."""
    policy = load_policy(stage.model, at, seed=seed_of(stage.seed))
    annotate = load_function(stage.annotator)
    engine = LocalEngine(policy)
    counts: dict[str, Any] = {}
    wanted = [("pairs", stage.prompts, stage.num_pairs, stage.noise)]
    if stage.test_prompts is not None:
        wanted.append(("test_pairs", stage.test_prompts, stage.num_test_pairs, 0.0))
    for name, source, count, noise in wanted:
        prompts = list(GRPODataset(at.path(source), policy.tokenizer))
        random.Random(derive_seed(seed_of(stage.seed), "preferences", name)).shuffle(prompts)
        rows: list[Any] = []
        asked = 0
        with at.log.progress(name, count) as bar:
            while len(rows) < count and asked < len(prompts):
                batch = prompts[asked : asked + SAMPLES_AT_ONCE]
                asked += len(batch)
                samples = engine.generate(
                    batch,
                    num_samples=stage.completions_per_prompt,
                    sampling=stage.sampling,
                    seed=seed_of(stage.seed),
                    step=0,
                )
                found = _pairs(batch, samples, annotate, noise=noise, seed=seed_of(stage.seed))
                rows += found
                bar.advance(by=len(found))
        if len(rows) < count:
            at.log.alarm(
                f"{name}: {counted(asked, 'prompt')} gave {counted(len(rows), 'pair')}, {count} were wanted; the others were ties."
            )
        write_jsonl(at.folder / f"{name}.jsonl", rows[:count])
        counts[f"num_{name}"] = min(count, len(rows))
    return StageOutcome(
        f"{counted(counts['num_pairs'], 'pair')} with {stage.noise:.0%} noise, "
        f"{counted(counts.get('num_test_pairs', 0), 'held-out pair')} without",
        counts,
    )


def _pairs(
    prompts: Sequence[Prompt], samples: Sequence[Sequence[Completion]], annotate: Annotator, *, noise: float, seed: int
) -> list[dict[str, Any]]:
    """Rows with texts for people and the sampled token ids for training: nothing is tokenised again."""
    choices = annotate(
        [prompt.text for prompt in prompts],
        [[completion.text for completion in group] for group in samples],
        ended=[[completion.finish_reason != "length" for completion in group] for group in samples],
        noise=noise,
        seed=seed,
    )
    return [
        {
            "id": prompt.id,
            "prompt": prompt.text,
            "chosen": group[choice["chosen"]].text,
            "rejected": group[choice["rejected"]].text,
            "prompt_ids": list(prompt.ids),
            "chosen_ids": list(group[choice["chosen"]].tokens),
            "rejected_ids": list(group[choice["rejected"]].tokens),
            **{name: value for name, value in choice.items() if name not in ("chosen", "rejected")},
        }
        for prompt, group, choice in zip(prompts, samples, choices, strict=True)
        if choice is not None
    ]
