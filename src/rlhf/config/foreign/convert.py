"""Turns the keys of another project into a recipe, and says what became of each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.config.error_messages import shortened
from rlhf.config.foreign import common, guide, openrlhf_conversions, trl
from rlhf.config.foreign.layouts import GUIDE, OPENRLHF, TRL, Layout, find_method
from rlhf.config.foreign.read import PROCESSES, Source, read_source
from rlhf.config.foreign.table import TOP, Given, Reason, Settings, converted
from rlhf.config.recipe import RecipeConfig
from rlhf.config.stages import BY_KIND, JUDGE_KINDS
from rlhf.errors import ConfigError, did_you_mean

MUST_BE_GIVEN = {
    "model": ("MODEL", "a folder or a hub name"),
    "data": ("rows.jsonl", "a file or a hub name (docs/data.md)"),
    "prompts": ("prompts.jsonl", "a file or a hub name (docs/data.md)"),
    "reward": ("rewards.py:reward", "who judges (docs/rewards.md): a reward model, a rule, or a Python function"),
}
"""Key that a stage can't do without -> what stands there until somebody fills it in, and what it is."""


@dataclass(slots=True)
class Line:
    """What became of one key."""

    key: str
    value: Any
    stage: str
    ours: dict[str, Any] = field(default_factory=dict)
    """Dotted; empty where nothing is set."""
    note: str = ""
    is_left: bool = False
    """Whether the value is not carried over; the note says why."""
    is_default: bool = False
    """Whether it is a default of theirs, which the file does not give."""

    def __str__(self) -> str:
        shown = "(hidden)" if common.SECRET.search(self.key) else _shown(self.value)
        if self.is_left:
            return f"not carried over: {self.key} = {shown}: {self.note}"
        places = [key.removeprefix(TOP) if key.startswith(TOP) else f"{self.stage}.{key}" for key in self.ours]
        values = ", ".join(f"{place} = {_shown(value)}" for place, value in zip(places, self.ours.values(), strict=True))
        note = f" ({self.note})" if self.note else ""
        return f"{'default ' if self.is_default else ''}{self.key} = {shown} -> {values or 'nothing to set'}{note}"


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return shortened(text)


@dataclass(slots=True)
class Conversion:
    """A recipe, and how it came about."""

    title: str
    """Whose keys these were, and which method."""
    tree: dict[str, Any]
    """The recipe as it is written."""
    lines: list[Line]
    to_fill_in: list[str]

    def to_text(self) -> str:
        """The table."""
        carried = [line for line in self.lines if not line.is_left]
        left = [line for line in self.lines if line.is_left]
        heads = [f"{self.title}: {len(carried)} keys carried over, {len(left)} not, {len(self.to_fill_in)} to fill in"]
        return "\n".join([*heads, *map(str, carried), *map(str, left), *(f"to fill in: {text}" for text in self.to_fill_in)])


def convert_file(path: Path | str, *, method: str = "", processes: int | None = None, rows: int | None = None) -> Conversion:
    """A recipe from a file of another project.

    Args:
        path: YAML, a file of flags, or a shell script.
        method: Kind of trainer; by default what the file says.
        processes: Devices that a batch per device counts for; by default what the launcher starts, else 1.
        rows: Rows of the training data; needed where epochs become rollouts and steps become a share.

    Raises:
        ConfigError: It can't be read, or is of no layout that is known.
    """
    source = read_source(path)
    hints = (Path(path).stem, str(source.keys.get("output_dir", "")), str(source.keys.get("save_path", "")))
    count = processes or source.processes or 1
    launched = [
        Line(key, value, "", note=f"{count} processes count in the batch" if key in PROCESSES else common.ONE_PROCESS, is_left=True)
        for key, value in source.launcher.items()
    ]
    if source.layout is GUIDE:
        found = _from_sections(source, method, hints, str(path), processes=count, rows=rows)
    else:
        chosen = find_method(source.layout, source.keys, method or source.program, hints, str(path))
        kind, extra = _kind_of(source, chosen)
        defaults = {**source.layout.defaults.get(kind if source.layout is TRL else chosen, {}), **extra}
        part = _stage(source.layout, kind, kind, source.keys, defaults, processes=count, rows=rows, method=chosen)
        found = _recipe([part], f"{source.layout.title} {chosen}", Path(path).stem)
    found.lines = [*launched, *found.lines]
    return found


def _kind_of(source: Source, method: str) -> tuple[str, dict[str, Any]]:
    """The kind of stage for a trainer, and defaults that depend on the file."""
    keys = {source.layout.plain(key): value for key, value in source.keys.items()}
    if source.layout is OPENRLHF and method == "ppo":
        estimator = str(keys.get("advantage_estimator", "gae"))
        return openrlhf_conversions.ESTIMATORS.get(estimator, ("ppo", {}))[0], {}
    if method == "cpo" and keys.get("loss_type") == "simpo":
        return "simpo", {}
    if method == "ppo" and any(key in keys for key in trl.OLD_LOOP):
        return "ppo", {**dict.fromkeys(trl.DEFAULTS["ppo"]), **trl.OLD_LOOP_DEFAULTS}
    return method, {}


