"""What several tests of the command line share."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rlhf.cli import app


@pytest.fixture
def feedback(tmp_path, monkeypatch):
    """Call ``rlhf feedback WORDS`` in a folder of its own; gives standard output, and raises what the command raises."""
    monkeypatch.chdir(tmp_path)

    def run(*words, stdin=None):
        result = CliRunner().invoke(app, ["feedback", *map(str, words)], input=stdin, catch_exceptions=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run
