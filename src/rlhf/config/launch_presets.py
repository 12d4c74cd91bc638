"""Launch sections that have a name: `launch: standard`, or `launch: {preset: standard, address: auto}` to change some of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESET = "preset"
"""The key that names one."""
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "standard": {
        "launcher": "ray",
        "placement": "colocated",
        "pools": {
            "engines": {"replicas": 4, "gpus": 0.4},
            "reward": {"replicas": 2, "gpus": 0.2},
            "reference": {"replicas": 2, "gpus": 0.2},
        },
    },
}
"""Name -> the section. `standard`: four engines with 0.4 of a GPU each, and two copies each of the rewards and of the reference with 0.2."""


def with_preset(value: Any) -> Any:
    """A section with what its preset says, where it names one; its own keys count, those of each pool one by one.

    Raises:
        ValueError: There is no such preset.
    """
    if isinstance(value, str):
        return PRESETS.get(value, value)
    if not isinstance(value, Mapping):
        return value
    if value.get("launcher") in PRESETS:  # what `launch=standard launch.address=auto` on the command line comes to
        value = {**{key: own for key, own in value.items() if key != "launcher"}, PRESET: value["launcher"]}
    if PRESET not in value:
        return value
    name = value[PRESET]
    if name not in PRESETS:
        raise ValueError(f"{PRESET} {name!r} is none of: {', '.join(PRESETS)}")
    return _over(PRESETS[name], {key: own for key, own in value.items() if key != PRESET})


def _over(preset: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Own keys over those of a preset, section by section."""
    both = {
        key: _over(preset[key], value)
        for key, value in own.items()
        if isinstance(value, Mapping) and isinstance(preset.get(key), Mapping)
    }
    return {**preset, **own, **both}
