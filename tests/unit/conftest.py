"""What several of the units' tests share."""

from __future__ import annotations

import sys

import pytest

from rlhf import cli


@pytest.fixture
def call(monkeypatch, capsys):
    """Call ``rlhf WORDS`` in this process; gives exit code, standard output and standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["rlhf", *map(str, words)])
        # Under `python -m pytest` the usage line would name that.
        monkeypatch.setattr(sys.modules["__main__"], "__package__", "")
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        captured = capsys.readouterr()
        return stopped.value.code or 0, captured.out, captured.err

    return run
