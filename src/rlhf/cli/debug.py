"""`rlhf debug`: look at scores and at distances, sample by sample. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.options import DeviceOption, JsonOption, Overrides, SettingsCommand, known_settings
from rlhf.errors import ConfigError, printable
from rlhf.formatting import interval, percentage, plain_number

if TYPE_CHECKING:
    from rlhf.evaluation.score_distribution import ScoreReport

app = typer.Typer(no_args_is_help=True)
SHOWN = 100
"""Characters of a text."""
POSITIONS = 12
REASONS = 5
"""Why rows have no score, the commonest ones."""
BAR = 40
"""Characters of the longest bar."""
PART_COLUMNS = (("mean", 9), ("std", 11), ("low", 8), ("high", 9))


@app.command("rewards", cls=SettingsCommand)
def debug_rewards(
    file: Annotated[
        Path,
        typer.Argument(help="rollouts.jsonl of a run, any .jsonl with a column score, .npy, or .pt (weights only)."),
    ],
    settings: Overrides = None,
    shown: Annotated[int, typer.Option("--shown", help="Best and worst completions.", min=0)] = 3,
    as_json: JsonOption = False,
) -> None:
    """Look at scores: how they are spread, what they follow, which prompts teach nothing, the best and the worst.

    \b
    rlhf debug rewards runs/demo/ppo/rollouts.jsonl
    rlhf debug rewards rows.jsonl reward=runs/demo/reward/model source=topic
    rlhf debug rewards pairs.jsonl reward.kind=judge reward.judge=judge.yaml reward.rubric=rubric.yaml

    reward=SPEC tries a reward on the rows first, as a recipe has it (a folder, FILE.py:FUNCTION, rules, a URL, judge.yaml, or its keys as
    reward.KEY=VALUE): rows with prompt and completion, several of a prompt being siblings, or with chosen and rejected. source=COLUMN groups
    by a column.
    """
    given = known_settings(settings, ("reward", "source"))
    from rlhf.evaluation.score_distribution import read_scores, score_report

    rows = read_scores(file, needs_scores="reward" not in given)
    if "reward" in given:
        from rlhf.evaluation.reward_trial import try_reward

        rows = try_reward(rows, given["reward"], file)
    report = score_report(rows, source=given.get("source"), num_shown=shown)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2, ensure_ascii=False))
    else:
        print(printable(_rewards_text(report)))


@app.command("kl", cls=SettingsCommand)
def debug_kl(
    policy: Annotated[str, typer.Argument(help="Model folder or hub name; it writes the completions.")],
    reference: Annotated[str, typer.Argument(help="The model that the distance is measured to; the same tokenizer.")],
    settings: Overrides = None,
    shown: Annotated[int, typer.Option("--shown", help="Sequences and tokens with the largest KL.", min=1)] = 5,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Look where a policy left its reference: exact KL by position, the sequences and tokens with the most.

    \b
    rlhf debug kl runs/demo/ppo/model runs/demo/sft/model prompts=test.jsonl limit=100

    Settings: prompts=FILE, limit, max_new_tokens (64), temperature (1), seed.
    """
    given = known_settings(settings, ("prompts", "limit", "max_new_tokens", "temperature", "seed"))
    if "prompts" not in given:
        raise ConfigError("debug kl needs prompts=FILE, what the policy is asked.")
    from rlhf.config.policy import SamplingConfig
    from rlhf.data.datasets import GRPODataset
    from rlhf.evaluation.kl_positions import kl_positions
    from rlhf.models.device import placed_on
    from rlhf.models.policy import PolicyModel

    limit, seed = _whole(given, "limit", None), _whole(given, "seed", 0)
    with placed_on(device):
        ours, theirs = PolicyModel.from_pretrained(policy), PolicyModel.from_pretrained(reference)
    prompts = list(GRPODataset(str(given["prompts"]), ours.tokenizer, limit=limit))
    sampling = SamplingConfig.of(
        {"max_new_tokens": given.get("max_new_tokens", 64), "temperature": given.get("temperature", 1.0)},
        source="The command line",
    )
    positions = kl_positions(ours, theirs, prompts, sampling=sampling, seed=seed or 0, num_shown=shown)
    if as_json:
        print(json.dumps(positions.to_dict(), indent=2, ensure_ascii=False))
        return
    total = positions.per_sequence
    lines = [
        f"KL(policy || reference): {plain_number(total.value, 3)} nats per completion [{interval(total.to_dict())}], "
        f"{plain_number(positions.per_token, 4)} per token, {len(prompts)} prompts",
        "",
        "position  mean nats  completions",
    ]
    lines += [f"{p:>8}  {mean:>9.4f}  {n:>11}" for p, mean, n in positions.by_position[:POSITIONS]]
    if len(positions.by_position) > POSITIONS:
        lines.append(f"... {len(positions.by_position) - POSITIONS} more with --json")
    lines += ["", "Sequences with the most:"]
    lines += [
        f"  {s['nats']:.3f} nats, {s['num_tokens']} tokens  {_short(s['prompt'])} -> {_short(s['completion'])}"
        for s in positions.sequences
    ]
    lines += ["", "Tokens with the most:"]
    lines += [
        f"  {t['nats']:.3f} nats at {t['position']} of {t['prompt_id']}: {t['before']!r} -> {t['token']!r}"
        for t in positions.tokens
    ]
    print(printable("\n".join(lines)))


