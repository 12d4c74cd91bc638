"""The outside of one program run: a new interpreter that starts ``jail``, a scratch folder, a deadline."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import rlhf
from rlhf.errors import RewardError
from rlhf.rewards.code.scratch import remove_abandoned, scratch_folder

Isolation = Literal["full", "available"]
START_SECONDS = 30.0
"""For the interpreter, in addition to the tests' own time."""
START = "import sys; sys.path.insert(0, sys.argv[1]); from rlhf.rewards.code.jail import main; main()"
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/localtime")
"""Libraries and programs that an interpreter may need."""
PARTS = {
    "user": "giving up root",
    "processes": "namespaces for processes and network",
    "network": "refusing sockets",
    "files": "confining files",
}
"""What ``jail`` isolates, in a user's words."""
WHOLE_LOST = "the sandbox ended before the tests did"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a program may use for each of its tests."""

    cpu_seconds: int = 5
    timeout_seconds: float = 15.0
    """By the clock, so that waiting ends too; longer than the CPU time, or a busy machine would decide scores."""
    memory_mb: int = 512
    """Address space of each process."""
    file_mb: int = 16
    """Per file; of all files together if the scratch folder is a separate file system."""
    processes: int = 1
    """And threads, the program itself included."""
    output_kb: int = 256


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one test ended."""

    end: str
    """``done``, ``failed``, ``timeout``, ``output`` (too much of it), ``lost``, or the signal that killed it."""
    text: str = ""
    """Its output: a value as a literal, or standard output."""


@dataclass(frozen=True, slots=True)
class Run:
    """How a program did."""

    outcomes: list[Outcome]
    missing: Mapping[str, str]
    """Part of the isolation -> why this machine does not give it."""


class Sandbox:
    """Runs programs, each in its own process tree and folder; safe to use from several threads."""

    def __init__(self, limits: Limits, *, isolation: Isolation = "full") -> None:
        """Set the limits; nothing is started yet.

        Args:
            limits: Of each test.
            isolation: ``full`` refuses to run if a part is not available; ``available`` uses what there is.
        """
        self.limits = limits
        self.isolation = isolation

    def check(self) -> None:
        """Run nothing, in order to see whether it would be safe; folders that killed processes left are removed.

        Raises:
            RewardError: The interpreter does not start, or isolation is to be full and is not.
        """
        if not sys.platform.startswith("linux"):
            if self.isolation == "full":
                raise _refusal({"everything": f"{sys.platform} has none of what Linux offers"})
            return
        remove_abandoned()
        run = self.run("", [{"setup": "", "value": "1"}])
        if run.outcomes[0] != Outcome("done", "1") and (not run.missing or self.isolation == "available"):
            raise RewardError(
                f"Even an empty program fails in the sandbox ({run.outcomes[0].end}). Raise memory_mb "
                f"(now {self.limits.memory_mb}), and see that {sys.base_prefix} can be read."
            )
        if run.missing and self.isolation == "full":
            raise _refusal(run.missing)

    def run(self, program: str, tests: Sequence[Mapping[str, str]]) -> Run:
        """Run a program once for each test.

        Args:
            program: Python source.
            tests: As ``Case.asked``.

        Returns:
            One outcome for each test. Whatever the program did, all of its processes are gone.

        Raises:
            RewardError: The sandbox itself could not be started.
        """
        try:
            with scratch_folder() as scratch:
                if os.geteuid() == 0:
                    os.chown(scratch, 65534, 65534)  # the user of the jail
                request = self._request(program, tests, os.path.realpath(scratch))
                said, error, status = _talk(request, self._seconds(len(tests)), scratch)
        except OSError as err:
            raise RewardError(
                f"No sandbox could be started: {err}. Check the temporary folder and free memory."
            ) from err
        lines = [json.loads(line) for line in said.split(b"\n")[:-1]]
        if not lines:
            reason = error.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {status}"]
            raise RewardError(f"The sandbox did not start: {reason[0]}.")
        outcomes = [Outcome(line["end"], line["text"]) for line in lines[1:]]
        return Run(outcomes + [Outcome("lost", WHOLE_LOST)] * (len(tests) - len(outcomes)), lines[0]["missing"])

    def _seconds(self, num_tests: int) -> float:
        return START_SECONDS + num_tests * (self.limits.timeout_seconds + 1)

    def _request(self, program: str, tests: Sequence[Mapping[str, str]], scratch: str) -> bytes:
        path = _import_path()
        readable = [*SYSTEM, *path, *(os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix))]
        limits = asdict(self.limits)
        limits["cpu_seconds"] = math.ceil(self.limits.cpu_seconds)
        request: dict[str, Any] = {
            "program": program,
            "tests": [dict(test) for test in tests],
            "limits": limits,
            "scratch": scratch,
            "path": path,
            "readable": list(dict.fromkeys(readable)),
            "isolate": sys.platform.startswith("linux"),
        }
        return json.dumps(request).encode("ascii")


def _import_path() -> list[str]:
    """Where a program finds the standard library and installed packages, and nothing of ours."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    standard = sysconfig.get_path("stdlib")
    paths = [sysconfig.get_path(name) for name in names] + [f"{standard}/lib-dynload"]
    return list(dict.fromkeys(os.path.realpath(path) for path in paths))


def _talk(request: bytes, seconds: float, scratch: str) -> tuple[bytes, bytes, int]:
    """Standard output, standard error and exit status of the jail; its whole process group is gone afterwards."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": scratch,
        "TMPDIR": scratch,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # the same order of a set in every run: a reward that can be repeated
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-s", "-c", START, str(Path(rlhf.__file__).parents[1])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        cwd="/",
        env=environment,
    )
    try:
        said, error = process.communicate(request, timeout=seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        said, error = process.communicate()
    finally:
        _kill(process)
    return said, error, process.returncode


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _refusal(missing: Mapping[str, str]) -> RewardError:
    reasons = "; ".join(f"{PARTS.get(name, name)}: {why}" for name, why in missing.items())
    return RewardError(
        f"Programs of a policy are run only where they can be isolated, and this machine does not allow all of it ({reasons}). "
        "Use a machine or container that does, or set `isolation: available` to run them with what there is."
    )
