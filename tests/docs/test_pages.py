"""What the pages say can be done: links lead somewhere, commands exist, code runs as far as a reader would get."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import rlhf
from tests.fixtures.source import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TARGETS = set(re.findall(r"^([a-z]+):.*  ## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_files_and_headings_that_exist(page):
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page_id(page)} links to {link}: no such file"
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), f"{page_id(page)} links to {link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_and_recipes_that_are_named_exist(page):
    text = page.read_text(encoding="utf-8")
    unknown = set(re.findall(r"(?:`|^ *)make ([a-z]+)", text, re.MULTILINE)) - TARGETS
    assert not unknown, f"{page_id(page)}: make has no target {sorted(unknown)}"
    for recipe in re.findall(r"\brecipes/[\w/-]+\.yaml", text):
        assert (ROOT / recipe).is_file(), f"{page_id(page)} names {recipe}: no such file"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_python_blocks_parse_and_import_public_names(page):
    for language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        if language != "python":
            continue
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and node.module == "rlhf":
                unknown = {alias.name for alias in node.names} - rlhf.PUBLIC.keys()
                assert not unknown, f"{page_id(page)} imports {sorted(unknown)} from rlhf: not public"


def test_the_page_of_recipes_lists_every_recipe():
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\(\.\./recipes/([\w/-]+\.yaml)\)", text))
    recipes = ROOT / "recipes"  # methods/ has an index of its own, test_methods.py
    assert listed == {
        path.relative_to(recipes).as_posix() for kind in ("*.yaml", "large/*.yaml") for path in recipes.glob(kind)
    }


def test_the_index_links_to_every_page_of_docs_and_results():
    docs = ROOT / "docs"
    linked = set(LINK.findall((docs / "README.md").read_text(encoding="utf-8")))
    pages = {path.relative_to(docs).as_posix() for pattern in ("*.md", "results/*.md") for path in docs.glob(pattern)}
    assert pages - {"README.md"} <= linked


def test_the_readme_is_short_and_says_no_command_twice():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) < 150
    assert [line for line in lines if len(line) >= 120] == []
    commands = [
        line.partition("  #")[0].strip()
        for language, code in FENCE.findall(text)
        if language == "sh"
        for line in code.splitlines()
    ]
    assert len(commands) == len(set(commands)) > 1
