"""Reads a YAML file, a command line or a shell script of another project: its keys and whose they are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.config.foreign import guide
from rlhf.config.foreign.layouts import GUIDE, LAYOUTS, Layout
from rlhf.config.foreign.openrlhf import PROGRAMS
from rlhf.config.yaml_text import parse_yaml, read_text, read_yaml
from rlhf.errors import ConfigError

YAML = (".yaml", ".yml", ".json")
ASSIGNMENT = re.compile(r"^(?:export\s+)?(?P<name>[A-Za-z_]\w*)=(?P<value>\S*|'[^']*'|\"[^\"]*\")\s*;?$")
VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)\}|(?P<bare>[A-Za-z_]\w*))")
OPENRLHF_PROGRAM = re.compile(r"openrlhf[./]cli[./](?P<name>train_\w+?)(?:\.py)?$")
TRL_SCRIPT = re.compile(
    r"(?:^|[/_.])(?P<name>dpo_online|online_dpo|gkd|prm|sft|dpo|kto|orpo|cpo|simpo|grpo|rloo|ppo|reward)(?:_\w+)?\.py$"
)
ENDS_A_COMMAND = ("|", "||", "&&", ";", "&", ">", ">>", "2>&1", "<")
PROCESSES = ("num_processes", "nproc_per_node", "num_gpus", "nproc")
LEAST_KNOWN = 0.5
"""Share of the keys that a layout must know to be taken for the file's."""
NOT_KNOWN = (
    "can be converted: a YAML file or flags of TRL's scripts, flags of OpenRLHF, or YAML in sections such as model, dataset, training, "
    "optimization, generation"
)


@dataclass(slots=True)
class Source:
    """What a file says."""

    layout: Layout
    keys: dict[str, Any]
    """Dotted, in the file's order."""
    program: str = ""
    """The trainer that a command names."""
    launcher: dict[str, Any] = field(default_factory=dict)
    """Flags before the program."""
    stages: tuple[str, ...] = ()
    """Sections that are a stage each, in the order of training."""

    @property
    def processes(self) -> int | None:
        """How many the launcher starts; None where it does not say."""
        per_node = next((self.launcher[name] for name in PROCESSES if name in self.launcher), None)
        nodes = self.launcher.get("nnodes", 1)
        return per_node * nodes if isinstance(per_node, int) and isinstance(nodes, int) else None


def read_source(path: Path | str) -> Source:
    """The keys of a file of another project.

    Raises:
        ConfigError: It can't be read, or is of no layout that is known.
    """
    path = Path(path)
    if path.suffix.lower() not in YAML:
        if commands := list(_commands(read_text(path))):
            return _source_of_commands(commands, str(path))
        raise ConfigError(f"{path} has no flags such as --learning_rate. What {NOT_KNOWN}.")
    tree = read_yaml(path)
    if isinstance(tree.get("stages"), Mapping):
        raise ConfigError(f"{path} is a recipe already; `rlhf validate {path}` checks it.")
    stages = tuple(sorted((name for name in tree if _is_stage(name, tree[name])), key=list(guide.STAGES).index))
    shared = [name for name in guide.SECTIONS if isinstance(tree.get(name), Mapping)]
    keys = dict(flattened(tree))
    if stages or shared:
        return Source(_sure(GUIDE, keys, str(path)), keys, stages=stages)
    return Source(_whose(keys, str(path)), keys)


def _is_stage(name: str, value: Any) -> bool:
    return name in guide.STAGES and isinstance(value, Mapping)


def flattened(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flattened(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _sure(layout: Layout, keys: Mapping[str, Any], source: str) -> Layout:
    known = [key for key in keys if any(each is not None and each.knows(key) for each in (layout, layout.fallback))]
    if len(known) < max(1, LEAST_KNOWN * len(keys)):
        strange = ", ".join([key for key in keys if key not in known][:5])
        raise ConfigError(
            f"{source} has a layout that is not known: {len(known)} of its {len(keys)} keys are known ({layout.title}), and not {strange}. "
            f"What {NOT_KNOWN}."
        )
    return layout


def _whose(keys: Mapping[str, Any], source: str) -> Layout:
    """The layout that knows most of the keys."""
    best = max(LAYOUTS.values(), key=lambda layout: sum(layout.knows(key) for key in keys))
    return _sure(best if best is not GUIDE else LAYOUTS["trl"], keys, source)


# --- command lines ------------------------------------------------------------------------------------------------------


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each command that has flags, with variables of the script filled in."""
    variables: dict[str, str] = {}
    for line in re.sub(r"\\\s*\n", " ", text).splitlines():
        if assigned := ASSIGNMENT.match(line.strip()):
            variables[assigned["name"]] = _filled(assigned["value"].strip("'\""), variables)
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quote that is closed on another line
            words = line.split()
        end = next((at for at, word in enumerate(words) if word in ENDS_A_COMMAND), len(words))
        words = [_filled(word, variables) for word in words[:end]]
        if any(word.startswith("--") and len(word) > 2 for word in words):
            yield words


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """Variables of the script by value; those of the environment as recipes write them."""
    return VARIABLE.sub(lambda m: variables.get(m["braced"] or m["bare"], f"${{{m['braced'] or m['bare']}}}"), text)


def _source_of_commands(commands: list[list[str]], source: str) -> Source:
    trainers = [(words, at) for words in commands if (at := _program_at(words)) is not None]
    if len(trainers) > 1:
        raise ConfigError(f"{source} has {len(trainers)} training commands; put each into a file of its own.")
    if not trainers:
        keys = {key: value for words in commands for key, value in flags(words)}
        return Source(_whose(keys, source), keys)
    words, at = trainers[0]
    keys, launcher = dict(flags(words[at + 1 :])), dict(flags(words[:at]))
    if match := OPENRLHF_PROGRAM.search(words[at]):
        if match["name"] not in PROGRAMS:
            raise ConfigError(f"{source} runs {words[at]}; of OpenRLHF {', '.join(PROGRAMS)} can be converted.")
        return Source(LAYOUTS["openrlhf"], keys, PROGRAMS[match["name"]], launcher)
    script = TRL_SCRIPT.search(words[at])
    return Source(LAYOUTS["trl"], keys, script["name"] if script else words[at + 1], launcher)


def _program_at(words: list[str]) -> int | None:
    """Where the trainer's name stands."""
    for at, word in enumerate(words):
        is_trl = word.rpartition("/")[2] == "trl" and at + 1 < len(words) and not words[at + 1].startswith("-")
        if OPENRLHF_PROGRAM.search(word) or is_trl or (TRL_SCRIPT.search(word) and not words[at - 1].startswith("--")):
            return at
    return None


def flags(words: list[str]) -> Iterator[tuple[str, Any]]:
    """(name with underscores, value) of every flag; true for one without a value, false for `--no_NAME`, a list for several."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("--") or len(word) == 2:
            continue
        name, equals, inline = word[2:].partition("=")
        values = [inline] if equals else []
        while not equals and at < len(words) and not words[at].startswith("--"):
            values.append(words[at])
            at += 1
        typed = [_typed(value) for value in values]
        name = name.replace("-", "_")
        if not typed and name.startswith("no_") and not any(layout.knows(name) for layout in LAYOUTS.values()):
            yield name.removeprefix("no_"), False  # as transformers' parser of flags has it
        else:
            yield name, True if not typed else typed[0] if len(typed) == 1 else typed


def _typed(text: str) -> Any:
    """A word as YAML reads it; one that is not YAML stays a text."""
    try:
        return parse_yaml(text, "a flag") if text else text
    except ConfigError:
        return text
