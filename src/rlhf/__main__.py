"""The command `rlhf`, and `python -m rlhf`."""

from __future__ import annotations

import gc
import sys

NO_WINDOWS = (
    "rlhf does not run on Windows itself; install and start it inside WSL (Windows Subsystem for Linux: wsl --install)."
)


def main() -> None:
    """Entry point. Refuses Windows before anything is imported that Windows lacks."""
    if sys.platform == "win32":
        print(f"error: {NO_WINDOWS}", file=sys.stderr)
        raise SystemExit(2)
    # The launcher `deepspeed` puts it before the command; the environment (LOCAL_RANK) says the same.
    sys.argv[1:2] = [argument for argument in sys.argv[1:2] if not argument.startswith("--local_rank=")]
    from rlhf.cli import main as run

    try:
        run()
    finally:
        gc.freeze()  # else the interpreter searches all of torch for garbage before it ends: seconds


if __name__ == "__main__":
    main()
