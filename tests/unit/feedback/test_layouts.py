from __future__ import annotations

import subprocess
import sys

from rlhf.feedback.exchange import FORMATS, OURS, SAVED
from rlhf.feedback.layouts import LAYOUTS


def test_what_is_listed_is_what_is_read_and_written():
    assert list(LAYOUTS) == list(FORMATS)
    for name, known in FORMATS.items():
        layout = LAYOUTS[name]
        for function in ("is_it", "read", "read_traces", "write_items", "row_of"):
            assert callable(getattr(known, function)) == bool(getattr(layout, function)), f"{name}: {function}"
        assert layout.keeps_all == (name in (OURS, SAVED))
        assert not layout.is_it or layout.columns, "columns are looked at first"
        assert known.read or known.read_traces or name in (OURS, SAVED, "trl", "sharegpt", "alpaca"), (
            "all can be imported"
        )


def test_they_are_listed_without_any_optional_package():
    code = (
        "import sys; sys.argv = ['rlhf', 'feedback', 'formats']\n"
        "from rlhf.cli import app\n"
        "app(standalone_mode=False)\n"
        "sys.exit(sorted({'sqlalchemy', 'alembic', 'fastapi', 'torch', 'numpy', 'pandas', 'datasets'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "label-studio" in done.stdout
