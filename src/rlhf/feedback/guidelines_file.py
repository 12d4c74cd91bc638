"""Guidelines in a file that people write: YAML or JSON, every complaint with its line.

- name: helpfulness
  description: Does it do what was asked?
  weight: 1.5                     # 1 where it is left out
  examples:
    - prompt: What does a cow eat?
      better: Grass and hay.
      worse: Cows are mammals.
      reason: The other one does not answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from rlhf.config.guidelines import AnnotationGuideline
from rlhf.config.yaml_text import parse_yaml, read_text
from rlhf.data.strict_json import RefusedJsonError, decode
from rlhf.errors import ConfigError

MAX_NAME = 60
"""Characters: a name is next to five buttons."""
MAX_GUIDELINES = 20
"""More dimensions nobody rates with care."""
WANTED = "wanted a list of guidelines, each with `name` and `description`"


def read_guidelines(path: Path | str) -> list[AnnotationGuideline]:
    """The guidelines in a YAML or JSON file.

    Raises:
        ConfigError: The file can't be read, or what it holds are no guidelines; with all complaints, each with its line.
    """
    path = Path(path)
    text = read_text(path)
    if path.suffix == ".json":
        text = text.replace("\t", " ")  # YAML, which knows the lines, refuses tabs; inside JSON's texts there is none
        tree = _of_json(text, path)
    else:
        tree = parse_yaml(text, str(path))
    if tree is None:
        raise ConfigError(f"{path} holds nothing; {WANTED}.")
    lines = _Lines(text)
    if not isinstance(tree, list) or not tree:
        raise ConfigError(f"{path}:{lines.of()}: this is {_shape(tree)}; {WANTED}.")
    if len(tree) > MAX_GUIDELINES:
        raise ConfigError(
            f"{path}:{lines.of(MAX_GUIDELINES)}: this is the first of {len(tree)} guidelines that is too many; at most {MAX_GUIDELINES} can "
            "be judged with care."
        )
    guidelines: list[AnnotationGuideline] = []
    wrong: list[tuple[int, str]] = []
    first_of: dict[str, int] = {}
    for number, one in enumerate(tree):
        if not isinstance(one, dict):
            wrong.append((lines.of(number), f"this is {_shape(one)}; {WANTED}."))
            continue
        try:
            guideline = AnnotationGuideline.of(one)
        except ConfigError as err:
            # complaints begin with the dotted key, as everywhere
            for complaint in str(err).splitlines()[1:]:
                key = complaint.strip().partition(":")[0]
                wrong.append((lines.of(number, *key.split(".")), complaint.strip()))
            continue
        wrong += [(lines.of(number, key), problem) for key, problem in _problems(guideline)]
        if (earlier := first_of.setdefault(guideline.name, number)) != number:
            wrong.append(
                (
                    lines.of(number, "name"),
                    f"name: {guideline.name!r} is on line {lines.of(earlier, 'name')} already.",
                )
            )
        guidelines.append(guideline)
    if wrong:
        raise ConfigError(
            f"{path} holds no valid guidelines:" + "".join(f"\n  {path}:{line}: {problem}" for line, problem in wrong)
        )
    return guidelines


def guidelines_yaml(guidelines: Sequence[AnnotationGuideline]) -> str:
    """YAML that ``read_guidelines`` reads, to be edited."""
    tree = [one.model_dump(mode="json", exclude_defaults=True) | {"weight": one.weight} for one in guidelines]
    ordered = [{key: one[key] for key in AnnotationGuideline.model_fields if key in one} for one in tree]
    return str(yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=100))


def guidelines_json(guidelines: Sequence[AnnotationGuideline]) -> str:
    """The same as JSON."""
    return json.dumps([one.model_dump(mode="json") for one in guidelines], indent=2, ensure_ascii=False)


def _of_json(text: str, path: Path) -> Any:
    """By JSON's own reader: YAML takes a character beyond U+FFFF that JSON writes as two for two."""
    try:
        return decode(text)
    except json.JSONDecodeError as err:
        raise ConfigError(f"{path} line {err.lineno}, column {err.colno} is not valid JSON: {err.msg}.") from None
    except RefusedJsonError as err:
        raise ConfigError(f"{path}: {err}.") from None


def _problems(guideline: AnnotationGuideline) -> list[tuple[str, str]]:
    """What a page can't show: (key, complaint)."""
    problems = []
    name = guideline.name
    if not name.strip() or name != name.strip() or len(name) > MAX_NAME or not name.isprintable():
        problems.append(
            ("name", f"name: got {name[:80]!r}; wanted 1 to {MAX_NAME} printable characters, no space around them.")
        )
    if not guideline.description.strip():
        problems.append(("description", "description: it is empty; say what to look for."))
    return problems


def _shape(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "keys and values"
    return "an empty list" if value == [] else repr(str(value)[:40])


class _Lines:
    """On which line each value of a YAML or JSON text stands."""

    def __init__(self, text: str) -> None:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        assert root is not None, "an empty text holds no list"
        self._root: yaml.Node = root

    def of(self, *place: str | int) -> int:
        """The line of the deepest value on the way to a place; from 1."""
        node, line = self._root, self._root.start_mark.line
        for step in place:
            following = _child(node, str(step))
            if following is None:
                break
            line, node = following
        return line + 1


def _child(node: yaml.Node, step: str) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        return next(((key.start_mark.line, value) for key, value in node.value if key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
        child = node.value[int(step)]
        return child.start_mark.line, child
    return None
