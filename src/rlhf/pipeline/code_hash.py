"""Which of the library's own source files decide what a stage makes.

They are found by following imports: from the modules that run the stage's kind and train its model, from those of the losses that
its settings choose and of what builds its rewards, its judge and its engine, and from functions of this library that the recipe names.
Followed are the modules that names come from: a package's ``__init__.py`` only hands names on (a test holds them to that), so
``from rlhf.losses import nll_loss`` leads to the module that defines it and to no other loss.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import rlhf
from rlhf.config.base import Names, named_things
from rlhf.config.engines import engines_of
from rlhf.config.environments import environments_of
from rlhf.config.judges import judges_of
from rlhf.config.rewards import rewards_of
from rlhf.config.search import strategies_of

if TYPE_CHECKING:
    from rlhf.config.stage_inputs import StageConfig

ROOT = Path(rlhf.__file__).parent
PACKAGE = rlhf.__name__
INSTALLED = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib"))
"""Where Python and packages lie that somebody installed."""
SEARCH = f"{PACKAGE}.search.search_engine"
"""Runs whatever strategy a stage has."""
DECIDES_NOTHING = (
    "config/",
    "errors.py",
    "files.py",
    "training/interrupt.py",
    "training/log.py",
    "training/progress.py",
    "training/trackers.py",
)
"""Settings are in the key by their values; the others decide when a run ends or how a thing is reported or written, not what it is."""


def code_of_stage(kind: str, stage: StageConfig) -> dict[str, str]:
    """Source files whose code decides what a stage makes: path inside the package -> 16 hex digits of its sha256."""
    modules = modules_of_kind(kind) | {
        f"{PACKAGE}.{formula.function.partition(':')[0]}" for formula in stage.formulas.values()
    }
    modules |= {spec.builds.partition(":")[0] for _, spec in rewards_of(stage)}
    modules |= {judge.builds.partition(":")[0] for _, spec in rewards_of(stage) for judge in judges_of(spec)}
    modules |= {engine.builds.partition(":")[0] for engine in engines_of(stage).values()}
    modules |= {judge.builds.partition(":")[0] for judge in judges_of(stage)}
    if strategies := strategies_of(stage):
        modules |= {SEARCH, *(strategy.module for strategy in strategies if strategy.module)}
    modules |= {environment.builds.partition(":")[0] for environment in environments_of(stage).values()}
    modules |= {text.rpartition(":")[0] for _, text, names in named_things(stage) if is_own_function(text, names)}
    return code_of_modules(tuple(sorted(modules)))


def modules_of_kind(kind: str) -> set[str]:
    """The module that runs a kind of stage, and that of its trainer where it has one."""
    from rlhf.config.stages import BY_KIND  # here: commands that only read records do without the settings of all kinds

    stage = BY_KIND[kind]
    trainer = {stage.trainer.partition(":")[0]} if stage.trainer else set()
    return {f"{PACKAGE}.pipeline.stages.{stage.runs.partition(':')[0]}", *trainer}


def is_own_function(text: str, names: Names) -> bool:
    """Whether a setting names a function of this library."""
    return names is Names.FUNCTION and text.startswith(f"{PACKAGE}.") and ".py:" not in text


@cache
def code_of_modules(modules: tuple[str, ...]) -> dict[str, str]:
    """Files, with their hashes, that modules of this library import directly or through others, themselves included.

    Kept for the life of the process: what runs is what was there when it was imported.
    """
    files = import_closure(file for module in modules if (file := file_of_module(module)) is not None)
    files |= {
        source for file in files for source in file.parent.glob("*.[ch]")
    }  # a module compiles the C files next to it
    names = {file.relative_to(ROOT).as_posix(): file for file in files}
    return {
        name: hashlib.sha256(names[name].read_bytes()).hexdigest()[:16]
        for name in sorted(names)
        if not name.startswith(DECIDES_NOTHING)
    }


def import_closure(files: Iterable[Path]) -> set[Path]:
    """Files of this library reached by imports at any depth; imports for type checkers alone are left out."""
    closure: set[Path] = set()
    waiting = list(files)
    while waiting:
        file = waiting.pop()
        if file not in closure:
            closure.add(file)
            waiting += _imported_files(file)
    return closure


def source_of_function(text: str) -> Path | None:
    """The Python file of ``package.module:function`` or ``path/to/file.py:function``; None where there is none."""
    module, _, _ = text.rpartition(":")
    if module.endswith(".py"):
        return path if (path := Path(module).expanduser()).is_file() else None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None  # anyone who calls the function will say so
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def files_of_function(text: str) -> list[Path]:
    """``source_of_function``, and what it imports from its own folder or its own package, at any depth: all of it decides.

    What comes from the standard library and installed packages is covered by their versions.
    """
    first = source_of_function(text)
    files: list[Path] = []
    waiting = [first.resolve()] if first is not None else []
    while waiting:
        file = waiting.pop()
        if file not in files:
            files.append(file)
            waiting += [] if any(file.is_relative_to(place) for place in INSTALLED) else _neighbors(file)
    return sorted(files)


def _neighbors(file: Path) -> Iterator[Path]:
    """Modules in the folder of a file that it imports, by absolute name or relative to itself."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    except (OSError, ValueError, SyntaxError):
        return  # anyone who calls the function will say so
    top = file.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    for node in ast.walk(tree):
        names: list[tuple[Path, str]] = []
        if isinstance(node, ast.Import):
            names = [(top, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = top if node.level == 0 else file.parent.joinpath(*[".."] * (node.level - 1))
            module = node.module or ""
            names = [(base, module)] if module else []
            names += [(base, f"{module}.{alias.name}".lstrip(".")) for alias in node.names]
        for base, name in names:
            path = base.joinpath(*name.split("."))
            candidates = (path.with_name(f"{path.name}.py"), path / "__init__.py")
            yield from (candidate.resolve() for candidate in candidates if candidate.is_file())


@cache
def _imported_files(file: Path) -> tuple[Path, ...]:
    files = (source_of_name(module, name) for module, name in _imports(file))
    return tuple(dict.fromkeys(file for file in files if file is not None))


def source_of_name(module: str, name: str | None) -> Path | None:
    """The file that defines what ``from module import name`` (or ``import module``) gives."""
    if name is not None and (submodule := file_of_module(f"{module}.{name}")) is not None:
        return submodule
    file = file_of_module(module)
    if file is None or file.name != "__init__.py":
        return file
    if module == PACKAGE:  # holds names and a version, nothing that computes
        return None
    origin = next((source for source, given in _imports(file, for_types=True) if given == name), None)
    return source_of_name(origin, name) if origin is not None else file


def file_of_module(module: str) -> Path | None:
    """The file of a module of this library, by its place in the tree; nothing is imported to find it."""
    parts = module.split(".")
    if parts[0] != PACKAGE:
        return None
    path = ROOT.joinpath(*parts[1:])
    if path.is_dir():
        return init if (init := path / "__init__.py").is_file() else None
    return file if (file := path.with_name(f"{path.name}.py")).is_file() else None


def _imports(file: Path, *, for_types: bool = False) -> Iterator[tuple[str, str | None]]:
    """(module, name) of each import of this library in a file; name is None for ``import module``."""
    package = (PACKAGE, *file.relative_to(ROOT).parent.parts)
    waiting: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"), filename=str(file))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not for_types:
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module.split(".")[0] == PACKAGE:
                yield from ((module, alias.name) for alias in node.names)
