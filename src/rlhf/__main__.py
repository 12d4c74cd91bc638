"""`python -m rlhf`."""

from __future__ import annotations

from rlhf.cli import main

main()
