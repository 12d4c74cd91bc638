"""TRL 1.12, the last release but one with trainers that 1.16 dropped, for the comparisons that need one of them.

pip download trl==1.12.0 --no-deps -d /tmp/trl
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION = "1.12.0"


def arguments_of(description: str | None, result: Path) -> argparse.Namespace:
    """``wheel``, and ``write`` for where the result goes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--write", type=Path, default=result)
    return parser.parse_args()


@contextmanager
def unpacked(wheel: Path) -> Iterator[None]:
    """Inside, ``import trl`` finds the wheel's, which was unpacked into a folder that is gone afterwards; nothing is installed.

    Raises:
        SystemExit: It is of another version.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zipfile.ZipFile(wheel).extractall(folder)
        sys.path.insert(0, folder)
        import trl

        if trl.__version__ != VERSION:
            raise SystemExit(f"This is TRL {trl.__version__}; wanted {VERSION}.")
        yield
