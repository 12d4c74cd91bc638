"""Solutions of a model, every step of them labeled by a program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.config.reasoning_stages import StepLabelsStage
from rlhf.data.contracts import Prompt
from rlhf.data.message_text import counted, describe
from rlhf.errors import DataError, RLHFError
from rlhf.files import write_jsonl
from rlhf.formatting import percentage
from rlhf.pipeline.stages.context import StageContext, StageOutcome, resolved, seed_of
from rlhf.pipeline.stages.inputs import load_policy, read_prompts
from rlhf.rewards.functions import load_function
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion

Labeler = Callable[..., Sequence[Sequence[Mapping[str, Any] | None]]]
"""(prompts, completions of each, *, seed, **columns and arguments) -> for each completion None, where it can't be labeled,
or ``completions``, its steps; ``labels``, whether each is right; ``label``, whether all of it counts as good (for
``outcomes``); and any further columns. Joined, the steps are the completion."""

PROMPTS_AT_ONCE = 256
"""Asked in one call; a sample does not depend on what else is asked in it."""


def run_step_labels(stage: StepLabelsStage, at: StageContext) -> StageOutcome:
    """Samples of a model as stepwise rows, and each with one verdict as well."""
    seed = seed_of(stage.seed)
    policy = load_policy(stage.model, at, seed=seed)
    prompts = read_prompts(
        stage.prompts, policy, at, row_filter=stage.row_filter, workers=stage.data_workers,
        limit=stage.limit, max_prompt_length=stage.max_prompt_length, truncation="drop",
    )  # fmt: skip
    labeler = load_function(stage.labeler)
    arguments = resolved(stage.arguments, at)
    engine = LocalEngine(policy)
    rows: list[dict[str, Any]] = []
    with at.log.progress(at.name, len(prompts) * stage.completions_per_prompt) as bar:
        for start in range(0, len(prompts), PROMPTS_AT_ONCE):
            batch = prompts[start : start + PROMPTS_AT_ONCE]
            samples = engine.generate(
                batch, num_samples=stage.completions_per_prompt, sampling=stage.sampling, seed=seed, rollout_index=0
            )
            rows += label(labeler, batch, samples, name=stage.labeler, arguments={**arguments, "seed": seed})
            bar.advance(by=len(batch) * stage.completions_per_prompt)
    asked = len(prompts) * stage.completions_per_prompt
    if not rows:
        raise DataError(
            f"The labeler {stage.labeler} left out all {asked} completions, so there is no row to write; look at what "
            "the model says (`rlhf generate`)."
        )
    return _write(rows, asked, stage, at)


def label(
    labeler: Labeler,
    prompts: Sequence[Prompt],
    samples: Sequence[Sequence[Completion]],
    *,
    name: str,
    arguments: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Ask a labeler, and hold it to its contract.

    Args:
        labeler: See ``Labeler``; gets those columns of the prompts that it takes.
        prompts: [n].
        samples: [n] completions of each.
        name: What errors call the labeler.
        arguments: Given by keyword.

    Returns:
        One row for each completion that it labeled, in order: ``prompt`` and what the labeler said.

    Raises:
        DataError: It failed, or said something that no row can be made of; names the prompt.
    """
    given: dict[str, Any] = {
        **_columns_for(labeler, prompts),
        **arguments,
        "prompts": [prompt.text for prompt in prompts],
        "completions": [[completion.text for completion in group] for group in samples],
    }
    where = f"the prompts {prompts[0].id!r} to {prompts[-1].id!r}"
    try:
        said = labeler(**given)
    except RLHFError:
        raise
    except Exception as err:
        raise DataError(
            f"The labeler {name} failed on {where}: {type(err).__name__}: {err}. Fix it, or call it alone on one of "
            "them to see why."
        ) from err
    if not isinstance(said, Sequence) or len(said) != len(prompts):
        raise DataError(
            f"The labeler {name} was asked about {where} and gave {describe(said)}; wanted a list for each."
        )
    rows = []
    for prompt, group, verdicts in zip(prompts, samples, said, strict=True):
        if not isinstance(verdicts, Sequence) or len(verdicts) != len(group):
            raise DataError(
                f"The labeler {name} gave {describe(verdicts)} for the {len(group)} completions of prompt "
                f"{prompt.id!r}; wanted a list with a verdict or None for each."
            )
        for number, verdict in enumerate(verdicts):
            if verdict is not None:
                _check(verdict, f"The labeler {name}, for completion {number} of prompt {prompt.id!r},")
                rows.append({"prompt": prompt.text, **verdict})
    return rows


def _columns_for(labeler: Labeler, prompts: Sequence[Prompt]) -> dict[str, list[Any]]:
    """Those columns of the prompt rows that a labeler takes, a value for each prompt."""
    names = dict.fromkeys(name for prompt in prompts for name in prompt.columns)
    parameters = inspect.signature(labeler).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return {name: [p.columns.get(name) for p in prompts] for name in names if takes_all or name in parameters}


def _check(verdict: Any, who: str) -> None:
    """Refuse a verdict that the data room could not read."""
    steps, labels = (verdict.get(key) if isinstance(verdict, Mapping) else None for key in ("completions", "labels"))
    if not isinstance(steps, Sequence) or not isinstance(labels, Sequence) or not steps or len(steps) != len(labels):
        raise DataError(
            f"{who} gave {describe(verdict)}; wanted a mapping with `completions`, at least one step, and as many `labels`."
        )
    for step, right in zip(steps, labels, strict=True):
        if not isinstance(step, str) or not isinstance(right, bool):
            raise DataError(
                f"{who} gave the step {describe(step)} the label {describe(right)}; wanted a text and a bool."
            )


def _write(rows: Sequence[dict[str, Any]], asked: int, stage: StepLabelsStage, at: StageContext) -> StageOutcome:
    """The files, and how much in them is right."""
    write_jsonl(at.folder / "stepwise.jsonl", [{k: v for k, v in row.items() if k != "label"} for row in rows])
    if stage.outcomes:
        write_jsonl(at.folder / "outcome.jsonl", [_outcome(row, stage, at) for row in rows])
    num_steps = sum(len(row["labels"]) for row in rows)
    counts: dict[str, Any] = {
        "num_solutions": len(rows),
        "num_steps": num_steps,
        "right_steps_frac": sum(sum(row["labels"]) for row in rows) / num_steps,
        "sound_frac": sum(all(row["labels"]) for row in rows) / len(rows),
        "left_out": asked - len(rows),
    }
    if stage.outcomes:
        counts["good_frac"] = sum(row["label"] for row in rows) / len(rows)
    left_out = f" ({asked - len(rows):,} of {asked:,} left out)" if asked > len(rows) else ""
    return StageOutcome(
        f"{counted(len(rows), 'solution')}{left_out}, {counted(num_steps, 'step')}, {percentage(counts['right_steps_frac'])} of them "
        f"right; {percentage(counts['sound_frac'])} of the solutions without a wrong step",
        counts,
    )


def _outcome(row: Mapping[str, Any], stage: StepLabelsStage, at: StageContext) -> dict[str, Any]:
    """The same solution with one verdict."""
    if not isinstance(row.get("label"), bool):
        raise DataError(
            f"stages.{at.name}.outcomes: the labeler {stage.labeler} gives no `label` for a solution as a whole, so there "
            "is no outcome to write; set outcomes: false."
        )
    rest = {key: value for key, value in row.items() if key not in ("prompt", "completions", "labels")}
    return {"prompt": row["prompt"], "completion": "".join(row["completions"]), **rest}
