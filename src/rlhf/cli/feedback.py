"""`rlhf feedback`: what people said, in and out of a store. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

from rlhf.cli import (
    compare,
    feedback_export,
    feedback_forget,
    feedback_import,
    feedback_votes,
    guidelines,
    people,
    project_plan,
)
from rlhf.cli.options import JsonOption, console
from rlhf.cli.stores import (
    STORE,
    ClassesOption,
    RightPriorOption,
    SmoothingOption,
    StoreOption,
    opened_store,
)
from rlhf.errors import ConfigError

app = typer.Typer(no_args_is_help=True)


@app.command("formats")
def feedback_formats(as_json: JsonOption = False) -> None:
    """List the layouts that can be imported and exported."""
    from rlhf.feedback.layouts import LAYOUTS

    rows = [
        {"name": name, "import": True, "export": known.exports, "about": known.about} for name, known in LAYOUTS.items()
    ]
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for row in rows:
        how = " ".join(word for word in ("import", "export") if row[word])
        table.add_row(str(row["name"]), how, str(row["about"]))
    console().print(table)


@app.command("report")
def feedback_report(
    store: StoreOption = STORE,
    classes: ClassesOption = None,
    smoothing: SmoothingOption = None,
    right_prior: RightPriorOption = None,
    as_json: JsonOption = False,
) -> None:
    """How far annotators agree, whom to trust, and which items divide them."""
    from rlhf.feedback.classes import parsed_classes
    from rlhf.feedback.consensus import Belief
    from rlhf.feedback.report import report_json, report_text

    how: Any = {
        "classes": None if classes is None else parsed_classes(classes),
        "belief": Belief(smoothing=smoothing, right_prior=right_prior),
    }
    with opened_store(store) as opened:
        if as_json:
            print(json.dumps(report_json(opened, **how), indent=2, ensure_ascii=False))
        else:
            print(report_text(opened, **how))


@app.command("invite")
def feedback_invite(
    name: Annotated[str, typer.Argument(help="Who is to judge; a name of your choice, shown to the owner only.")],
    store: StoreOption = STORE,
    owner: Annotated[bool, typer.Option("--owner", help="Invite them as an owner, who sees everything.")] = False,
    url: Annotated[
        str | None,
        typer.Option(
            help="Where they reach `rlhf annotate`; by default where it was last served from this store.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a link by which somebody comes in, once. The server need not be stopped for it."""
    from urllib.parse import urlsplit

    from rlhf.web.auth import invitation_link
    from rlhf.web.server_settings import ADDRESS, WebSettings

    if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise ConfigError(f"--url is {url!r}; wanted an address such as https://label.example.org.")
    with opened_store(store) as opened:
        known = url or opened.setting(ADDRESS)
        settings = WebSettings(public_url=known)
        print(invitation_link(opened, name, role="owner" if owner else "annotator", settings=settings))
    if known is None:
        print(
            f"No server was started with this store yet, so the link begins with {settings.base_url}; if `rlhf annotate` gets "
            "another address (--port, --public-url), say it by --url.",
            file=sys.stderr,
        )


@app.command("prioritize")
def feedback_prioritize(
    reward: Annotated[
        list[str], typer.Option(help="Folder of a reward model with several members, or several of them.")
    ],
    store: StoreOption = STORE,
) -> None:
    """Ask first what reward models disagree on: a judgment there teaches most."""
    from rlhf.models.sources import check_there

    for folder in reward:
        check_there(folder)
    from rlhf.data.message_text import counted
    from rlhf.feedback.active import reward_priorities
    from rlhf.models.reward import RewardModel

    with opened_store(store) as opened:
        priorities = reward_priorities(list(opened.tasks()), [RewardModel.from_pretrained(folder) for folder in reward])
        opened.set_priorities(priorities)
        print(f"{counted(len(priorities), 'task')} put in order of how much the reward models disagree on them.")


app.command("import")(feedback_import.import_)
app.command("convert")(feedback_import.convert)
app.command("export")(feedback_export.export)
app.command("arena")(feedback_votes.arena)
app.command("red-team")(feedback_votes.red_team)
app.command("forget")(feedback_forget.forget)
app.command("simulate")(project_plan.simulate)
app.command("sample-size")(project_plan.sample_size)
app.command("guidelines")(guidelines.guidelines)
for _command in (people.token, people.revoke, people.restore_access):
    app.command()(_command)
app.add_typer(compare.app, name="compare")
