"""`rlhf feedback sample-size` and `rlhf feedback simulate`: a project before anybody is asked. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

import typer

from rlhf.cli.options import JsonOption, console
from rlhf.cli.stores import STORE, StoreOption, opened_store
from rlhf.errors import ConfigError
from rlhf.formatting import percentage

OVERLAPS = (1, 3, 5, 7, 9)
"""Judgments of each pair that a plan compares."""


def simulate(
    store: StoreOption = STORE,
    good: Annotated[int, typer.Option(help="Annotators who err on 5 % of the items.", min=0)] = 3,
    careless: Annotated[int, typer.Option(help="Annotators who err on 35 %.", min=0)] = 1,
    spammers: Annotated[int, typer.Option(help="Annotators who throw a coin.", min=0)] = 0,
    overlap: Annotated[
        int | None,
        typer.Option(
            help="Independent judgments of each task (1); the store remembers it, as of `rlhf annotate --overlap`.",
            min=1,
            show_default=False,
        ),
    ] = None,
    gold_frac: Annotated[
        float | None,
        typer.Option(
            help="Share of tasks whose answer is known (0); remembered, too.", min=0, max=0.99, show_default=False
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Stop after so many judgments.", min=1, show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same judgments.")] = 0,
    i_know: Annotated[
        bool,
        typer.Option(
            "--i-know",
            help="Also in a store where people judged or were invited: there is no way to take these judgments out.",
        ),
    ] = False,
) -> None:
    """Try a project out: annotators made of numbers judge what a store holds, which is one that nobody has worked in.

    Which completion is better is drawn by the seed, but for gold items: nothing here says anything about the models.
    """
    from rlhf.cli.annotate import set_rules
    from rlhf.data.message_text import counted
    from rlhf.feedback import dry_run
    from rlhf.feedback.simulate import crowd

    if not good + careless + spammers:
        raise ConfigError("The crowd is empty; wanted at least one of --good, --careless and --spammers.")
    rules = {"overlap": overlap, "gold_frac": gold_frac}
    with opened_store(store) as opened:
        if not i_know:
            dry_run.check_no_people(opened)  # before its rules are changed
        set_rules(opened, {name: value for name, value in rules.items() if value is not None})
        run = dry_run.simulate(opened, crowd(good, careless, spammers), seed=seed, limit=limit, among_people=i_know)
    if overlap is not None and overlap > good + careless + spammers:
        print(
            f"! {counted(overlap, 'judgment')} of each task are wanted, and {counted(good + careless + spammers, 'annotator')} can "
            "give no more than one each."
        )
    print(f"{counted(run.num_judgments, 'simulated judgment')}:")
    for name, number in run.by_annotator.items():
        print(f"  {name}  {number:,}")


def sample_size(
    difference: Annotated[
        float,
        typer.Option(help="Smallest distance of a win rate from one half that is to be found.", min=0.001, max=0.499),
    ] = 0.05,
    tie_frac: Annotated[float, typer.Option(help="Share of ties to expect.", min=0, max=0.99)] = 0.1,
    power: Annotated[float, typer.Option(help="Chance to find a difference that is there.", min=0.01, max=0.99)] = 0.8,
    accuracy: Annotated[float, typer.Option(help="How often one annotator is right.", min=0.01, max=0.999)] = 0.75,
    wanted_accuracy: Annotated[
        float | None,
        typer.Option(
            help="How often the majority is to be right (0.9); says how many judgments of each, unless --overlap does.",
            min=0.01,
            max=0.9999,
            show_default=False,
        ),
    ] = None,
    pairs: Annotated[
        int | None, typer.Option(help="Pairs to judge; those that the difference needs by default.", min=1)
    ] = None,
    overlap: Annotated[
        int | None, typer.Option(help="Judgments of each pair; as many as the accuracy needs by default.", min=1)
    ] = None,
    price: Annotated[float, typer.Option(help="Price of one judgment.", min=0)] = 0.5,
    response_price: Annotated[float, typer.Option(help="Price of sampling one completion.", min=0)] = 0.02,
    reward_accuracy: Annotated[
        float | None,
        typer.Option(
            help="How right the reward model is to be on held-out pairs; takes --measured.",
            min=0.501,
            max=0.999,
            show_default=False,
        ),
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(
            help="How right it was after so many pairs, as PAIRS:ACCURACY (500:0.64); twice or more.",
            show_default=False,
        ),
    ] = None,
    held_out: Annotated[
        int | None, typer.Option(help="Held-out pairs behind each --measured.", min=1, show_default=False)
    ] = None,
    held_out_accuracy: Annotated[
        float | None,
        typer.Option(
            help="How often their labels are right; as often as those of the other pairs by default.",
            min=0.501,
            max=1,
            show_default=False,
        ),
    ] = None,
    measured_overlap: Annotated[
        int | None, typer.Option(help="Judgments of each pair behind --measured (1).", min=1, show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Before anybody is asked: how many pairs, how many judgments of each, and at what price."""
    from rlhf.cli.reward_plan import reward_plan
    from rlhf.evaluation.sample_size import detectable_difference, prompts_for_win_rate
    from rlhf.feedback import planning

    if overlap is not None and wanted_accuracy is not None:
        raise ConfigError(
            "--overlap says how many judgments of each pair there are, and --wanted-accuracy reckons it; give one."
        )
    wanted_accuracy = 0.9 if wanted_accuracy is None else wanted_accuracy
    enough = planning.judgments_for_accuracy(accuracy, wanted_accuracy)
    if overlap is None and enough is None:
        raise ConfigError(
            f"No majority of 101 annotators who are right {percentage(accuracy, 0)} of the time is right "
            f"{percentage(wanted_accuracy, 0)} of the time; find "
            "better ones, ask for less, or give --overlap yourself."
        )
    each = overlap or enough or 1
    right = planning.majority_accuracy(accuracy, each)
    if right <= 0.5:
        raise ConfigError(
            f"Annotators who are right {percentage(accuracy, 0)} of the time say no more than a coin, so no number of pairs finds anything; "
            "--accuracy lies above 0.5."
        )
    needed = prompts_for_win_rate(difference, tie_frac=tie_frac, label_accuracy=right, power=power)
    number = pairs or needed
    cost = planning.estimate_annotation_cost(
        number, judgments_per_pair=each, price_per_judgment=price, price_per_response=response_price
    )
    numbers: dict[str, Any] = {
        "pairs": number,
        "pairs_for_difference": needed,
        "detectable_difference": detectable_difference(number, tie_frac=tie_frac, label_accuracy=right, power=power),
        "judgments_per_pair": each,
        "majority_accuracy": right,
        "judgments": cost.comparisons,
        "cost_annotation": cost.annotation,
        "cost_generation": cost.generation,
        "cost": cost.total,
        "price": price,
        "response_price": response_price,
        "wanted_accuracy": None if overlap is not None else wanted_accuracy,
        "overlaps": _by_overlap(difference, tie_frac, power, accuracy, price, response_price),
        "reward_accuracy": reward_plan(
            measured or (),
            reward_accuracy,
            held_out=held_out,
            held_out_accuracy=held_out_accuracy,
            measured_overlap=measured_overlap,
            accuracy=accuracy,
            overlaps=sorted({*OVERLAPS, *([overlap] if overlap else [])}),
            price=price,
            response_price=response_price,
        ),
        "reward_accuracy_reason": None if measured else planning.NOTHING_MEASURED,
        "guidance": _guidance(),
    }
    if as_json:
        least = float(numbers["detectable_difference"])
        print(json.dumps(numbers | {"detectable_difference": None if math.isnan(least) else least}, indent=1))
    else:
        _print_plan(numbers, difference, power, accuracy, reward_accuracy)


