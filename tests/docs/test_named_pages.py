"""A page that messages and help name is there."""

from __future__ import annotations

import re

from tests.fixtures.source import FILES, ROOT, name_of

OF_OTHERS = {"docs/gen-ai/gen-ai-events.md", "docs/rfcs/0001-trajectory-format.md"}
"""Pages of other projects, which modules are written after."""


def test_every_page_that_the_source_names_exists():
    named = {
        (page, name_of(file))
        for file in FILES
        for page in re.findall(r"docs/[\w./-]+\.md", file.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert not sorted(each for each in named if each[0] not in OF_OTHERS and not (ROOT / each[0]).is_file())
