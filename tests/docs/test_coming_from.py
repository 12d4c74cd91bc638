"""docs/coming-from.md has the tables that `rlhf config convert` reads."""

from __future__ import annotations

import rlhf
from rlhf.config.foreign.layouts import LAYOUTS
from rlhf.config.foreign.names import NAMES
from tools import coming_from


def test_the_tables_of_the_page_are_up_to_date():
    assert coming_from.rendered() == coming_from.PAGE.read_text(encoding="utf-8"), "run `python tools/coming_from.py`"


def test_every_key_of_every_table_and_every_name_is_on_the_page():
    text = coming_from.PAGE.read_text(encoding="utf-8")
    for layout in LAYOUTS.values():
        assert not [key for key in layout.everything if f"`{key}`" not in text]
    assert not [name for name in NAMES.keys() - rlhf.PUBLIC.keys() if f"`{name}`" not in text]


def test_a_change_of_a_table_makes_the_page_stale(monkeypatch):
    monkeypatch.setitem(NAMES, "NoSuchTrainer", "nothing")
    assert "NoSuchTrainer" in coming_from.rendered()