@dataclass(slots=True)
class _Part:
    """One stage on the way."""

    name: str
    given: Given
    lines: list[Line]

    def finish(self) -> None:
        """Correct the lines whose settings another line has changed, and leave out defaults that count for nothing."""
        for line in self.lines:
            kept = {key: value for key, value in line.ours.items() if _holds(self.given.stage.get(key), value)}
            if line.ours and not kept:
                line.is_left, line.note = True, f"another key sets {', '.join(line.ours)}"
            line.ours = kept
        self.lines = [line for line in self.lines if line.ours or not line.is_default]

    def drop(self, key: str, why: str) -> None:
        """Take a setting out again; what set it is not carried over."""
        self.given.stage.pop(key)
        for line in self.lines:
            if key in line.ours:
                line.ours.pop(key)
                if not line.ours:
                    line.is_left, line.note = True, why
        self.lines = [line for line in self.lines if not (line.is_left and line.is_default)]


def _holds(now: Any, value: Any) -> bool:
    """Whether a setting is still what a line has made of it; of a section, whether its keys are in it."""
    return now == value or (isinstance(now, dict) and isinstance(value, dict) and value.items() <= now.items())


def _stage(
    layout: Layout,
    name: str,
    kind: str,
    keys: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    processes: int,
    rows: int | None,
    method: str = "",
) -> _Part:
    theirs = {layout.plain(key): value for key, value in keys.items()}
    theirs |= {key.rpartition(".")[2]: value for key, value in theirs.items() if "." in key}
    unset = {key: value for key, value in defaults.items() if key not in theirs and value is not None}
    given = Given({**unset, **theirs}, kind, BY_KIND[kind].model_fields, BY_KIND[kind].measures, processes, rows)
    part = _Part(name, given, [])
    given_by_them: set[str] = set()
    entries = {key: layout.entry(key, method or kind) for key in (*unset, *keys)}
    for key in sorted(entries, key=lambda key: (getattr(entries[key], "when", 0), key not in unset)):
        is_default = key in unset
        value = unset[key] if is_default else keys[key]
        found = _become(layout, key, value, given, method or kind)
        if isinstance(found, Settings):
            values = {ours: value for ours, value in found.values.items() if not (is_default and ours in given_by_them)}
            for ours, setting in values.items():
                old = given.stage.get(ours)
                given.stage[ours] = (
                    {**old, **setting} if isinstance(old, dict) and isinstance(setting, dict) else setting
                )
            given_by_them |= set() if is_default else values.keys()
            part.lines.append(Line(key, value, name, values, found.note, is_default=is_default))
        elif not is_default:
            part.lines.append(Line(key, value, name, note=str(found), is_left=True))
    return part


def _become(layout: Layout, key: str, value: Any, given: Given, method: str) -> Settings | Reason:
    entry = layout.entry(key, method)
    leaf = key.rpartition(".")[2]
    if value is None:
        return Reason("it is null, so nothing is asked for")
    if entry is None:
        if leaf in given.fields and not isinstance(value, dict):
            return Settings({leaf: value})
        others = [name for name, table in layout.methods.items() if leaf in table]
        if others:
            return Reason(f"it belongs to {', '.join(others)}, and this is {method}")
        return Reason(f"not a known key of {layout.title}.{did_you_mean(leaf, layout.entries(method))}")
    if isinstance(entry, Reason):
        return entry
    try:
        return converted(entry, value, given)
    except (TypeError, ValueError, AttributeError) as err:
        return Reason(f"the value can't be read ({err})")


# --- layouts in sections ------------------------------------------------------------------------------------------------


def _from_sections(
    source: Source, method: str, hints: tuple[str, ...], path: str, *, processes: int, rows: int | None
) -> Conversion:
    shared = {key: value for key, value in source.keys.items() if key.partition(".")[0] not in source.stages}
    parts: list[_Part] = []
    names = source.stages or ("",)
    for section in names:
        own = {key: value for key, value in source.keys.items() if section and key.partition(".")[0] == section}
        kind = guide.STAGES[section] if section else _kind_of_sections(shared, method, hints)
        part = _stage(GUIDE, kind, kind, {**shared, **own}, {}, processes=processes, rows=rows)
        _chain(part, parts, own, section)
        parts.append(part)
    merged = _recipe(parts, "YAML in sections, " + ", ".join(part.name for part in parts), Path(path).stem)
    merged.lines = _once(merged.lines, shared)
    return merged


def _kind_of_sections(keys: Mapping[str, Any], method: str, hints: tuple[str, ...]) -> str:
    """The kind of stage where no section names it."""
    if method and method not in guide.STAGES:
        raise ConfigError(f"There is no method {method!r} in sections; there are {', '.join(dict.fromkeys(guide.STAGES.values()))}.")
    leaves = {key.rpartition(".")[2]: value for key, value in keys.items()}
    named = next((str(leaves[key]).lower() for key in ("method", "algorithm", "stage", "task") if key in leaves), "")
    words = [method, named, *(word for hint in hints for word in re.split(r"[^a-z]+", hint.lower()))]
    signs = {"ppo_epochs": "ppo", "kl_penalty_coef": "ppo", "ranking_loss": "reward", "comparison_type": "reward", "num_generations": "grpo", "beta": "dpo"}
    words += [kind for key, kind in signs.items() if key in leaves]
    return next((guide.STAGES[word] for word in words if word in guide.STAGES), "sft")


