"""`rlhf feedback forget`: delete what a store holds of somebody, and reach what left it. Heavy imports happen inside the command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.options import RUNS, JsonOption, RunsOption
from rlhf.cli.stores import STORE, StoreOption, opened_store
from rlhf.errors import ConfigError, printable

if TYPE_CHECKING:
    from rlhf.feedback.forget import Forgetting
    from rlhf.pipeline.trace_lineage import Learned

NOT_REACHED = (
    "copies of these files, files written by `rlhf feedback convert`, and rows that other commands made of them",
    "backups of the store and of its disk, and PostgreSQL's write-ahead log",
    "what runs keep: the ids of traces (`traces/` in the folder of a stage), completions and reports with examples",
)
"""What may still hold something, which this command can't know or must not change."""


def forget(
    user: Annotated[
        str | None,
        typer.Argument(
            help="As the tool or program calls them that their feedback came from; or an annotator.", show_default=False
        ),
    ] = None,
    store: StoreOption = STORE,
    trace: Annotated[
        str | None,
        typer.Option(help="Forget one conversation or message by its id, in place of a user.", show_default=False),
    ] = None,
    program: Annotated[
        str | None, typer.Option(help="Only production events that this program sent.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    runs: RunsOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Delete a user's judgments, events and texts from a store and from the files exported from it, and name the runs that learned from them.

    It may be repeated: a command that was stopped goes on. Weights can't forget; the runs that learned from the rows are listed.
    """
    from rlhf.feedback.forget import forget as forget_somebody
    from rlhf.pipeline.trace_lineage import learned_from

    if (user is None) == (trace is None):
        raise ConfigError("Name either a user or a conversation (--trace ID).")
    with opened_store(store) as opened:
        forgetting = forget_somebody(opened, user or "", program=program, trace_id=trace or "", dry_run=dry_run)
    learned = learned_from(runs, traces=forgetting.traces, hashes=forgetting.hashes) if runs.is_dir() else None
    if as_json:
        print(json.dumps(_as_dict(forgetting, learned, dry_run), indent=2, ensure_ascii=False))
        return
    _say(forgetting, learned, dry_run)


def _as_dict(forgetting: Forgetting, learned: list[Learned] | None, dry_run: bool) -> dict[str, Any]:
    held = forgetting.held
    return {
        "dry_run": dry_run, "judgments": held.num_judgments, "judgments_of_others": held.num_of_others, "tasks": len(held.tasks),
        "tasks_kept": len(held.shared_tasks), "events": len(held.events), "traces": len(forgetting.traces),
        "served_completions": len(held.completions),
        "files": [{"path": str(f.path), "state": f.state, "removed": f.num_removed, "rows": f.num_rows} for f in forgetting.files],
        "learned": None if learned is None else [one.to_dict() for one in learned], "not_reached": list(NOT_REACHED),
    }  # fmt: skip


def _say(forgetting: Forgetting, learned: list[Learned] | None, dry_run: bool) -> None:
    from rlhf.data.message_text import counted

    if forgetting.scrubbed_only:
        print(
            "Nothing of them was left; the database's files were rewritten."
            if not dry_run
            else "Nothing of them is left."
        )
        return
    held = forgetting.held
    print(
        f"{'Would be deleted' if dry_run else 'Deleted'}: {counted(held.num_judgments, 'judgment')}, {counted(len(held.tasks), 'task')} "
        f"with their texts ({counted(held.num_of_others, 'judgment')} of others on them), {counted(len(held.events), 'event')}, "
        f"{counted(len(held.completions), 'completion')} that a server sent them."
    )
    if held.shared_tasks:
        print(
            f"{counted(len(held.shared_tasks), 'task')} stay: others have the same text in a conversation of theirs, or the text is not theirs."
        )
    for file in forgetting.files:
        print(printable(f"file {file.words(dry_run=dry_run)}"))
    if learned is None:
        print("Which runs learned from it was not looked up: there is no folder of runs (--runs).")
    for one in learned or ():
        print(printable(f"! learned from it: {one.words()}"))
    if any(one.weights for one in learned or ()):
        print(
            "These weights can't forget. Train them again from the files as they are now (`rlhf run RECIPE` does what depends on a changed "
            "file), and delete the old ones, released ones (`rlhf registry list`) too."
        )
    print("Not reached:")
    for place in NOT_REACHED:
        print(f"  - {place}")
