"""AGENTS.md and llms.txt say what the documentation says."""

from __future__ import annotations

import re

import pytest

from rlhf.config.stages import BY_KIND
from tests.fixtures.source import ROOT
from tools import agent_docs


@pytest.mark.parametrize("name", agent_docs.FILES)
def test_the_file_is_what_the_tool_makes_of_the_documentation_today(name):
    made = agent_docs.FILES[name]()
    assert (ROOT / name).read_text(encoding="utf-8") == made, "run: python tools/agent_docs.py"


@pytest.mark.parametrize("name", agent_docs.FILES)
def test_every_page_that_is_linked_exists(name):
    links = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (ROOT / name).read_text(encoding="utf-8"))
    assert len(links) > 40
    assert not [link for link in links if not (ROOT / link).exists()]


def test_an_agent_finds_commands_schema_kinds_and_exit_codes():
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    for wanted in (
        "rlhf config schema --json",
        "rlhf validate",
        "| 3 |",
        "| preference |",
        "make test",
        *(f"`{kind}`" for kind in BY_KIND),
    ):
        assert wanted in text, wanted
    assert text.count("```") % 2 == 0


def test_every_page_has_a_description_of_its_own():
    pages = [(address, about) for rows in agent_docs.page_tables().values() for _, address, about in rows]
    assert len({address for address, _ in pages}) == len(pages)
    assert [address for address, about in pages if not about] == []
    assert len({about for _, about in pages}) == len(pages)
