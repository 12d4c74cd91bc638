"""The option that names a store of judgments, and how a command opens one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.errors import ConfigError, did_you_mean_file

if TYPE_CHECKING:
    from rlhf.store import PreferenceStore
    from rlhf.store.record import Recorded

STORE = "annotations.db"
StoreOption = Annotated[
    str,
    typer.Option(
        "--store", help="Where tasks and judgments are kept: a file (SQLite), or postgresql://USER@HOST/NAME."
    ),
]
KindOption = Annotated[
    str | None,
    typer.Option(help="pairwise, graded5, graded7, ranking, rating, binary or multiclass.", show_default=False),
]
BatchOption = Annotated[str | None, typer.Option(help="Name of a batch of tasks.", show_default=False)]
ClassesOption = Annotated[
    str | None,
    typer.Option(
        help="Labels of several classes: all there can be, as a,b,c; by default those in the data.", show_default=False
    ),
]


def _dawid_skene(about: str) -> Any:
    return typer.Option(help=f"Dawid-Skene: judgments added to {about}.", min=0, show_default=False)


SmoothingOption = Annotated[
    float | None, _dawid_skene("every cell of each annotator's table (0.5; of k > 3 values 1.5 / k)")
]
RightPriorOption = Annotated[
    float | None, _dawid_skene("the cells of right answers, the belief that people mostly are right (4)")
]


def opened_store(store: str, *, must_exist: bool = True) -> PreferenceStore:
    """A store; one that is only looked at must be there, or a misspelled name would make an empty one.

    An empty file is none yet.
    """
    from rlhf.store import PreferenceStore

    path = Path(store)
    if must_exist and "://" not in store and not path.is_dir() and not (path.is_file() and path.stat().st_size):
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = did_you_mean_file(path.name, beside)
        raise ConfigError(
            f"There is no store {store}.{hint} `rlhf annotate TASKS.jsonl` and `rlhf feedback import` make one; --store names it."
        )
    return PreferenceStore(store)


def say_recorded(recorded: Recorded) -> None:
    """How many judgments were added, which were there already, and where answers differ."""
    from rlhf.data.message_text import counted, printable

    there = f", {recorded.num_known:,} there already" if recorded.num_known else ""
    print(f"{counted(recorded.num_added, 'judgment')} added{there}.")
    if number := recorded.num_corrections:
        does = "is a correction" if number == 1 else "are corrections"
        print(
            f"{number:,} of those added {does}: one person answered one task more than once, and the last answer counts."
        )
    if others := recorded.other_answers:
        differs = "says" if len(others) == 1 else "say"
        print(
            f"! {len(others):,} of those there already {differs} something else here, and the store's answers stay (the first: "
            f"{printable(others[0])})."
        )
