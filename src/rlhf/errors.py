"""The error tree, and the two helpers that make errors useful.

    RLHFError
    ├── ConfigError (ValueError)         a recipe, option or argument is wrong
    │   ├── UnknownNameError (KeyError)  a name is not in the table it was looked up in
    │   └── UnknownArgumentError (TypeError)  a constructor has no argument of that name
    ├── DataError (ValueError)           a file or a row is wrong; names file, line and column
    ├── ModelError (ValueError)          a model folder or its tokenizer can't be used as asked
    ├── RewardError (RuntimeError)       a reward function failed; names the function and the sample
    │   └── BudgetError                  a judge was asked, or has cost, as much as it may
    ├── TrainingError (RuntimeError)     training can't continue: not finite, stale weights, diverged
    ├── CheckpointError (RuntimeError)   a checkpoint is damaged or belongs to another run
    ├── MissingExtraError (ImportError)  an optional package is needed
    ├── StorageError (OSError)           a disk is full, a folder can't be written
    ├── MemoryLimitError (MemoryError)   out of memory; says what to lower
    ├── GateError (RuntimeError)          a gate refused a model, and was told to stop the run
    ├── RunBusyError (RuntimeError)      another running process uses the run's folder
    └── (InterruptedRun)                 not an error, so not in the tree: the process received a stop signal

Each is also the standard library's error of its kind, so ``except ValueError`` works as a user expects. A message is one
sentence or two: what is wrong, what we got, what we wanted, what to do.
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


class RLHFError(Exception):
    """Root of every error this library raises on purpose."""

    exit_code = 1
    """Exit code of the command line; each kind has its own so that scripts can distinguish them."""


class ConfigError(RLHFError, ValueError):
    """A recipe, an option or an argument is wrong."""

    exit_code = 2


class UnknownNameError(ConfigError, KeyError):
    """A name is not in the table it was looked up in."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return str(self.args[0]) if self.args else ""


class UnknownArgumentError(ConfigError, TypeError):
    """A constructor has no argument of that name; the message says what takes its place."""


class DataError(RLHFError, ValueError):
    """A data file or a row of one is wrong."""

    exit_code = 3


class ModelError(RLHFError, ValueError):
    """A model folder, its weights or its tokenizer can't be used as asked."""

    exit_code = 4


class RewardError(RLHFError, RuntimeError):
    """A reward function raised, hung, or returned something that is not one number per sample."""

    exit_code = 5


class BudgetError(RewardError):
    """A judge was asked as often as it may be, or has cost what it may; its verdicts so far are kept."""


class TrainingError(RLHFError, RuntimeError):
    """Training can't continue: a loss is not finite, weights are stale, a guard stopped it."""

    exit_code = 6


class CheckpointError(RLHFError, RuntimeError):
    """A checkpoint is damaged, or belongs to another run."""

    exit_code = 7


class MissingExtraError(RLHFError, ImportError):
    """An optional package is needed and not installed."""

    exit_code = 8


class StorageError(RLHFError, OSError):
    """A disk is full, or a folder can't be written."""

    exit_code = 9

    def __str__(self) -> str:  # OSError would drop what it can't read as errno and strerror
        return str(self.args[0]) if self.args else ""


class MemoryLimitError(RLHFError, MemoryError):
    """Out of memory; the message says what to lower."""

    exit_code = 10


class RunBusyError(RLHFError, RuntimeError):
    """Another running process uses the run's folder."""

    exit_code = 11


class GateError(RLHFError, RuntimeError):
    """A gate failed a model and its settings stop the run then, it has no champion to continue with, or a judge was refused a certificate."""

    exit_code = 20


class UndecidedGateError(GateError):
    """A gate's evidence is missing or too little, and it was told to stop the run then."""

    exit_code = 21


class InterruptedRun(BaseException):
    """Ctrl-C, SIGTERM or SIGHUP: the state is saved, and the same command resumes from there.

    Not an ``Exception``: it is raised at any moment, and code that handles errors of a row, a file or a judge must not
    handle it.
    """

    exit_code = 75
    """EX_TEMPFAIL of sysexits.h: try again."""


UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 controls but tab and newline: ESC begins commands to a terminal
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks, which show a line in another order than it has
    "\ud800-\udfff]"  # half of a surrogate pair: no encoding can write it
)


def printable(text: str) -> str:
    """The text with terminal controls and unencodable characters escaped as in ``\\x1b``; for texts of models and files."""
    return UNPRINTABLE.sub(lambda character: character[0].encode("unicode_escape").decode(), text)


def text_of(err: BaseException) -> str:
    """The message of an exception, safe to print and write anywhere, even if its ``__str__`` fails."""
    try:
        return printable(str(err))
    except Exception:
        return "(its text can't be read)"


