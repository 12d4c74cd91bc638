"""docs/speculative.md: its table has every setting, and its section is read."""

from __future__ import annotations

import re

import yaml

from rlhf.config.engines import DraftModelConfig, LocalEngineConfig
from tests.fixtures.source import ROOT

PAGE = (ROOT / "docs" / "speculative.md").read_text(encoding="utf-8")


def test_the_table_has_every_setting_and_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| `?(\w+)`? \|", PAGE, re.MULTILINE))
    assert set(rows) == DraftModelConfig.model_fields.keys() - {"kind"}
    defaults = DraftModelConfig(model="somewhere")
    assert all(default in ("required", str(getattr(defaults, key))) for key, default in rows.items())


def test_the_section_of_a_recipe_is_read():
    [section] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    engine = LocalEngineConfig.of(yaml.safe_load(section)["evaluate"]["engine"])
    assert isinstance(engine.speculate, DraftModelConfig)
    assert engine.compiled
