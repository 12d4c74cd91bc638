"""`rlhf feedback arena` and `rlhf feedback red-team`: what votes say of models, and attempts as a suite."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf.cli.options import JsonOption, console
from rlhf.cli.stores import StoreOption, opened_store
from rlhf.errors import ConfigError

if TYPE_CHECKING:
    from rlhf.feedback.arena import ArenaRatings

STORE = "feedback.db"
ConsentOption = Annotated[bool, typer.Option("--consent", help="Only what users consented to (`consent: true`).")]


def arena(
    store: StoreOption = STORE,
    qualified: Annotated[
        bool, typer.Option("--qualified", help="Leave out users who always click the same, or always in one place.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Rate models by the votes of the chat page: Bradley-Terry strengths with intervals, and whether the place matters."""
    from rlhf.data.message_text import printable
    from rlhf.feedback.arena import arena_ratings
    from rlhf.feedback.careless_users import careless_users
    from rlhf.feedback.production import rows_of_events

    with opened_store(store) as opened:
        rows = rows_of_events(opened.events()).rows
    careless = careless_users(rows)
    rated = arena_ratings([row for row in rows if not (qualified and row.get("annotator_id") in careless)])
    if as_json:
        print(json.dumps({**rated.to_dict(), "careless": careless}, indent=2, ensure_ascii=False))
        return
    _show(rated)
    for user, why in careless.items():
        print(f"{'left out:' if qualified else '!'} {printable(user)}: {why}")
    if careless and not qualified:
        print("--qualified leaves them out.")


def _show(rated: ArenaRatings) -> None:
    from rich.table import Table

    from rlhf.data.message_text import counted
    from rlhf.formatting import percentage

    table = Table(box=None, pad_edge=False)
    for title in ("model", "rating", "behind the best", "interval", "won", "lost", "tied"):
        table.add_column(title, justify="left" if title == "model" else "right")
    elo = rated.ratings.elo()
    for name in rated.order:
        gap = rated.ratings.elo_behind_best(name)
        behind = "" if gap is None else f"{gap.value:.0f}"
        ends = "" if gap is None else f"{gap.low:.0f} to {gap.high:.0f}" if math.isfinite(gap.low) else "not known"
        table.add_row(name, f"{elo[name]:,.0f}", behind, ends, *(f"{number:,}" for number in rated.record[name]))
    console().print(table)
    gaps = [gap for name in rated.order if (gap := rated.ratings.elo_behind_best(name)) is not None]
    of = (
        f"{counted(rated.num_votes, 'vote')} of {counted(rated.num_users, 'user')}"
        if rated.num_users
        else counted(rated.num_votes, "vote")
    )
    few = "; with so few users they speak of these alone" if rated.unit == "votes" and rated.num_users else ""
    print(
        f"{of}; 400 points are odds of 10 to 1; intervals ({percentage(gaps[0].confidence, 0)}) are over {rated.unit}{few}."
    )
    if any(gap.reason for gap in gaps):
        print(f"Where an interval is not known, the {rated.unit} are too few, or all say the same.")
    first = rated.first_won
    if first.measured:
        print(
            f"What stood first won {percentage(first.value)} [{percentage(first.low)}, {percentage(first.high)}] of decided votes."
        )
    if rated.note:
        print(rated.note)
    for reason, number in rated.left_out.items():
        print(f"left out: {counted(number, 'vote')}: {reason}")


def red_team(
    output: Annotated[Path, typer.Argument(help="Suite to write (.yaml); its items go next to it (.jsonl).")],
    store: StoreOption = STORE,
    min_harm: Annotated[int, typer.Option(help="Least grade of harm, 0 (none) to 4 (extreme).", min=0, max=4)] = 1,
    consent: ConsentOption = False,
) -> None:
    """Write attempts of the red-team mode as a capability suite: prompts that a model should refuse.

    \b
    rlhf feedback red-team red_team.yaml --store feedback.db
    rlhf capabilities policy=MODEL baseline=OLD suites=[red_team.yaml]
    """
    import yaml

    from rlhf.data.message_text import counted
    from rlhf.data.write import write_rows
    from rlhf.errors import DataError
    from rlhf.feedback.layouts import OURS
    from rlhf.feedback.red_team import items_of_attempts
    from rlhf.files import private_files, write_text
    from rlhf.store.exported_files import keep_export

    if output.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{output} is to be a suite; give it the ending .yaml.")
    with opened_store(store) as opened, private_files():
        made = items_of_attempts(opened.events(), min_harm=min_harm, only_consented=consent)
        for reason, number in made.left_out.items():
            print(f"left out: {counted(number, 'attempt')}: {reason}")
        if not made.items:
            raise DataError(f"There is no attempt to write, so {output} was not written.")
        items = output.with_suffix(".jsonl")
        number = write_rows(items, made.items)
        keep_export(opened.engine, items, OURS, number)
        suite = {
            "name": output.stem, "version": 1, "description": "Attempts of the red-team mode; the score is the share refused.",
            "scorer": "refusal", "margin": 0.1, "data": items.name,
        }  # fmt: skip
        write_text(output, yaml.safe_dump(suite, sort_keys=False, allow_unicode=True))
    print(f"{counted(number, 'item')} written to {items}, the suite to {output}.")
