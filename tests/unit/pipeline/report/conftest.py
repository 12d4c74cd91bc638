"""Pages with their plots."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def drawn(plots_are_drawn):
    """Nothing on these pages is a stand-in."""
