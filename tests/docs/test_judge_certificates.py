"""docs/judge-certificates.md: what its commands print is what stands below them."""

from __future__ import annotations

import re
import subprocess
import sys

from typer.testing import CliRunner

from rlhf.cli import app
from tests.fixtures.source import ROOT

PAGE = (ROOT / "docs" / "judge-certificates.md").read_text(encoding="utf-8")


def test_the_certificate_of_the_page_is_what_its_files_give(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, code in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(code)
    subprocess.run([sys.executable, "make_votes.py"], check=True)
    (tmp_path / "judge.yaml").write_text("type: function\nfunction: noisy.py:judge\n")
    found = CliRunner().invoke(app, ["judge", "certify", "judge.yaml", "--labels", "votes.jsonl"])
    assert found.exit_code == 0, found.output
    (shown,) = re.findall(r"^    noisy\.py:judge: .*?certificate\.json\n", PAGE, re.MULTILINE | re.DOTALL)
    printed = re.sub("[\u00a0\u202f]", " ", found.output)  # no-break spaces before units
    assert printed == re.sub(r"^    ", "", shown, flags=re.MULTILINE)