def _whole(given: Mapping[str, Any], name: str, default: int | None) -> int | None:
    value = given.get(name, default)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ConfigError(f"{name} is {value!r}; wanted a whole number, 0 or more.")
    return value


def _rewards_text(report: ScoreReport) -> str:
    lines = [
        f"{report.num_rows:,} rows, {report.num_missing:,} without a score ({percentage(report.num_missing / report.num_rows)})",
        *_reason_lines(report),
        f"mean {plain_number(report.mean, 3)}, deviation {plain_number(report.std, 3)}, {report.num_values:,} different values, "
        f"{percentage(report.tied_frac)} tied with another row",
        "quantiles  "
        + "  ".join(f"{percentage(float(q), 0)}: {plain_number(v, 3)}" for q, v in report.quantiles.items()),
        *_histogram_lines(report),
    ]
    if report.pairs_agree is not None:
        lines.append(
            f"the chosen completion scores higher in {percentage(report.pairs_agree.value)} "
            f"[{interval(report.pairs_agree.to_dict(), True)}] of {report.num_rows // 2:,} pairs, ties counted half"
        )
    if report.num_groups:
        lines.append(
            f"{report.num_groups:,} prompts with several completions: {percentage(report.equal_groups_frac)} have equal scores and teach "
            f"nothing; deviation within a prompt {plain_number(report.within_std, 3)}"
        )
    if report.unscored_groups_frac > 0:
        lines.append(
            f"{percentage(report.unscored_groups_frac)} of the prompts have a completion without a score: training leaves these out, and stops "
            "where they are more than max_unscored_frac"
        )
    if report.by_length:
        within = report.length_correlation_within
        lines += [
            f"correlation with length {plain_number(report.length_correlation.value)}"
            + (f" [{ends}]" if (ends := interval(report.length_correlation.to_dict())) else "")
            + (f", within prompts {plain_number(within)}" if math.isfinite(within) else ""),
            "characters        rows  mean",
            *(f"{characters:<14} {count:>7,}  {plain_number(mean, 3)}" for characters, count, mean in report.by_length),
        ]
    if report.by_source:
        lines += [
            f"by {report.source_column}",
            *(f"  {name}: {n:,} rows, mean {plain_number(m, 3)}" for name, (n, m) in report.by_source.items()),
        ]
    lines += _trial_lines(report)
    for title, samples in (("best", report.best), ("worst", report.worst)):
        lines += (
            [f"{title}:", *(f"  {plain_number(s, 3)}  {_short(p)} -> {_short(c)}" for s, p, c in samples)]
            if samples
            else []
        )
    return "\n".join(lines)


def _reason_lines(report: ScoreReport) -> list[str]:
    reasons = {} if report.trial is None else report.trial.reasons
    return [f"  {count:,} x {_short(reason)}" for reason, count in list(reasons.items())[:REASONS]]


def _histogram_lines(report: ScoreReport) -> list[str]:
    most = max((count for _, _, count in report.histogram), default=0)
    if len(report.histogram) < 2:
        return []
    return [
        f"{plain_number(low, 3):>9} to {plain_number(high, 3):<9} {count:>7,} {'#' * math.ceil(BAR * count / most)}".rstrip()
        for low, high, count in report.histogram
    ]


def _trial_lines(report: ScoreReport) -> list[str]:
    """Components and criteria of a reward that was tried, and what it took."""
    if report.trial is None:
        return []
    told = report.trial.to_dict(report.num_rows)
    width = max((len(name) for name in told["parts"]), default=0)
    lines = (
        [f"{'component or criterion':<{max(width, 22)}}     rows     mean  deviation  lowest  highest"]
        if told["parts"]
        else []
    )
    for name, part in told["parts"].items():
        numbers = [f"{'-' if part[key] is None else plain_number(part[key], 3):>{size}}" for key, size in PART_COLUMNS]
        lines.append(f"{name:<{max(width, 22)}}  {part['n']:>7,}{''.join(numbers)}")
    time = f"took {told['seconds']:.2f} s, {told['seconds_per_thousand']:.2f} s for a thousand completions"
    if told["questions"] is not None:
        price = (
            "its price is not known (input_price and output_price of the judge)"
            if told["cost"] is None
            else f"{told['cost']:.4f} dollars, {told['cost_per_thousand']:.4f} for a thousand completions"
        )
        time += f"; {told['questions']:,} answers of the judge were read, {price}"
    return [*lines, time]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 3]}..."