def _chain(part: _Part, before: list[_Part], own: Mapping[str, Any], section: str) -> None:
    """A stage starts from the policy before it and is judged by the reward model before it, unless it says otherwise."""
    named = {ours for line in part.lines if line.key in own for ours in line.ours}
    policy = next((earlier.name for earlier in reversed(before) if earlier.name not in JUDGE_KINDS), None)
    judge = next((earlier.name for earlier in reversed(before) if earlier.name in JUDGE_KINDS), None)
    if policy is not None and "model" not in named:
        part.given.stage["model"] = f"stage:{policy}"
    if judge is not None and "reward" in part.given.fields and "reward" not in named:
        part.given.stage["reward"] = f"stage:{judge}"


def _once(lines: list[Line], shared: Mapping[str, Any]) -> list[Line]:
    """Of a shared key that some stage takes, what the others say of it is not repeated."""
    taken = {line.key for line in lines if line.key in shared and not line.is_left}
    seen: set[str] = set()
    kept = []
    for line in lines:
        repeated = line.is_left and line.key in shared and (line.key in taken or line.key in seen)
        seen.add(line.key)
        kept += [] if repeated else [line]
    return kept


# --- the recipe ---------------------------------------------------------------------------------------------------------


def _recipe(parts: list[_Part], title: str, name: str) -> Conversion:
    """The recipe, without settings that it refuses: those are not carried over, and the refusal says why."""
    to_fill_in = [
        f"stages.{part.name}.{key} = {value}: {what}" for part in parts for key, value, what in _filled_in(part)
    ]
    for part in parts:
        part.finish()
    while True:
        tree = _tree(parts, name)
        try:
            RecipeConfig.of(tree, source="the recipe")
        except ConfigError as err:
            if not any(_settled(part, line) for line in str(err).splitlines()[1:] for part in parts):
                raise
            continue
        return Conversion(title, tree, [line for part in parts for line in part.lines], to_fill_in)


def _filled_in(part: _Part) -> Iterator[tuple[str, Any, str]]:
    for key, (value, what) in MUST_BE_GIVEN.items():
        field_of = part.given.fields.get(key)
        if field_of is None or any(ours == key or ours == f"{key}.path" for ours in part.given.stage):
            continue
        part.given.stage = {key: value, **part.given.stage}
        yield key, value, what
    if "rollouts" in part.given.fields and "rollouts" not in part.given.stage:
        length = part.given.ours("rollouts")
        yield "rollouts", length, "the default; epochs x prompts / prompts_per_rollout, which --rows N computes"


def _settled(part: _Part, complaint: str) -> bool:
    """Drop the setting that a line of an error is about; whether there was one."""
    match = re.match(rf"\s*stages\.{re.escape(part.name)}(?:\.(?P<place>[\w.]+))?: (?P<why>.*)", complaint)
    if match is None:
        return False
    place, why = match["place"] or "", match["why"]
    settings = [key for key in part.given.stage if key not in MUST_BE_GIVEN and not key.startswith(TOP)]
    exact = [key for key in settings if key == place or place.startswith(f"{key}.")]
    inside = [key for key in settings if not place or key.startswith(f"{place}.")]
    mentioned = sorted(
        (found.start(), key)
        for key in inside
        if (found := re.search(rf"(?<![\w.]){re.escape(key)}\b|\b{re.escape(key.rpartition('.')[2])}\b", why))
    )
    culprit = exact[0] if exact else mentioned[0][1] if mentioned else None
    if culprit is None:
        return False
    part.drop(culprit, why)
    return True


def _tree(parts: list[_Part], name: str) -> dict[str, Any]:
    top: dict[str, Any] = {"name": re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._") or "converted"}
    stages: dict[str, Any] = {}
    for part in parts:
        stage: dict[str, Any] = {"kind": part.given.kind}
        for key, value in sorted(part.given.stage.items(), key=lambda item: item[0] not in MUST_BE_GIVEN):
            if key.startswith(TOP):
                top[key.removeprefix(TOP)] = value
            else:
                _put(stage, key.split("."), value)
        stages[part.name] = stage
    return {**top, "stages": stages}


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    *sections, leaf = path
    node = tree
    for section in sections:
        inner = node.get(section)
        node[section] = inner = {"path": inner} if isinstance(inner, str) else {} if inner is None else inner
        node = inner
    if isinstance(node.get(leaf), dict) and isinstance(value, str):
        node[leaf] = {"path": value, **node[leaf]}
    elif isinstance(node.get(leaf), dict) and isinstance(value, dict):
        node[leaf].update(value)
    else:
        node[leaf] = value
