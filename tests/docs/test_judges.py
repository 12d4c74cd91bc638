"""docs/judges.md: its tables are those of the settings, its settings are valid, its commands exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml

from rlhf.config.comparison import CompareConfig
from rlhf.config.descriptions import described_fields
from rlhf.config.judges import JUDGE_TYPES, read_judge
from rlhf.config.schema import describe_settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "judges.md"
TEXT = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
SECTIONS = {cls.type_name(): cls for cls in JUDGE_TYPES} | {"compare": CompareConfig}


def table_of(cls) -> str:
    """Key, default and meaning, in the order of the class."""
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for name, field in described_fields(cls).items():
        if name in ("type", "name"):
            continue
        default = "required" if field.is_required() else _shown(field)
        lines.append(
            f"| `{name}` | {default} | {' '.join(str(field.description).split()).replace('|', chr(92) + '|')} |"
        )
    return "\n".join(lines)


def _shown(field) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "null"
    return (
        ""
        if not isinstance(value, str | int | float)
        else f"`{str(value).lower() if isinstance(value, bool) else value}`"
    )


def updated(text: str) -> str:
    for name, cls in SECTIONS.items():
        begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
        assert begin in text, f"the page has no table of {name}"
        before, _, rest = text.partition(begin)
        text = before + begin + table_of(cls) + end + rest.partition(end)[2]
    return text


def test_the_tables_are_those_of_the_settings():
    assert updated(TEXT) == TEXT, "run: python -m tests.docs.test_judges"


@pytest.mark.parametrize("code", re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
def test_every_block_of_settings_is_a_valid_judge(code):
    read_judge(yaml.safe_load(code))


def test_every_type_has_an_example():
    types = {yaml.safe_load(code)["type"] for code in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)}
    assert types == {cls.type_name() for cls in JUDGE_TYPES}


def test_settings_that_commands_of_the_page_give_exist():
    given = set(re.findall(r"^rlhf compare .*$", TEXT, re.MULTILINE))
    assert given
    for line in given:
        for key in re.findall(r" ([a-z_]+)(?:\.[a-z_.]+)?=", line):
            assert key in CompareConfig.model_fields, line
    assert "judge" in describe_settings(CompareConfig)


if __name__ == "__main__":
    PAGE.write_text(updated(TEXT), encoding="utf-8")
    sys.exit()
