"""Whose fault a refusal is: the file's, or that of the overrides on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.config.base import refusal
from rlhf.config.error_messages import shortened
from rlhf.errors import ConfigError, did_you_mean

Read = Callable[[Mapping[str, Any]], Any]
"""Makes settings of a plain mapping, or raises a ``ConfigError`` with every complaint."""

NO_KIND = re.compile(r"stages\.(?P<stage>[^.:\s]+)\.kind: missing `kind`")
"""What ``rlhf.config.error_messages`` says of a section without its tag."""


def blame_overrides(
    err: ConfigError, written: Mapping[str, Any], overrides: Sequence[str], *, source: str, read: Read
) -> ConfigError:
    """The same complaints, with what only the overrides brought said of them and not of the file.

    Args:
        err: What reading the file with its overrides raised.
        written: The settings as they stand in the file.
        overrides: ``key.sub=value`` items that were applied to them.
        source: What errors call the file.
        read: Raised it.
    """
    of_file = complaints_of(read, written) if overrides else []
    lines = name_missing_stages(complaint_lines(err), written)
    num_brought = sum(line not in of_file for line in lines)
    if not overrides or not num_brought:
        return err
    marked = mark_overrides(lines, of_file, overrides)
    if num_brought < len(lines):
        return refusal(f"{source} with its overrides", marked)
    one = len(overrides) == 1
    fine = "" if of_file else f"; {source} is fine without {'it' if one else 'them'}"
    head = f"The override {shortened(overrides[0])!r} is not valid" if one else "The overrides are not valid"
    return ConfigError(f"{head}{fine}:" + "".join(f"\n  {line}" for line in (lines if one else marked)))


def mark_overrides(lines: Sequence[str], of_file: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Complaints, each that the file alone does not have with the override that it comes from."""
    return [line if line in of_file else f"{line} [{_culprit(line, overrides)}]" for line in lines]


def name_missing_stages(lines: Sequence[str], written: Mapping[str, Any]) -> list[str]:
    """Complaints, where an override into a stage that the file does not have is not a stage without a kind."""
    stages = written.get("stages")
    names = [str(name) for name in stages] if isinstance(stages, Mapping) else []
    named = []
    for line in lines:
        match = NO_KIND.match(line)
        if match is not None and match["stage"] not in names:
            hint = did_you_mean(match["stage"], names) or f" The stages are {', '.join(names) or '(none)'}."
            line = f"stages.{match['stage']}: there is no stage {match['stage']!r}.{hint}"
        named.append(line)
    return named


def complaints_of(read: Read, written: Mapping[str, Any]) -> list[str]:
    """What is wrong with settings; nothing where they can be read."""
    try:
        read(written)
    except ConfigError as err:
        return complaint_lines(err)
    return []


def complaint_lines(err: ConfigError) -> list[str]:
    """The complaints of a refusal, one for each place."""
    return [line.strip() for line in str(err).splitlines()[1:]]


def _culprit(line: str, overrides: Sequence[str]) -> str:
    """The override that is about the place of a complaint, inside it, or around it."""
    place = line.partition(":")[0].split(" ")[0]
    for item in overrides:
        given = item.partition("=")[0]
        if f"{given}.".startswith(f"{place}.") or f"{place}.".startswith(f"{given}."):
            return f"override {shortened(item)}"
    return f"override {shortened(overrides[0])}" if len(overrides) == 1 else "because of the overrides"
