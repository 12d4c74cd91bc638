"""A C file of this package as a loaded library, compiled for this processor on first use."""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rlhf.errors import ConfigError
from rlhf.files import user_cache, write_aside

COMPILERS = ("cc", "gcc", "clang")
"""Tried in this order where $CC names none."""
FLAGS = (
    "-O3",
    "-march=native",
    "-fPIC",
    "-shared",
    # Sums may be added up in any order, which is what lets a compiler take many numbers at once; NaN and infinity stay what they are.
    "-fno-math-errno",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-freciprocal-math",
    # A function that another library happens to name so is not taken for one of ours.
    *(("-Wl,-Bsymbolic",) if sys.platform == "linux" else ()),
)
TIMEOUT_SECONDS, VERSION_SECONDS = 120.0, 10.0
KEYS = "compiled and engine.compiled"
"""Of recipes, that ask for it."""


def compiler() -> list[str] | None:
    """A C compiler: its path, and the arguments after it in $CC; None if there is none."""
    asked = os.environ.get("CC")
    try:
        choices = [shlex.split(asked)] if asked else [[name] for name in COMPILERS]
    except ValueError:  # a quotation that does not end
        return None
    return next(([path, *words[1:]] for words in choices if words and (path := shutil.which(words[0]))), None)


def why_no_compiler() -> str:
    """Which compilers were tried if ``compiler`` found none, and what to do."""
    if asked := os.environ.get("CC"):
        try:
            fault = f"{shlex.split(asked)[0]!r} is not an executable program"
        except ValueError:
            fault = "a quotation mark in it is not closed"
        except IndexError:
            fault = "it names nothing"
        return f"$CC is {asked!r}: {fault}; correct it, or unset it to use one of {', '.join(COMPILERS)}"
    return f"none of {', '.join(COMPILERS)} is on the PATH; install one (Debian and Ubuntu: apt-get install gcc), or name one in $CC"


def check_compiler() -> list[str]:
    """A C compiler, as ``compiler`` gives it.

    Raises:
        ConfigError: There is none.
    """
    command = compiler()
    if command is None:
        raise ConfigError(f"{KEYS} need a C compiler, but {why_no_compiler()}; or leave them out.")
    return command


@functools.cache
def load(name: str, **macros: int) -> ctypes.CDLL:
    """Compile, where that was not done before, and load. The library is kept in ``native`` of the user's cache.

    Args:
        name: Of a file in this folder, without its extension.
        macros: What ``-D`` defines.

    Raises:
        ConfigError: There is no compiler, or it failed.
        StorageError: The library can't be written.
    """
    source = Path(__file__).with_name(f"{name}.c")
    command = check_compiler()
    flags = [*_flags(command), *(f"-D{key}={value}" for key, value in sorted(macros.items()))]
    sources = [*sorted(source.parent.glob("*.h")), source]
    hashed = "\n".join([*command, *flags, toolchain(), *(file.read_text(encoding="utf-8") for file in sources)])
    target = _folder() / f"{name}-{hashlib.sha256(hashed.encode()).hexdigest()[:16]}.so"
    if not target.is_file():
        with write_aside(target) as aside:
            _compile(command, [*flags, str(source), "-o", str(aside), "-lm"])
    try:
        return ctypes.CDLL(str(target))
    except OSError as err:
        raise ConfigError(
            f"{target} was compiled and can't be loaded ({err}); delete it, name another folder in $RLHF_CACHE, or leave "
            f"{KEYS} out."
        ) from err


def _flags(command: list[str]) -> list[str]:
    """``FLAGS``, for this processor unless $CC contains a ``-march`` or ``-mcpu``."""
    chosen = any(word.startswith(("-march", "-mcpu")) for word in command)
    return [flag for flag in FLAGS if not (chosen and flag.startswith("-march"))]


def toolchain() -> str:
    """What determines, in addition to the sources, the bits that a library computes: compiler, flags and processor.

    Raises:
        ConfigError: There is no compiler.
    """
    command = check_compiler()
    return "\n".join([*command, *_flags(command), compiler_version(command), _processor()])


def compiler_version(command: list[str]) -> str:
    """The version text of a compiler.

    Args:
        found: As ``compiler`` gives it.

    Raises:
        ConfigError: It can't be run, or does not end.
    """
    return _run(command, ["--version"], seconds=VERSION_SECONDS).stdout


def _compile(command: list[str], more: list[str]) -> None:
    done = _run(command, more, seconds=TIMEOUT_SECONDS)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ConfigError(
            f"The C compiler {shlex.join(command)} failed on {more[-4]}: {said[0] if said else f'exit status {done.returncode}'}; leave "
            f"{KEYS} out, or name another compiler in $CC."
        )


def _run(command: list[str], more: list[str], *, seconds: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [*command, *more], capture_output=True, text=True, errors="replace", timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        why = f"timed out after {seconds:g} s" if isinstance(err, subprocess.TimeoutExpired) else err
        raise ConfigError(
            f"The C compiler {shlex.join(command)} could not be run ({why}); leave {KEYS} out, or name another in $CC."
        ) from err


def _folder() -> Path:
    return user_cache("native") or _own_folder()


@functools.cache
def _own_folder() -> Path:
    """One that is gone with this process."""
    folder = Path(tempfile.mkdtemp(prefix="rlhf-native-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _processor() -> str:
    """What this processor can do: a home folder may be shared by machines that differ in it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
