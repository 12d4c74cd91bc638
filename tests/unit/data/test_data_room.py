from __future__ import annotations

import subprocess
import sys

import pytest

import rlhf.data


@pytest.mark.parametrize("name", rlhf.data.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(rlhf.data, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'SftDataset'"):
        rlhf.data.SftDataset  # noqa: B018


def test_files_can_be_checked_without_torch_and_transformers():
    code = "import sys, rlhf.data.inspect; sys.exit(bool({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
