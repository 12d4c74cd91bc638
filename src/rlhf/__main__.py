"""The command `rlhf`, and `python -m rlhf`."""

from __future__ import annotations

import sys

NO_WINDOWS = (
    "rlhf does not run on Windows itself; install and start it inside WSL (Windows Subsystem for Linux: wsl --install)."
)


def main() -> None:
    """Entry point. Refuses Windows before anything is imported that Windows lacks."""
    if sys.platform == "win32":
        print(f"error: {NO_WINDOWS}", file=sys.stderr)
        raise SystemExit(2)
    from rlhf.cli import main as run

    run()


if __name__ == "__main__":
    main()