def _guidance() -> dict[str, dict[str, Any]]:
    """Rules of thumb by the size of a model."""
    from rlhf.feedback import planning

    return {
        size: {"least": pairs.minimum, "recommended": pairs.recommended, "most": pairs.saturates}
        for size, pairs in planning.DATASET_GUIDELINES.items()
    }


def _by_overlap(
    difference: float, tie_frac: float, power: float, accuracy: float, price: float, response_price: float
) -> list[dict[str, Any]]:
    """What the same difference takes, and costs, with other numbers of judgments of each pair."""
    from rlhf.evaluation.sample_size import prompts_for_win_rate
    from rlhf.feedback import planning

    rows = []
    for overlap in OVERLAPS:
        right = planning.majority_accuracy(accuracy, overlap)
        pairs = prompts_for_win_rate(difference, tie_frac=tie_frac, label_accuracy=right, power=power)
        cost = planning.estimate_annotation_cost(
            pairs, judgments_per_pair=overlap, price_per_judgment=price, price_per_response=response_price
        )
        rows.append(
            {
                "judgments_per_pair": overlap, "majority_accuracy": right, "pairs": pairs, "judgments": cost.comparisons,
                "cost": cost.total,
            }
        )  # fmt: skip
    return rows


def _print_plan(
    plan: dict[str, Any], difference: float, power: float, accuracy: float, reward_accuracy: float | None
) -> None:
    from rich.table import Table

    from rlhf.cli.reward_plan import reward_plan_lines
    from rlhf.data.message_text import counted
    from rlhf.feedback.planning import GUIDANCE_SOURCE

    out = console()
    table = Table.grid(padding=(0, 2))
    detectable = plan["detectable_difference"]
    finds = (
        f"finds a true win rate {percentage(detectable)} from one half or farther"
        if not math.isnan(detectable)
        else "finds no difference of win rates"
    )
    asked = f"--wanted-accuracy is {plan['wanted_accuracy']:g}: " if plan["wanted_accuracy"] is not None else ""
    for what, value, why in (
        ("pairs", f"{plan['pairs']:,}", f"{finds}, {percentage(power, 0)} of the time"),
        ("", f"{plan['pairs_for_difference']:,}", f"would find one {percentage(difference)} from it; the labels' errors are reckoned with"),
        ("judgments of each", f"{plan['judgments_per_pair']:,}",
         f"{asked}their majority is right {percentage(plan['majority_accuracy'])} of the time, each alone {percentage(accuracy)}"),
        ("judgments", f"{plan['judgments']:,}", ""),
        ("cost", f"{plan['cost']:,.2f}", f"{plan['cost_annotation']:,.2f} judging, at {plan['price']:,.2f} each (--price); "
         f"{plan['cost_generation']:,.2f} sampling, at {plan['response_price']:,.2f} a completion (--response-price)"),
    ):  # fmt: skip
        table.add_row(what, value, why)
    out.print(table)
    cheapest = min(plan["overlaps"], key=lambda row: float(row["cost"]))
    if plan["pairs"] == plan["pairs_for_difference"] and cheapest["cost"] < plan["cost"]:
        out.print(
            f"Cheaper: {counted(cheapest['judgments_per_pair'], 'judgment')} of each of {counted(cheapest['pairs'], 'pair')} "
            f"{'finds' if cheapest['judgments_per_pair'] == 1 else 'find'} the same for {cheapest['cost']:,.2f}; see below."
        )
    out.print(f"\nThe same {percentage(difference)} with other numbers of judgments of each (--overlap chooses one):")
    choices = Table.grid(padding=(0, 2))
    for row in plan["overlaps"]:
        choices.add_row(
            f"  {row['judgments_per_pair']}", f"{percentage(row['majority_accuracy'])} right", counted(row["pairs"], "pair"),
            counted(row["judgments"], "judgment"), f"cost {row['cost']:,.2f}",
        )  # fmt: skip
    out.print(choices)
    out.print()
    for line in reward_plan_lines(plan["reward_accuracy"], reward_accuracy):
        out.print(line, highlight=False, markup=False, soft_wrap=True)  # commands among them are to be copied
    if plan["reward_accuracy"] is None:
        each = counted(plan["judgments_per_pair"], "judgment")
        out.print(
            f"Measured on held-out pairs with {each} of each, a perfect one is right {percentage(plan['majority_accuracy'])} of the time; "
            f"give --measured-overlap {plan['judgments_per_pair']} with the points then."
        )
    out.print(f"\nPairs for a reward model, by the size of the policy ({GUIDANCE_SOURCE}):")
    guide = Table.grid(padding=(0, 2))
    for size, row in plan["guidance"].items():
        guide.add_row(
            f"  {size}",
            f"{row['least']:,} at least",
            f"{row['recommended']:,} recommended",
            f"beyond {row['most']:,} little more",
        )
    out.print(guide)
