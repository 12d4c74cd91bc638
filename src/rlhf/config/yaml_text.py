"""YAML files and texts to plain values, with what YAML 1.1 would get wrong in silence put right or refused.

PyYAML reads YAML 1.1, where ``1e-5`` is a text, ``012`` is ten, ``12:30`` is 750 and ``2026-01-31`` is not text; a key that stands
twice overwrites; and a few lines of aliases stand for more values than there is memory.
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from rlhf.errors import ConfigError, did_you_mean_file, with_article

MOST_CHARACTERS = 1_000_000
"""A recipe has a few thousand."""
MOST_VALUES = 100_000
"""Counted as often as aliases repeat them."""
MOST_DIGITS = 1_000
"""Of a whole number that is read as one; Python itself refuses to read or write much longer ones."""
MOST_NESTED = 4_000
"""Levels that are surely read without exhausting the stack."""
MOST_SHOWN = 40
"""Characters of a value that an error repeats."""
MERGE = "tag:yaml.org,2002:merge"
"""The key `<<`, which brings in the keys of another section; keys next to it may say otherwise."""
INT, FLOAT, TIMESTAMP = (f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "timestamp"))
Mark = yaml.error.Mark | None


class LongNumber(str):
    """The text of a whole number with more digits than are read; anyone who validates the setting refuses it, by the setting's name."""

    __slots__ = ()


def read_yaml(
    path: Path | str, *, written_by_us: bool = False, wanted: str = "a recipe needs at least `name:` and `stages:`"
) -> dict[str, Any]:
    """The mapping in a YAML file.

    Args:
        path: The file.
        written_by_us: It is a record, such as a run's recipe.yaml. Where PyYAML was built with libyaml, that is four times as
            fast; its errors are less clear.
        wanted: What the message about an empty file says it should hold.

    Raises:
        ConfigError: The file is absent, not text, not YAML (with line and column), holds a key twice, or is not a mapping.
    """
    tree = parse_yaml(read_text(path), str(path), quick=written_by_us)
    if tree is None:
        raise ConfigError(f"{path} is empty; {wanted}.")
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds {with_article(type(tree).__name__)}; it should hold keys and values.")
    return tree


def read_text(path: Path | str) -> str:
    """The text of a YAML file.

    Raises:
        ConfigError: The file is absent, or not text.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        near = did_you_mean_file(path.name, siblings)
        raise ConfigError(f"There is no file {path}.{near}") from None
    except IsADirectoryError:
        inside = [p.name for p in sorted(path.glob("*.y*ml"))]
        hint = f"give one of its files: {', '.join(inside[:5])}" if inside else "give a YAML file"
        raise ConfigError(f"{path} is a folder and can't be read as text; {hint}.") from None
    except OSError as err:
        raise ConfigError(f"{path} can't be read: {err.strerror or err}.") from None
    return _decoded(data, path)


def yaml_of(tree: Any) -> str:
    """Plain values as a YAML text, keys in their order; by libyaml, if PyYAML has it, which writes the same five times as fast."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(tree, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def _decoded(data: bytes, path: Path) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"{path} can't be read as text: it is in UTF-16. Save it as UTF-8.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = data.count(b"\n", 0, err.start) + 1
        raise ConfigError(
            f"{path} line {line} can't be read as text: the byte 0x{data[err.start]:02x} is not UTF-8. Save it as UTF-8."
        ) from None


