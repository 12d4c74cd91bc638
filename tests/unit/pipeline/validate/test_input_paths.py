"""Modules that a recipe names are looked for without importing anything."""

from __future__ import annotations

import pytest

from rlhf.errors import ConfigError
from rlhf.pipeline.validate.input_paths import find_in_source


def test_a_module_three_folders_deep_needs_no_package_files(tmp_path, monkeypatch):
    folder = tmp_path / "myfolder_of_tools" / "envs"
    folder.mkdir(parents=True)
    (folder / "shop.py").write_text("class Shop:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    find_in_source("myfolder_of_tools.envs.shop:Shop")
    for wrong in (
        "myfolder_of_tools.envs.store:Shop",
        "myfolder_of_tools.nowhere.shop:Shop",
        "myfolder_of_tools.envs.shop:Market",
    ):
        with pytest.raises(ConfigError, match=r"store|nowhere|Market"):
            find_in_source(wrong)
