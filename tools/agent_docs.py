"""AGENTS.md and llms.txt, made from the documentation: for coding agents, which read one file and want commands and the schema.

python tools/agent_docs.py            # write both
python tools/agent_docs.py --check    # exit with 1 where one of them is not what the documentation says
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import rlhf
import rlhf.errors
from rlhf.config.stages import BY_KIND

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MADE = "Made by tools/agent_docs.py from docs/; change those and run it again."


def summary() -> str:
    """The first paragraph of the README."""
    return " ".join((ROOT / "README.md").read_text(encoding="utf-8").split("\n\n")[1].split())


def page_tables() -> dict[str, list[tuple[str, str, str]]]:
    """Heading -> title, address and question of each page that docs/README.md lists."""
    tables: dict[str, list[tuple[str, str, str]]] = {}
    heading = ""
    for line in (DOCS / "README.md").read_text(encoding="utf-8").splitlines():
        if named := re.match(r"\*\*(.+?)\*\*", line):
            heading = named[1]
        cells = re.match(r"\| (.+) \| (.+) \|$", line)
        links = (
            re.findall(r"\[(.+?)\]\((.+?)\)", cells[1])
            if cells
            else re.findall(r"\[(.+?)\]\((.+?)\)(?: \((.+?)\))?", line)
        )
        for title, address, *about in links:
            tables.setdefault(heading, []).append((title, f"docs/{address}", cells[2] if cells else "".join(about)))
    return tables


def section(page: str, heading: str) -> str:
    """What stands under a heading of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"docs/{page} has no heading {heading!r}"
    return found[1].strip()


def commands() -> str:
    """The blocks of docs/commands.md with their headings."""
    text = (DOCS / "commands.md").read_text(encoding="utf-8")
    found = re.findall(r"^\*\*(.+?)\*\*\n\n(```sh\n.*?```)", text, re.MULTILINE | re.DOTALL)
    return "\n\n".join(f"{heading}:\n\n{block}" for heading, block in found)


def exit_codes() -> str:
    """Exit code and meaning of every class of errors."""
    classes = {
        code: value
        for value in reversed(list(vars(rlhf.errors).values()))
        if isinstance(value, type)
        and isinstance(code := getattr(value, "exit_code", None), int)
        and value.__module__ == rlhf.errors.__name__
    }
    rows = [
        f"| {code} | {' '.join((cls.__doc__ or '').split(chr(10) * 2)[0].split())} |"
        for code, cls in sorted(classes.items())
    ]
    return "\n".join(["| exit code | meaning |", "|---|---|", *rows])


def make_targets() -> str:
    """Targets of the Makefile that say what they do."""
    found = re.findall(r"^(\w+):.*?## (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return "\n".join(f"- `make {name}`: {about}" for name, about in found)


def agents() -> str:
    """The text of AGENTS.md."""
    pages = "\n".join(
        f"- [{title}]({address}): {about}" for pages in page_tables().values() for title, address, about in pages
    )
    return f"""<!-- {MADE} -->

# For coding agents

{summary()}

## Working with recipes

A run is a YAML recipe: `name`, and `stages` by name, each with a `kind` and its settings; `stage:NAME` names what another stage makes.

1. `rlhf config schema --json` prints the JSON Schema of a recipe; `rlhf config schema KIND` lists the settings of a kind with their meanings.
2. `rlhf data check FILE` and `rlhf data show FILE model=NAME` say what a data file is and which tokens are trained.
3. `rlhf validate RECIPE --json` finds errors before anything trains; every message names the key and what to write.
4. `rlhf run RECIPE`; running it again resumes or keeps what is there. Most commands take `--json`.

Kinds of stages: {", ".join(f"`{kind}`" for kind in BY_KIND)}.

## Commands

{commands()}

{exit_codes()}

## Kinds of rows

{section("data.md", "Kinds of rows").partition(chr(10) * 2)[0]}

## Python

`from rlhf import NAME`, where a name is one of {", ".join(f"`{name}`" for name in rlhf.PUBLIC)}. [docs/python.md](docs/python.md) shows how.

## Working on this repository

{make_targets()}

Layout and contracts: [docs/design.md](docs/design.md). A new kind of stage, reward or method: [docs/extending.md](docs/extending.md). What may
change: [docs/stability.md](docs/stability.md).

## Pages

{pages}
"""


def llms() -> str:
    """The text of llms.txt (llmstxt.org)."""
    parts = [f"# rlhf\n\n> {summary()}\n\n{MADE} Commands, schema and exit codes in one page: [AGENTS.md](AGENTS.md)."]
    for heading, pages in page_tables().items():
        lines = "\n".join(f"- [{title}]({address}): {about}" for title, address, about in pages)
        parts.append(f"## {heading}\n\n{lines}")
    return "\n\n".join(parts) + "\n"


FILES = {"AGENTS.md": agents, "llms.txt": llms}


def main() -> None:
    """Write both files, or look whether they are up to date."""
    stale = [
        name
        for name, text in FILES.items()
        if not (ROOT / name).is_file() or (ROOT / name).read_text("utf-8") != text()
    ]
    if "--check" in sys.argv[1:]:
        if stale:
            raise SystemExit(f"{' and '.join(stale)}: not what the documentation says; run: python tools/agent_docs.py")
        return
    for name in stale:
        (ROOT / name).write_text(FILES[name](), encoding="utf-8")
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
