"""The console for people: what files and models say can't control the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from rlhf.errors import printable


class PrintableConsole(Console):
    """Its texts, those in tables too, hold nothing that a terminal would obey: what a file or a model says is among them."""

    def render_str(self, text: str, **how: Any) -> Text:
        """Every text that is printed comes through here."""
        return super().render_str(printable(text), **how)
