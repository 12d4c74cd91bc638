"""The plan of the house: rooms on floors, and imports that only point down."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.source import FILES, SOURCE, imported_modules, module_of, name_of, room_of

FLOORS = [
    ["errors", "seeds", "activity", "allocator", "formatting", "version"],
    ["files"],
    ["config"],
    ["data", "distributed", "losses", "native"],
    ["models", "merging", "store"],
    ["rewards", "rollout", "web"],
    ["training"],
    ["evaluation", "search", "registry"],
    ["feedback", "serving", "export", "scale"],
    ["pipeline"],
    ["cli", "testing"],
    ["__main__"],
]
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
LIGHT_ROOMS = {"errors", "seeds", "activity", "allocator", "formatting", "version", "files", "config"}
HEAVY = {"torch", "transformers", "tokenizers", "peft", "datasets", "numpy", "scipy", "pandas", "pyarrow", "matplotlib"}


def rooms_imported_by(file: Path) -> set[str]:
    return {name.split(".")[1] for name in imported_modules(file) if name.startswith("rlhf.")}


def test_imports_only_point_down():
    wrong = [sentence for file in FILES for sentence in imports_that_do_not_point_down(file)]
    assert not wrong, "\n".join(wrong)


def imports_that_do_not_point_down(file: Path) -> Iterator[str]:
    room = room_of(file)
    if room == "__init__":  # the list of public names; it names every room and imports none (see the next tests)
        return
    if room not in FLOOR:
        yield f"{name_of(file)}: the room {room!r} is on no floor; give it one in FLOORS and in docs/design.md"
        return
    for other in rooms_imported_by(file) - {room}:
        if other not in FLOOR:
            yield f"{name_of(file)} imports {other!r} from the package itself; import it from its room"
        elif FLOOR[other] >= FLOOR[room]:
            yield f"{name_of(file)} ({room}) may not import rlhf.{other}: not on a lower floor"


CIRCLES = {
    frozenset({"rlhf.training.loop", "rlhf.training.lr_find"}): "the search moves the loop, whose class its types name",
}
"""Files of a room that import each other all the same, and why."""


def circles_among(modules: dict[str, set[str]]) -> list[frozenset[str]]:
    """Sets of modules that reach each other: strongly connected parts of more than one."""
    reached = {}
    for module in modules:
        seen, waiting = set(), [module]
        while waiting:
            new = modules[waiting.pop()] - seen
            seen |= new
            waiting += new
        reached[module] = seen
    parts = {frozenset({m} | {o for o in reached[m] if m in reached[o]}) for m in modules if m in reached[m]}
    return sorted(parts, key=sorted)


def imports_within(room: str) -> dict[str, set[str]]:
    """Module of a room -> modules of the room that it imports: at its top, in functions or for its types."""
    modules = {module_of(file): file for file in FILES if room_of(file) == room}
    imports = {}
    for module, file in modules.items():
        names = {name if name in modules else name.rpartition(".")[0] for name in imported_modules(file)}
        imports[module] = (names & modules.keys()) - {module}
    return imports


ROOMS = sorted({room_of(file) for file in FILES if file.parent != SOURCE})


@pytest.mark.parametrize("room", ROOMS)
def test_files_of_a_room_do_not_import_each_other_in_a_circle(room):
    circles = [circle for circle in circles_among(imports_within(room)) if circle not in CIRCLES]
    assert not circles, f"{[sorted(circle) for circle in circles]}: move what both need to a file below them"


def test_circles_that_may_be_are_there():
    there = {circle for room in ROOMS for circle in circles_among(imports_within(room))}
    assert there >= CIRCLES.keys(), "a circle is cut: take it off CIRCLES"


FOLDERS = sorted({file.parent for file in FILES})


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_every_folder_of_modules_is_a_package(folder):
    # Without __init__.py it is a namespace package: any folder of that name on the path may add modules to it.
    assert (folder / "__init__.py").is_file(), f"{folder} has modules and no __init__.py"


def modules_loaded_by(*modules: str) -> set[str]:
    """Top-level names in sys.modules of a fresh interpreter after importing the modules."""
    code = f"import sys, {', '.join(modules)}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_importing_the_package_loads_the_standard_library_and_nothing_else():
    before = modules_loaded_by("sys")  # what site and .pth files of the environment bring in anyway
    foreign = modules_loaded_by("rlhf") - before - set(sys.stdlib_module_names) - {"rlhf"}
    assert not foreign, f"import rlhf loads {sorted(foreign)}; import them where they are used"


def test_config_can_be_read_on_a_machine_without_torch():
    light = [module_of(file) for file in FILES if room_of(file) in LIGHT_ROOMS]
    assert not modules_loaded_by(*light) & HEAVY


def test_the_command_line_starts_without_loading_torch():
    # `rlhf --help` and shell completion pay for every import at the top of rlhf.cli and of what it imports.
    assert not modules_loaded_by("rlhf.cli") & HEAVY
