"""Compiled templates are kept within a process and between processes, and nothing about a report depends on it."""

from __future__ import annotations

import jinja2
import pytest

from rlhf.pipeline.report import write_report
from rlhf.pipeline.report.page import environment


@pytest.fixture(autouse=True)
def another_process():
    """``another_process()``: from then on templates are what they are to a new process. So they are before and after each test."""
    environment.cache_clear()
    yield environment.cache_clear
    environment.cache_clear()


def test_a_second_report_compiles_no_template(tmp_path, monkeypatch, another_process):
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    first = write_report(tmp_path).read_text()
    kept = list((tmp_path / "cache").rglob("*.cache"))
    assert kept
    another_process()
    with monkeypatch.context() as patched:
        patched.setattr(jinja2.Environment, "compile", None)
        assert len(write_report(tmp_path).read_text()) == len(first)
    for file in kept:
        file.write_bytes(file.read_bytes()[:40])
    another_process()
    assert len(write_report(tmp_path).read_text()) == len(first), "a damaged file is compiled again"


def test_a_process_compiles_each_template_once_without_a_cache_too(tmp_path, monkeypatch):
    monkeypatch.setenv("RLHF_CACHE", "off")
    first = write_report(tmp_path).read_text()
    monkeypatch.setattr(jinja2.Environment, "compile", None)
    assert len(write_report(tmp_path).read_text()) == len(first)


def test_a_cache_that_can_not_be_written_costs_no_report(tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file where the folder should be")
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    assert write_report(tmp_path).is_file()
