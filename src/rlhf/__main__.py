"""`python -m rlhf`."""

from rlhf.cli import main

main()
