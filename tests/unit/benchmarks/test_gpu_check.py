"""``make gpu-check``: each check's outcome and lines on the page, also of one that hangs, and of checks run before."""

from __future__ import annotations

import pytest
import torch

from tools import gpu_check
from tools.gpu_check import Check


@pytest.fixture
def checks(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(gpu_check, "machine", lambda: "a card")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def run(*only: str, **made: Check) -> str:
        monkeypatch.setattr(gpu_check, "CHECKS", made)
        with pytest.raises(SystemExit) as ended:
            gpu_check.main(["--only", *only, "--page", str(tmp_path / "page.md")])
        return f"{ended.value.code}\n" + (tmp_path / "page.md").read_text()

    return run


def test_a_page_has_each_check_with_its_outcome_and_result(checks):
    good = Check("sums", ("-c", "print('3 passed'); print('noise')"), r"passed")
    bad = Check("differences", ("-c", "raise SystemExit(3)"), r"passed")
    page = checks("good", good=good, bad=bad)
    assert page.startswith("0\n")
    assert "3 passed" in page
    assert "noise" not in page.split("```text")[1]
    page = checks("bad", good=good, bad=bad)
    assert page.startswith("1\n")
    assert "failed (exit code 3)" in page
    assert "3 passed" in page, "a check that was run before keeps its lines"


def test_a_check_that_hangs_ends_with_its_processes_and_is_said_to(checks):
    code = "import subprocess, sys, time; print('begun'); subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    page = checks("stuck", stuck=Check("sleep", ("-c", code), r"begun", limit=1))
    assert page.startswith("1\n")
    assert "ran past its limit" in page
    assert "begun" in page


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="GPU"):
        gpu_check.main([])
