"""Programs of tools/ and benchmarks/ start as their pages write it: `python tools/NAME.py`, from a clone without a PYTHONPATH."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [file for folder in ("tools", "benchmarks") for file in sorted((ROOT / folder).glob("*.py"))]


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_a_script_that_needs_the_clone_puts_it_on_the_path_first(file):
    """As a script it has its own folder on the path, and not the one above."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    body = tree.body
    if f"python {file.relative_to(ROOT)}" not in (ast.get_docstring(tree) or ""):
        return  # a module of others, or started with -m
    inserted = [node.lineno for node in body if ast.unparse(node).startswith("sys.path.insert")]
    needing = [
        node.lineno
        for node in body
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").partition(".")[0] in ("tools", "tests", "benchmarks")
    ]
    assert not needing or (inserted and min(inserted) < min(needing)), (
        "the documented command ends with ModuleNotFoundError"
    )