LONGEST_NAME = 200
"""Characters; what is longer is like no name, and megabytes that somebody sent a server would take seconds to compare."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """' Did you mean 'grpo'?', or an empty string if nothing is close; case and punctuation are ignored."""
    known = list(known)
    if len(name) > LONGEST_NAME:
        return ""
    close = [other for other in known if folded(other) == folded(name)] or difflib.get_close_matches(name, known, n=3)
    if not close:
        by_fold = {folded(other): other for other in known}
        close = [by_fold[fold] for fold in difflib.get_close_matches(folded(name), by_fold, n=3)]
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def folded(name: str) -> str:
    """A name normalized over spelling variants: Dr. GRPO and dr_grpo, REINFORCE++ and reinforce_pp."""
    return "".join(letter for letter in name.lower().replace("+", "p") if letter.isalnum())


def did_you_mean_file(name: str, siblings: Iterable[str]) -> str:
    """The same for the name of a file or a folder: a common extension does not make names similar.

    Args:
        name: The last part of a path that does not exist.
        siblings: The names in the same folder.
    """
    by_stem: dict[str, list[str]] = {}
    for sibling in sorted(siblings):
        by_stem.setdefault(_stem(sibling), []).append(sibling)
    stems = difflib.get_close_matches(_stem(name), list(by_stem), n=2, cutoff=0.7)
    close = [sibling for stem in stems for sibling in by_stem[stem]][:3]
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def _stem(name: str) -> str:
    """A file's name up to its first period, except a leading one."""
    return (name[:1] + name[1:].partition(".")[0]).lower()


def look_up(table: Mapping[str, T], name: str, *, kind: str) -> T:
    """Return ``table[name]``, or raise an error that helps to spell it.

    Raises:
        UnknownNameError: With the closest names and all known ones.
    """
    if name in table:
        return table[name]
    raise UnknownNameError(
        f"No {kind} is called {name!r}.{did_you_mean(name, table)} Known: {', '.join(sorted(table))}."
    )


def kind_of(value: object) -> str:
    """``the text 'folder'``, ``a dict``, ``the class Foo``: what was given, for a message about what was wanted."""
    if isinstance(value, str):
        return f"the text {value!r}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None:
        return "None"
    return with_article(type(value).__name__)


def with_article(name: str) -> str:
    """``an int``, ``a PolicyModel``, ``an SFTConfig``: by how the first letter, or that of an acronym, is said."""
    is_acronym = name[:2].isupper()
    return f"{'an' if name[:1] in ('AEFHILMNORSX' if is_acronym else 'AEIOaeiou') else 'a'} {name}"


def check_type(value: object, kinds: type | tuple[type, ...], *, name: str, expected: str) -> None:
    """Refuse a value of another type at the door.

    Args:
        value: What was given.
        kinds: Types that are taken.
        name: Of the parameter.
        expected: What it takes and how to make it, such as ``a PolicyModel; PolicyModel.from_pretrained(folder) loads one``.

    Raises:
        ConfigError: It has another type.
    """
    if not isinstance(value, kinds):
        raise ConfigError(f"{name} is {kind_of(value)}; expected {expected}.")


def check_number(value: object, *, name: str, expected: str, whole: bool = False) -> None:
    """Refuse what is no number; True and False are none.

    Args:
        value: What was given.
        name: Of the parameter.
        expected: What it takes.
        whole: A fraction is refused, too.

    Raises:
        ConfigError: It has another type.
    """
    kinds: tuple[type, ...] = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ConfigError(f"{name} is {kind_of(value)}; expected {expected}.")


def require(module: str, *, extra: str, needed_for: str) -> ModuleType:
    """Import an optional dependency when it is needed.

    Raises:
        MissingExtraError: When the package itself is absent; the message holds the pip line. A package that is
            installed but broken inside raises its own error.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as err:
        if err.name != module.split(".")[0]:
            raise
        raise MissingExtraError(
            f"{needed_for} needs the package {module!r}. Install it with: {pip_line(extra)}"
        ) from err


OWN_VERSIONS = ("vllm", "deepspeed")
"""Extras that need other versions than those in requirements/dev.txt."""


def pip_line(extra: str) -> str:
    """The command that installs an extra of this library: from its checkout, because `rlhf` on PyPI is another project."""
    checkout = Path(__file__).resolve().parents[2]
    where = str(checkout) if (checkout / "pyproject.toml").is_file() else "PATH-OF-THE-CHECKOUT"
    versions = "" if extra in OWN_VERSIONS else f" -c '{where}/requirements/dev.txt'"
    beside = Path(sys.executable).with_name("pip")  # the environment that lacks it, whether it is activated or not
    pip = str(beside) if beside.is_file() else f"{sys.executable} -m pip"
    return f"{pip} install -e '{where}[{extra}]'{versions}"


def require_all(*modules: str, extra: str, needed_for: str) -> None:
    """``require`` for several modules of one extra.

    Raises:
        MissingExtraError: One of them is not installed.
    """
    for module in modules:
        require(module, extra=extra, needed_for=needed_for)
