"""Turns the keys of another project into a recipe, and says what became of each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf.config.foreign import common, guide, openrlhf_conversions, trl
from rlhf.config.foreign.assembly import Conversion, Line, Part, assembled
from rlhf.config.foreign.foreign_files import PROCESSES, Source, read_source
from rlhf.config.foreign.key_table import Given, Reason, Settings, converted
from rlhf.config.foreign.layouts import GUIDE, OPENRLHF, TRL, Layout, find_method
from rlhf.config.stages import BY_KIND, JUDGE_KINDS
from rlhf.errors import ConfigError, did_you_mean


def convert_file(
    path: Path | str, *, method: str = "", processes: int | None = None, rows: int | None = None
) -> Conversion:
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
        Line(
            key,
            value,
            "",
            note=f"{count} processes count in the batch" if key in PROCESSES else common.ONE_PROCESS,
            is_left=True,
        )
        for key, value in source.launcher.items()
    ]
    if source.layout is GUIDE:
        conversion = _from_sections(source, method, hints, str(path), processes=count, rows=rows)
    else:
        chosen = find_method(source.layout, source.keys, method or source.program, hints, str(path))
        kind, extra = _kind_of(source, chosen)
        defaults = {**source.layout.defaults.get(kind if source.layout is TRL else chosen, {}), **extra}
        part = _stage(source.layout, kind, kind, source.keys, defaults, processes=count, rows=rows, method=chosen)
        conversion = assembled([part], f"{source.layout.title} {chosen}", Path(path).stem)
    conversion.lines = [*launched, *conversion.lines]
    return conversion


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
) -> Part:
    theirs = {layout.plain(key): value for key, value in keys.items()}
    theirs |= {key.rpartition(".")[2]: value for key, value in theirs.items() if "." in key}
    unset = {key: value for key, value in defaults.items() if key not in theirs and value is not None}
    given = Given({**unset, **theirs}, kind, BY_KIND[kind].model_fields, BY_KIND[kind].measures, processes, rows)
    part = Part(name, given, [])
    given_by_them: set[str] = set()
    entries = {key: layout.entry(key, method or kind) for key in (*unset, *keys)}
    for key in sorted(entries, key=lambda key: (getattr(entries[key], "when", 0), key not in unset)):
        is_default = key in unset
        value = unset[key] if is_default else keys[key]
        outcome = _become(layout, key, value, given, method or kind)
        if isinstance(outcome, Settings):
            values = {
                ours: value for ours, value in outcome.values.items() if not (is_default and ours in given_by_them)
            }
            for ours, setting in values.items():
                old = given.stage.get(ours)
                given.stage[ours] = (
                    {**old, **setting} if isinstance(old, dict) and isinstance(setting, dict) else setting
                )
            given_by_them |= set() if is_default else values.keys()
            part.lines.append(Line(key, value, name, values, outcome.note, is_default=is_default))
        elif not is_default:
            part.lines.append(Line(key, value, name, note=str(outcome), is_left=True))
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
        outcome = converted(entry, value, given)
    except (TypeError, ValueError, AttributeError, OverflowError, ZeroDivisionError) as err:
        return Reason(f"the value can't be read ({err})")
    if isinstance(outcome, Reason) or all(given.has(key) for key in outcome.values):
        return outcome
    return Reason(f"a stage of kind {given.kind} has no such setting")


# --- layouts in sections ------------------------------------------------------------------------------------------------


def _from_sections(
    source: Source, method: str, hints: tuple[str, ...], path: str, *, processes: int, rows: int | None
) -> Conversion:
    shared = {key: value for key, value in source.keys.items() if key.partition(".")[0] not in source.stages}
    parts: list[Part] = []
    names = source.stages or ("",)
    for section in names:
        own = {key: value for key, value in source.keys.items() if section and key.partition(".")[0] == section}
        kind = guide.STAGES[section] if section else _kind_of_sections(shared, method, hints)
        part = _stage(GUIDE, kind, kind, {**shared, **own}, {}, processes=processes, rows=rows)
        _chain(part, parts, own, section)
        parts.append(part)
    merged = assembled(parts, "YAML in sections, " + ", ".join(part.name for part in parts), Path(path).stem)
    merged.lines = _once(merged.lines, shared)
    return merged


def _kind_of_sections(keys: Mapping[str, Any], method: str, hints: tuple[str, ...]) -> str:
    """The kind of stage where no section names it."""
    if method and method not in guide.STAGES:
        raise ConfigError(
            f"There is no method {method!r} in sections; there are {', '.join(dict.fromkeys(guide.STAGES.values()))}."
        )
    leaves = {key.rpartition(".")[2]: value for key, value in keys.items()}
    named = next((str(leaves[key]).lower() for key in ("method", "algorithm", "stage", "task") if key in leaves), "")
    words = [method, named, *(word for hint in hints for word in re.split(r"[^a-z]+", hint.lower()))]
    signs = {
        "ppo_epochs": "ppo",
        "kl_penalty_coef": "ppo",
        "ranking_loss": "reward",
        "comparison_type": "reward",
        "num_generations": "grpo",
        "beta": "dpo",
    }
    words += [kind for key, kind in signs.items() if key in leaves]
    return next((guide.STAGES[word] for word in words if word in guide.STAGES), "sft")


def _chain(part: Part, before: list[Part], own: Mapping[str, Any], section: str) -> None:
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
