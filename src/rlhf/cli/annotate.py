"""`rlhf annotate`: a labeling server in one process. Heavy imports happen inside the command."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.error_exit import Interrupted
from rlhf.cli.stores import STORE, opened_store
from rlhf.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from rlhf.feedback.tasks import SourceItems
    from rlhf.store import AssignmentRules, PreferenceStore
    from rlhf.web import WebSettings


def annotate(
    tasks: Annotated[
        str | None,
        typer.Argument(help="A file of rows to judge, or `-` for standard input; without it, what the store holds."),
    ] = None,
    store: Annotated[
        str, typer.Option(help="Where tasks and judgments are kept: a file (SQLite), or postgresql://USER@HOST/NAME.")
    ] = STORE,
    kind: Annotated[
        str | None, typer.Option(help="How to ask: pairwise, graded5, graded7, ranking, rating or binary.")
    ] = None,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Ask only tasks of this batch; new tasks get it. The store remembers it. (`feedback compare start` makes a batch.)"
        ),
    ] = None,
    all_batches: Annotated[
        bool, typer.Option("--all-batches", help="Ask tasks of every batch again, after a --batch.")
    ] = False,
    overlap: Annotated[int | None, typer.Option(help="Independent judgments of each task (1).", min=1)] = None,
    gold_frac: Annotated[
        float | None,
        typer.Option(help="Share of tasks whose answer is known, to check annotators (0).", min=0, max=0.99),
    ] = None,
    timeout_minutes: Annotated[
        float | None, typer.Option(help="After so long an unanswered task goes to somebody else (30).", min=0.1)
    ] = None,
    max_judgments: Annotated[int | None, typer.Option(help="Of each annotator (no limit).", min=1)] = None,
    guidelines: Annotated[
        Path | None, typer.Option(help="What annotators look at: a YAML or JSON file; see `rlhf feedback guidelines`.")
    ] = None,
    annotator: Annotated[
        list[str] | None, typer.Option(help="Print an invitation for somebody of this name; may be repeated.")
    ] = None,
    owner: Annotated[str, typer.Option(help="Name of the owner, who sees the dashboard and may judge, too.")] = "owner",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    public_url: Annotated[
        str | None,
        typer.Option(
            help="Where people reach the server if there is a proxy in front of it: https://label.example.org"
        ),
    ] = None,
    i_know: Annotated[
        bool, typer.Option("--i-know", help="Serve other machines without https: who listens on the way reads along.")
    ] = False,
) -> None:
    """`rlhf annotate`; the first line of its help is in ``COMMANDS``, and the others are:

    Prints a link for the owner and, with --annotator, one for each annotator. Every link works once, and
    only the newest of a person's. Starting again adds only tasks that are not there yet, and keeps all judgments.

    Without --batch all tasks of the store are asked, whether they were imported or opened by `rlhf feedback compare start`;
    the first line says which.
    """
    from rlhf.feedback.guidelines_file import read_guidelines
    from rlhf.feedback.store_guidelines import set_guidelines
    from rlhf.feedback.tasks import SourceItems, read_items
    from rlhf.web.server_settings import ADDRESS, WebSettings

    if kind is not None and tasks is None:
        raise ConfigError(
            "--kind says how new tasks are asked, and no file of them was named; leave it out, or name one."
        )
    if batch is not None and all_batches:
        raise ConfigError("--batch asks tasks of one batch and --all-batches of every one; give one of them.")
    asked = read_guidelines(guidelines) if guidelines is not None else None
    settings = WebSettings(host=host, port=port, public_url=public_url)
    refuse_open_door(settings, i_know=i_know)
    items = read_items(tasks, kind=kind, batch=batch or "") if tasks is not None else SourceItems()
    with listening(settings) as server, opened_store(store, must_exist=tasks is None) as opened:
        settings = settings.model_copy(update={"port": server.getsockname()[1]})
        changed = {
            "overlap": overlap, "gold_frac": gold_frac, "timeout_minutes": timeout_minutes,
            "max_judgments": max_judgments, "batch": batch,
        }  # fmt: skip
        rules = {name: value for name, value in changed.items() if value is not None}
        if asked is not None:
            set_guidelines(opened, asked)
        if tasks is not None:
            add_tasks(opened, items)
        if batch is not None:
            check_batch(opened, batch)
        set_rules(opened, rules | ({"batch": None} if all_batches else {}))
        opened.set_setting(ADDRESS, settings.base_url)
        _say_how_far(opened, store)
        _print_links(opened, settings, owner=owner, annotators=annotator or [])
        _serve(opened, settings, server)
    print(f"Stopped. Every judgment that was acknowledged is in {_shown(store)}; the same command goes on.")


def refuse_open_door(settings: WebSettings, *, i_know: bool) -> None:
    """Passwords and judgments travel in the clear to other machines only on somebody's word.

    Raises:
        ConfigError: The address is reached by other machines, and neither https nor that word is given.
    """
    from rlhf.web.server_settings import is_loopback

    if not is_loopback(settings.host) and not settings.is_https and not i_know:
        raise ConfigError(
            f"--host {settings.host} is reached by other machines, and what they send would travel unencrypted. Put a proxy "
            "with https before it and name it (--public-url https://...), or say --i-know in a network you trust."
        )


def listening(settings: WebSettings) -> socket.socket:
    """A socket on the address, before anything is written.

    Raises:
        ConfigError: The address is taken, or is none of this machine.
    """
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=512)
    except OSError as err:
        # `create_server` adds the address to the system's words, and looking up a name fails with numbers of its own, below 0
        reason = os.strerror(err.errno) if err.errno and err.errno > 0 else err.strerror or str(err)
        raise ConfigError(
            f"Can't listen on {settings.host}:{settings.port} ({reason}); is another server running there? "
            "Choose another port (--port 0 takes a free one)."
        ) from None


def set_rules(store: PreferenceStore, changed: dict[str, Any]) -> None:
    """Change how tasks are handed out, in what was named and nothing else; the store remembers it."""
    from rlhf.store import AssignmentRules

    if changed:
        rules: AssignmentRules = AssignmentRules.of({**store.rules.model_dump(), **changed})
        store.set_setting("rules", rules.model_dump(mode="json"))
        store.rules = rules


def add_tasks(store: PreferenceStore, source_items: SourceItems) -> None:
    """Add those that the store does not hold yet, and say how many, and what of the file is not taken."""
    from rlhf.data.message_text import counted
    from rlhf.feedback.imports import import_items

    done = import_items(store, source_items.items, with_judgments=False)
    known = f", {done.num_known:,} there already" if done.num_known else ""
    print(f"{counted(done.num_added, 'task')} added{known}.")
    if source_items.left_out:
        first = source_items.left_out[0]
        print(f"{counted(len(source_items.left_out), 'row')} left out (the first: {first.where}: {first.reason})")
    if number := sum(len(item.judgments) for item in source_items.items):
        print(f"! {counted(number, 'judgment')} in the file not taken; `rlhf feedback import` takes them.")


def check_batch(store: PreferenceStore, batch: str) -> None:
    """Refuse a batch of which nobody could be asked anything.

    Raises:
        ConfigError: The store holds no task of it.
    """
    batches = store.batches()
    if batch not in batches:
        known = ", ".join(repr(name) if name else "tasks without one" for name in batches) or "none"
        raise ConfigError(
            f"There is no batch {batch!r} in this store.{did_you_mean(batch, batches)} There are: {known}."
        )


def _say_how_far(store: PreferenceStore, place: str) -> None:
    from rlhf.data.message_text import counted

    batches, batch = store.batches(), store.rules.batch
    if not batches:
        raise ConfigError(f"{_shown(place)} holds no tasks yet; name a file of them: rlhf annotate tasks.jsonl")
    far = store.progress()
    gold = f" and {counted(far.num_gold, 'gold item')}" if far.num_gold else ""
    print(
        f"{_shown(place)}: {counted(far.num_tasks, 'task')}{gold}, {far.num_done:,} of {counted(far.num_wanted, 'judgment')} made."
    )
    if never := store.num_never_asked():
        print(f"! {counted(never, 'task')} of kind multiclass can't be labeled on the page; their labels are imported.")
    others = sum(number for name, number in batches.items() if name != batch)
    if batch is not None and others:
        print(
            f"Only the batch {batch!r} is asked; {counted(others, 'task')} outside it wait (--all-batches asks them, too)."
        )
    elif batch is None and len(batches) > 1:
        listed = ", ".join(
            f"{name!r} ({number:,})" if name else f"none ({number:,})" for name, number in batches.items()
        )
        print(f"Asked are the tasks of all batches: {listed}; --batch NAME asks one alone.")


def _print_links(store: PreferenceStore, settings: WebSettings, *, owner: str, annotators: list[str]) -> None:
    from rlhf.web import invitation_link

    for name, role in [(owner, "owner"), *((name, "annotator") for name in annotators)]:
        print(f"\n{name} ({role}) comes in by this link, once, within {settings.invitation_days:g} days:")
        print(f"  {invitation_link(store, name, role=role, settings=settings)}")
    print(f"\nWho came in before finds everything at {settings.base_url}/. Ctrl-C stops.", flush=True)


def _serve(store: PreferenceStore, settings: WebSettings, listener: socket.socket) -> None:
    from rlhf.feedback.web import create_annotation_app
    from rlhf.web.connections import serve

    app = create_annotation_app(store, settings)
    with contextlib.suppress(Interrupted):  # it ends in order and passes the signal on; so a server is stopped
        serve(app, listener, behind_proxy=settings.public_url is not None)


def _shown(place: str) -> str:
    """A file, or a URL without its password."""
    if "://" not in place:
        return str(Path(place))
    from sqlalchemy.engine import make_url

    return make_url(place).render_as_string(hide_password=True)
