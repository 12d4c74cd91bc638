"""A capability suite with its items, read and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.config.suites import BUNDLED, SuiteConfig
from rlhf.config.yaml_text import read_yaml
from rlhf.data.contracts import Text
from rlhf.data.read import open_rows
from rlhf.errors import ConfigError, DataError, did_you_mean
from rlhf.evaluation.suites.swaps import fill_swaps

FOLDER = Path(__file__).parent / "bundled"


@dataclass(frozen=True, slots=True)
class Item:
    """One question."""

    id: str
    prompt: Text
    """As the model gets it: a text, or messages."""
    group: str
    """Items of one group are one unit of all intervals; by default each is its own."""
    columns: Mapping[str, Any]
    """What the scorer reads."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Settings and items."""

    config: SuiteConfig
    items: tuple[Item, ...]

    @property
    def name(self) -> str:
        """What results and gates call it."""
        return self.config.name

    @property
    def fingerprint(self) -> str:
        """Hex sha256 of all that decides a result but the model: items, wording, scorer, sampling. Margin and limit decide none."""
        settings = self.config.model_dump(
            mode="json", exclude={"items", "data", "swaps", "margin", "description", "limit"}
        )
        items = [[item.id, item.prompt, item.group, dict(item.columns)] for item in self.items]
        text = json.dumps([settings, items], sort_keys=True, ensure_ascii=False, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def load_suite(source: Suite | SuiteConfig | Mapping[str, Any] | str | Path) -> Suite:
    """A suite from its settings, a YAML file, or the name of a bundled one.

    Args:
        source: A YAML file's path; ``format``, ``general``, ``over_refusal`` or ``safety``; or the settings themselves. A relative
            ``data`` in a file is looked for next to that file first.

    Raises:
        ConfigError: A setting is wrong, or there is no such file or bundled suite.
        DataError: An item is wrong; names it and the column.
    """
    if isinstance(source, Suite):
        return source
    folder: Path | None = None
    where = "The suite"
    if isinstance(source, str | Path):
        path = FOLDER / f"{source}.yaml" if str(source) in BUNDLED else Path(source).expanduser()
        if not path.is_file():
            raise ConfigError(
                f"There is no suite {str(source)!r}: neither a file, nor one of the bundled suites "
                f"{', '.join(BUNDLED)}.{did_you_mean(str(source), BUNDLED)}"
            )
        if path.suffix in (".jsonl", ".ndjson", ".json", ".csv", ".parquet"):
            raise ConfigError(
                f"{path} holds items, and no scorer. Write a suite that names it: {{name: {path.stem}, scorer: ..., data: {path}}}."
            )
        source, folder, where = read_yaml(path), path.parent, f"The suite {path}"
    if not isinstance(source, SuiteConfig):
        source = SuiteConfig.of(source, source=where)
    rows = (_rows(source, folder) if source.items is None else source.items)[: source.limit]
    if source.swaps is not None:
        rows = fill_swaps(rows, source.swaps, source=f"{where} ({source.name})")
    return Suite(source, tuple(_items(source, rows, where)))


def _rows(config: SuiteConfig, folder: Path | None) -> list[dict[str, Any]]:
    assert config.data is not None
    near = folder / config.data if folder is not None and not Path(config.data).is_absolute() else None
    stream = open_rows(str(near) if near is not None and near.exists() else config.data)
    rows = [raw.value for part in stream.parts for raw in part.read(0)]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise DataError(
                f"{config.data}, row {number}: an item is an object with a `prompt`; got {type(row).__name__}."
            )
    return rows


def _items(config: SuiteConfig, rows: Sequence[Mapping[str, Any]], where: str) -> list[Item]:
    if not rows:
        raise DataError(f"{where} ({config.name}) has no items; give at least one.")
    by_name: dict[str, Item] = {}
    for number, row in enumerate(rows, 1):
        name = str(row.get("id", number))
        at = f"{where} ({config.name}), item {name}"
        prompt = row.get("prompt")
        if not (isinstance(prompt, str) and prompt.strip()) and not (isinstance(prompt, list) and prompt):
            raise DataError(f"{at}: `prompt` is {prompt!r}; give a text or a list of messages.")
        if name in by_name:
            raise DataError(f"{at}: another item has the same id; give each its own.")
        columns = {key: value for key, value in row.items() if key not in SuiteConfig.RESERVED}
        by_name[name] = Item(name, _asked(config, prompt), str(row.get("group", name)), columns)
    return list(by_name.values())


def _asked(config: SuiteConfig, prompt: Any) -> Text:
    """The prompt with the suite's wording around it."""
    if isinstance(prompt, list):
        if config.system is None or (prompt[0].get("role") == "system"):
            return prompt
        return [{"role": "system", "content": config.system}, *prompt]
    text = config.template.replace("{prompt}", prompt)
    if config.system is None:
        return text
    return [{"role": "system", "content": config.system}, {"role": "user", "content": text}]
