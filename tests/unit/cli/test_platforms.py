"""Systems that the command line does not run on."""

from __future__ import annotations

import subprocess
import sys

WINDOWS = """
import sys
sys.platform = "win32"
for name in ("termios", "fcntl", "resource", "pwd", "grp"):
    sys.modules[name] = None  # as on Windows: importing them fails
from rlhf.__main__ import main
sys.argv = ["rlhf", "--version"]
main()
"""


def test_windows_is_refused_in_a_sentence_that_names_the_way_out():
    done = subprocess.run([sys.executable, "-c", WINDOWS], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "WSL" in line
    assert done.stdout == ""


def test_elsewhere_the_same_entry_point_runs_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "rlhf", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout[0].isdigit()
