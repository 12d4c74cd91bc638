"""Preference pairs: completions of a model, compared by an annotator."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.config.file_stages import PreferencesStage
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.data.message_text import counted
from rlhf.errors import ConfigError
from rlhf.files import write_jsonl
from rlhf.formatting import percentage
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import filtered_rows, load_policy
from rlhf.rewards.functions import load_function
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion
from rlhf.seeds import derive_seed

Annotator = Callable[..., Sequence[Mapping[str, Any] | Sequence[Mapping[str, Any]] | None]]
"""(prompts, completions of each, *, ended, noise, seed) -> for each prompt None; or the numbers of the ``chosen`` and the
``rejected`` completion and any further columns; or whole rows of another kind, such as rankings, but for their prompt."""

COLUMNS = {
    "preference": ("chosen", "rejected"),
    "comparison": ("completion_a", "completion_b", "preference"),
    "ranking": ("completions",),
    "rating": ("completion", "rating"),
    "unpaired": ("completion", "label"),
}
"""What an annotator must say, by what the stage calls its rows."""
SAMPLES_AT_ONCE = 256
"""Prompts asked in one call when preferences are collected."""


def run_preferences(stage: PreferencesStage, at: StageContext) -> StageOutcome:
    """Samples of a model, compared by an annotator."""
    policy = load_policy(stage.model, at, seed=seed_of(stage.seed))
    annotate = load_function(stage.annotator)
    engine = LocalEngine(policy)
    counts: dict[str, Any] = {}
    noun = "pair" if stage.rows == "preference" else "row"
    wanted = [("pairs", stage.prompts, stage.num_pairs, stage.noise)]
    if stage.test_prompts is not None:
        wanted.append(("test_pairs", stage.test_prompts, stage.num_test_pairs, 0.0))
    for name, source, count, noise in wanted:
        data = GRPODataset(at.path(source), policy.tokenizer, workers=stage.data_workers)
        prompts = list(filtered_rows(data, stage.row_filter, at, "prompts") if name == "pairs" else data)
        random.Random(derive_seed(seed_of(stage.seed), "preferences", name)).shuffle(prompts)
        rows: list[Any] = []
        asked = 0
        with at.log.progress(f"{at.name} {name}", count) as bar:
            while len(rows) < count and asked < len(prompts):
                batch = prompts[asked : asked + SAMPLES_AT_ONCE]
                asked += len(batch)
                samples = engine.generate(
                    batch,
                    num_samples=stage.completions_per_prompt,
                    sampling=stage.sampling,
                    seed=seed_of(stage.seed),
                    rollout_index=0,
                )
                labeled = _rows(batch, samples, annotate, stage, noise=noise)
                rows += labeled
                bar.advance(by=len(labeled))
        if len(rows) < count:
            rest = (
                "the others were ties" if stage.rows == "preference" else "the annotator gave no verdict on the others"
            )
            at.log.alarm(
                f"{name}: {counted(asked, 'prompt')} gave {counted(len(rows), noun)}, {count} were wanted; {rest}."
            )
        write_jsonl(at.folder / f"{name}.jsonl", rows[:count])
        counts[f"num_{name}"] = min(count, len(rows))
    return StageOutcome(
        f"{counted(counts['num_pairs'], noun)} with {percentage(stage.noise)} noise, "
        f"{counted(counts.get('num_test_pairs', 0), f'held-out {noun}')} without",
        counts,
    )


def _rows(
    prompts: Sequence[Prompt],
    samples: Sequence[Sequence[Completion]],
    annotate: Annotator,
    stage: PreferencesStage,
    *,
    noise: float,
) -> list[dict[str, Any]]:
    """Pairs have texts for people and the sampled token ids for training: nothing is tokenized again."""
    choices = annotate(
        [prompt.text for prompt in prompts],
        [[completion.text for completion in group] for group in samples],
        ended=[[completion.finish_reason != "length" for completion in group] for group in samples],
        noise=noise,
        seed=seed_of(stage.seed),
    )
    rows: list[dict[str, Any]] = []
    for prompt, group, choice in zip(prompts, samples, choices, strict=True):
        if choice is None:
            continue
        given = [choice] if isinstance(choice, Mapping) else choice
        for number, row in enumerate(given):
            missing = [column for column in COLUMNS[stage.rows] if column not in row]
            if missing:
                raise ConfigError(
                    f"{stage.annotator} gave {', '.join(row) or 'nothing'} for the prompt {prompt.id!r}; `rows: {stage.rows}` "
                    f"wants {', '.join(COLUMNS[stage.rows])}. Name another annotator, or say in `rows` what it gives."
                )
            if stage.rows == "preference":
                rows.append(_pair(prompt, group, row))
            else:
                rows.append({"id": f"{prompt.id}#{number}", "prompt": prompt.text, **row})
    return rows


def _pair(prompt: Prompt, group: Sequence[Completion], choice: Mapping[str, Any]) -> dict[str, Any]:
    chosen, rejected = group[choice["chosen"]], group[choice["rejected"]]
    return {
        "id": prompt.id,
        "prompt": prompt.text,
        "chosen": chosen.text,
        "rejected": rejected.text,
        "prompt_ids": list(prompt.ids),
        "chosen_ids": list(chosen.tokens),
        "rejected_ids": list(rejected.tokens),
        **{name: value for name, value in choice.items() if name not in ("chosen", "rejected")},
    }
