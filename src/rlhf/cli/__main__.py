"""`python -m rlhf.cli`."""

from __future__ import annotations

from rlhf.cli import main

main()