def parse_yaml(text: str, source: str, *, quick: bool = False) -> Any:
    """The value that a YAML text holds; None for an empty one.

    Args:
        text: Of a whole document.
        source: What errors call it, such as the file's name.
        quick: By libyaml, if PyYAML has it; see ``read_yaml``.

    Raises:
        ConfigError: With line and column.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(
            f"{source} has {len(text):,} characters, and settings have at most {MOST_CHARACTERS:,}; is it a file of data?"
        )
    try:
        return yaml.load(text, Loader=_QuickLoader if quick and _is_flat(text) else _Loader)
    except yaml.MarkedYAMLError as err:
        problem = err.problem or ""
        problem = (
            f"{err.context}, {problem}" if err.context and (problem.startswith("but ") or not problem) else problem
        )
        raise ConfigError(_sentence(source, err.problem_mark, problem, text)) from None
    except yaml.reader.ReaderError as err:
        raise ConfigError(
            f"{source} is not text: its character {err.position + 1} is {_character(err.character)}. Settings are text in UTF-8."
        ) from None
    except RecursionError:
        raise ConfigError(f"{source} is nested too deeply to be settings.") from None
    except (yaml.YAMLError, ValueError, OverflowError) as err:  # an escape for a character that does not exist
        raise ConfigError(f"{source} is not valid YAML: {str(err).splitlines()[0]}.") from None


def _is_flat(text: str) -> bool:
    """Whether a text is nested less deeply than libyaml can follow, which ends the process at more than its stack holds.

    A block is as deep as its line is long, and brackets open one level each.
    """
    return max(map(len, text.splitlines()), default=0) + text.count("[") + text.count("{") <= MOST_NESTED


def _sentence(source: str, mark: Mark, problem: str, text: str) -> str:
    where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    tab = next((number for number, line in enumerate(text.splitlines(), 1) if re.match(r" *\t+ *[^\s#]", line)), None)
    if mark and tab is None and (ill_indented := _indentation(text.splitlines(), mark, problem)):
        problem = ill_indented
    hint = ""
    if "\\t" in problem or (tab is not None and mark is not None and tab <= mark.line + 1):
        at = f"; line {tab} begins with a tab" if tab is not None else ""
        hint = f" YAML wants spaces, not tabs{at}."
    return f"{source}{where} is not valid YAML: {problem}.{hint}"


def _indentation(lines: list[str], mark: yaml.error.Mark, problem: str) -> str:
    """What is wrong with how far a line is indented; empty where something else is wrong."""
    line = lines[mark.line] if mark.line < len(lines) else ""
    before = line[: mark.column].strip()
    is_shallow = bool(
        re.search(r"expected '?<(block end|document start)>'?, but found '<block (mapping|sequence) start>'", problem)
    )
    is_deep = problem.startswith("mapping values") and ":" not in before and not before.startswith(("{", "["))
    levels: list[int] = []
    for above in lines[: mark.line]:
        if indented := re.match(r"( *)((?:- +)*)[^\s#]", above):
            own, inner = len(indented[1]), len(indented[1] + indented[2])
            levels = [level for level in levels if level < own] + sorted({own, inner})
    own = len(line) - len(line.lstrip(" "))
    if not levels or own in levels or not ((is_shallow and not before) or is_deep):
        return ""
    *others, last = map(str, levels)
    known = f"{', '.join(others)} or {last}" if others else last
    return (
        f"`{line.strip()[:MOST_SHOWN]}` is indented by {own} spaces, which fits no level above it; wanted {known}, as the lines that it "
        "belongs with"
    )


def _character(code: int | bytes) -> str:
    return f"U+{code:04X}" if isinstance(code, int) else repr(code)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """PyYAML's, without dates and numbers to the base of 60; a whole number may begin with 0, and 1e-5 is a number."""
    kept = {
        first: [(tag, pattern) for tag, pattern in rules if tag not in (INT, FLOAT, TIMESTAMP)]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    whole = re.compile(r"^[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)$")
    broken = re.compile(
        r"^[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$"
        r"|^\.(?:nan|NaN|NAN)$"
    )
    for first in "-+.0123456789":
        kept.setdefault(first, []).extend([(INT, whole), (FLOAT, broken)])
    return kept


class _Checks(yaml.constructor.SafeConstructor):
    """Safe YAML with the scalars of YAML 1.2, keys that stand once, and no more values than settings have."""

    yaml_implicit_resolvers = _resolvers()

    if TYPE_CHECKING:  # of the classes below

        def get_single_node(self) -> yaml.Node | None: ...

    def get_single_data(self) -> Any:
        node = self.get_single_node()
        if node is None:
            return None
        _count_values(node, {}, set())
        return self.construct_document(node)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except yaml.YAMLError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            # A tag such as !!int before what is none, or a number with more digits than Python reads.
            shown = repr(str(node.value)[:MOST_SHOWN])
            raise _refused(node, f"{shown} can't be read as {node.tag.rpartition(':')[2]}") from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != MERGE]
        seen: set[tuple[str, str]] = set()
        for key in keys:
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} appears twice", key.start_mark
                )
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep=deep)

    def construct_whole_number(self, node: yaml.ScalarNode) -> int | LongNumber:
        text = str(node.value).replace("_", "")
        if len(text) > MOST_DIGITS:
            return LongNumber(text)
        digits = text.lstrip("+-")
        base = {"0b": 2, "0o": 8, "0x": 16}.get(digits[:2].lower(), 10)
        return int(digits[2:] if base != 10 else digits, base) * (-1 if text.startswith("-") else 1)

    yaml_constructors: ClassVar = {**yaml.constructor.SafeConstructor.yaml_constructors, INT: construct_whole_number}


def _count_values(node: yaml.Node, known: dict[int, int], open_nodes: set[int]) -> int:
    """How many values a node stands for, aliases followed; each node is counted once and its number kept."""
    if id(node) in known:
        return known[id(node)]
    if id(node) in open_nodes:
        raise _refused(node, "an alias (*) is inside what it names, which would never end")
    open_nodes.add(id(node))
    total = 1
    if isinstance(node, yaml.MappingNode):
        total += sum(
            _count_values(key, known, open_nodes) + _count_values(item, known, open_nodes) for key, item in node.value
        )
    elif isinstance(node, yaml.SequenceNode):
        total += sum(_count_values(item, known, open_nodes) for item in node.value)
    open_nodes.remove(id(node))
    if total > MOST_VALUES:
        raise _refused(node, f"with its aliases (*) it stands for more than {MOST_VALUES:,} values")
    known[id(node)] = total
    return total


def _refused(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Loader(_Checks, yaml.SafeLoader):
    """For what people write."""


class _QuickLoader(_Checks, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """For what a run wrote; ``_is_flat`` says which texts it can take."""
