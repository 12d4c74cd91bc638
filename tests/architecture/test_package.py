"""What is built and installed: the wheel holds every file, the lock holds every dependency, the extras fit together."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import rlhf
from tests.fixtures.source import ROOT, SOURCE

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDS_EXTRA = {"HumanEvalTask", "PreferenceStore", "create_app"}
"""Public names that only an extra brings; without it they say which."""
ROOMS_OF_AN_EXTRA = {"rlhf.serving", "rlhf.store", "rlhf.web"}
"""Rooms that only an extra brings; without it they say which."""
NOT_IN_ALL = {"all", "dev", "vllm", "deepspeed"}


def pins(name: str) -> dict[str, str]:
    """Package -> version of one lock file, following its -r lines."""
    versions: dict[str, str] = {}
    for line in (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("-r "):
            versions.update(pins(line.removeprefix("-r ")))
        elif line and not line.startswith("#"):
            assert re.fullmatch(r"[\w.-]+==[\w.]+", line), f"requirements/{name}: {line!r} is not name==version"
            package, _, version = line.partition("==")
            versions[canonicalize_name(package)] = version
    return versions


def expanded(requirements: list[str]) -> Iterator[str]:
    """``rlhf[web,postgres]`` stands for those extras' own lists."""
    for text in requirements:
        requirement = Requirement(text)
        if requirement.name != PROJECT["name"]:
            yield text
        for extra in sorted(requirement.extras) if requirement.name == PROJECT["name"] else ():
            yield from expanded(EXTRAS[extra])


@pytest.mark.parametrize(
    ("lock", "requirements"),
    [("core.txt", PROJECT["dependencies"]), ("dev.txt", list(expanded(EXTRAS["dev"])))],
    ids=["core", "dev"],
)
def test_the_lock_holds_every_dependency_within_its_bounds(lock, requirements):
    locked = pins(lock)
    for requirement in map(Requirement, requirements):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement} is not in requirements/{lock}: run `make lock`"
        assert requirement.specifier.contains(version), (
            f"requirements/{lock} has {version}, pyproject.toml wants {requirement}"
        )


def test_all_refers_to_every_extra_that_needs_no_gpu():
    (everything,) = map(Requirement, EXTRAS["all"])
    assert everything.name == "rlhf"
    assert everything.extras == EXTRAS.keys() - NOT_IN_ALL


def test_the_installation_page_lists_the_extras_that_there_are():
    rows = re.findall(r"(?m)^\| (`.+?) \|", (ROOT / "docs" / "install.md").read_text(encoding="utf-8"))
    assert sorted(name for row in rows for name in re.findall(r"`([^`]+)`", row)) == sorted(EXTRAS)


def test_the_pip_line_of_an_error_names_the_locked_versions():
    from rlhf.errors import pip_line

    assert f"-c '{ROOT}/requirements/dev.txt'" in pip_line("web")
    assert "-c " not in pip_line("vllm"), "which wants versions of its own"


def test_trl_is_an_oracle_and_no_dependency():
    sections = [PROJECT["dependencies"], *(EXTRAS[name] for name in EXTRAS.keys() - {"dev"})]
    assert "trl" not in {Requirement(text).name for section in sections for text in section}
    assert "trl" not in pins("core.txt")


def test_the_command_rlhf_starts_a_function_that_exists():
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="rlhf")
    assert callable(entry.load())


def test_the_changelog_knows_this_version():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0].startswith(rlhf.__version__)


@pytest.mark.slow
def test_a_bare_installation_can_import_every_room():
    """As on a user's machine: only what core.txt locks can be found; an extra imported at the top of another room fails."""
    core = pins("core.txt").keys() | {"rlhf"}
    foreign = sorted(
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if not {canonicalize_name(name) for name in distributions} & core
    )
    rooms = sorted(f"rlhf.{folder.parent.name}" for folder in SOURCE.glob("*/__init__.py"))
    code = f"""
import importlib, sys
from importlib.machinery import PathFinder

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {set(foreign)!r} else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
import rlhf, rlhf.errors
for room in {rooms!r}:
    try:
        importlib.import_module(room)
    except rlhf.errors.MissingExtraError as err:
        assert room in {sorted(ROOMS_OF_AN_EXTRA)!r} and "pip install -e '" in str(err), (room, err)
for name in rlhf.PUBLIC:
    try:
        getattr(rlhf, name)
    except rlhf.errors.MissingExtraError as err:
        assert name in {sorted(NEEDS_EXTRA)!r} and "pip install -e '" in str(err), (name, err)
"""
    assert "trl" in foreign, "the development environment has TRL; without it this test would prove nothing"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    checkout = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(SOURCE.parent, checkout / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel"]
    command = [*pip, "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(tmp_path), str(checkout)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr

    (wheel,) = tmp_path.glob("rlhf-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith("rlhf/")}
    source = checkout / "src"
    assert shipped == {path.relative_to(source).as_posix() for path in (source / "rlhf").rglob("*") if path.is_file()}
