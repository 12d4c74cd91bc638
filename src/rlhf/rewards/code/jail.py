"""The code that the sandbox's interpreter runs. Standard library only.

The launcher drops root, enters new namespaces and starts the supervisor, which is the first process of a PID
namespace: when it ends, the kernel kills whatever a program has started. For each test the supervisor forks a process,
mounts an empty folder for it, and waits; that process drops its remaining privileges, runs the program, and then the test. The
supervisor itself never runs a line of a program.

Request on standard input, as JSON: ``{"program", "tests", "limits", "scratch", "readable", "isolate"}``. On standard output
a line of JSON with what is isolated, and then one for each test: ``{"end", "text"}``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from rlhf.rewards.code import kernel

NOBODY = 65534
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
DEEPEST = 50
"""Lists within lists of a value that is sent back."""
_BIND, _MOVE, _PRIVATE = 4096, 8192, 1 << 18 | 16384
_NO_SUID_NO_DEVICES = 2 | 4


def main() -> None:
    """Serve one request."""
    request = json.loads(sys.stdin.buffer.read())
    kernel_parts = {"user": "", "processes": "", "network": "", "files": ""}
    if request["isolate"]:
        kernel_parts = _enter(request)
        with contextlib.suppress(OSError):
            kernel.die_with_parent()  # after the last change of user, which forgets it
    supervisor = os.fork()
    if supervisor:
        _, status = os.waitpid(supervisor, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 255)
    if request["isolate"]:
        kernel.die_with_parent()
        kernel.set_dumpable(False)
    _say({"missing": {name: why for name, why in kernel_parts.items() if why}})
    for test in request["tests"]:
        _say(_outcome(request, test, kernel_parts))
    os._exit(0)


def _say(message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(1, data) :]


def _enter(request: Mapping[str, Any]) -> dict[str, str]:
    """Give up root and enter namespaces; what is missing afterwards, and why: the empty text where nothing is."""
    missing = {"user": "", "processes": "", "network": "", "files": ""}
    missing["network"] = _tried_in_a_child(kernel.refuse_system_calls)  # the first child after `unshare` must live on
    if os.geteuid() == 0:
        missing["user"] = _tried(lambda: _leave_root(request["readable"]))
    user, group = os.geteuid(), os.getegid()

    def namespaces() -> None:
        kernel.unshare(kernel.NEW_USER | kernel.NEW_PIDS | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_MOUNTS)
        for name, text in (("setgroups", "deny"), ("gid_map", f"{group} {group} 1"), ("uid_map", f"{user} {user} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)

    missing["processes"] = _tried(namespaces)
    if kernel.landlock_version() < kernel.LANDLOCK_NEEDED:
        missing["files"] = f"the kernel has no Landlock of version {kernel.LANDLOCK_NEEDED} or later"
    return missing


def _leave_root(needed: list[str]) -> None:
    """Switch to the user ``nobody``, and make the interpreter's folders reachable if they are in root's private home."""
    closed = {path: folder for path in needed if (folder := _closed_folder(path))}
    if closed:
        kernel.unshare(kernel.NEW_MOUNTS)
        kernel.mount("none", "/", None, _PRIVATE)
        for folder in dict.fromkeys(closed.values()):
            _show_only(folder, [path for path, at in closed.items() if at == folder])
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    kernel.set_dumpable(True)  # or /proc/self would still be root's, and no namespace could be set up


def _closed_folder(path: str) -> str:
    """The first folder on the way to a path that others may not enter."""
    folder = ""
    for part in path.split("/")[1:]:
        folder += f"/{part}"
        if os.path.isdir(folder) and not os.stat(folder).st_mode & 1:
            return folder
    return ""


def _show_only(folder: str, paths: list[str]) -> None:
    """Let a folder seem to hold nothing but these paths, as they are."""
    places = [(path, os.open(path, os.O_PATH)) for path in paths if os.path.isdir(path)]
    kernel.mount("tmpfs", folder, "tmpfs", 0, "mode=755,size=1m")
    for path, place in places:
        os.makedirs(path, exist_ok=True)
        kernel.mount(f"/proc/self/fd/{place}", path, None, _BIND | 16384)
        os.close(place)


def _outcome(request: Mapping[str, Any], test: Mapping[str, Any], missing: Mapping[str, str]) -> dict[str, str]:
    """Run one test in a separate process; return how it ended and its output."""
    limits, scratch = request["limits"], request["scratch"]
    mounted = False
    if request["isolate"] and not missing["processes"]:
        options = f"size={limits['file_mb']}m,nr_inodes=1000,mode=700"
        mounted = not _tried(lambda: kernel.mount("tmpfs", scratch, "tmpfs", _NO_SUID_NO_DEVICES, options))
    source, sink = os.pipe()
    process = os.fork()
    if process == 0:
        _child(request, test, missing, sink)
    os.close(sink)
    data, end = _read(source, process, limits)
    os.close(source)
    if not missing["processes"] and request["isolate"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all of the namespace but us
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
    status = _collected(process)
    if mounted:
        kernel.unmount(scratch)
    if not end:
        end = "done" if status == 0 else "failed" if status > 0 else _signal_name(-status)
    return {"end": end, "text": data.decode("utf-8", "replace")}


def _read(source: int, process: int, limits: Mapping[str, Any]) -> tuple[bytes, str]:
    """What a test says until it ends, says too much or takes too long; and the last two by name."""
    data, deadline, most = bytearray(), time.monotonic() + limits["timeout_seconds"], limits["output_kb"] * 1024
    while (left := deadline - time.monotonic()) > 0:
        ready, _, _ = select.select([source], [], [], min(left, 0.05))
        if ready:
            piece = os.read(source, 65536)
            if not piece:
                break
            data += piece
            if len(data) > most:
                return bytes(data[:most]), "output"
        elif os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return bytes(data), ""  # a child process holds the pipe open
    else:
        return bytes(data), "timeout"
    while deadline > time.monotonic():  # it closed the pipe; give it the time to end
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return bytes(data), ""
        time.sleep(0.001)
    return bytes(data), "timeout"


def _collected(process: int) -> int:
    """The exit status of a test; everything else that has ended is collected too."""
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return status


def _child(request: Mapping[str, Any], test: Mapping[str, Any], missing: Mapping[str, str], sink: int) -> NoReturn:
    """The process of one test; never returns."""
    status = 1
    try:
        _confine(request, missing, sink, test.get("stdin"))
        status = _run(request["program"], test)
    finally:
        os._exit(status)


def _confine(request: Mapping[str, Any], missing: Mapping[str, str], sink: int, stdin: str | None) -> None:
    """Give up everything but the scratch folder, the pipe and the standard library."""
    limits = request["limits"]
    os.setsid()
    os.chdir(request["scratch"])
    os.dup2(sink, 3)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing if stdin is None else 3, 1)
    os.dup2(nothing, 2)
    os.closerange(4, 1 << 16)
    if stdin is not None:
        _give_input(stdin)
    sys.stdin = io.TextIOWrapper(os.fdopen(0, "rb", closefd=False), encoding="utf-8", errors="replace")
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), encoding="utf-8", errors="replace")
    if stdin is not None:
        os.close(3)
    sys.path[:] = request["path"]
    sys.argv[:] = ["program.py"]
    _limit(limits)
    if not request["isolate"]:
        return
    if not missing["processes"] or not missing["user"]:
        kernel.drop_capabilities()
    if not missing["files"]:
        kernel.confine_files(request["readable"], request["scratch"], DEVICES)
    if not missing["network"]:
        kernel.refuse_system_calls()


def _give_input(text: str) -> None:
    """Standard input from a file without a name, for a pipe would hold 64 KiB only."""
    file = os.open("input", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink("input")
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(file, data) :]
    os.lseek(file, 0, os.SEEK_SET)
    os.dup2(file, 0)
    os.close(file)


def _limit(limits: Mapping[str, Any]) -> None:
    mib = 1 << 20
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, limits["cpu_seconds"]),
        (resource.RLIMIT_AS, limits["memory_mb"] * mib),
        (resource.RLIMIT_FSIZE, limits["file_mb"] * mib),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, limits["processes"] + 1),  # the supervisor counts too
    ):
        resource.setrlimit(kind, (value, value))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error that can be reported instead of a signal


def _run(program: str, test: Mapping[str, Any]) -> int:
    """Run the program, then the test; the exit status."""
    on_input = "stdin" in test
    names: dict[str, Any] = {"__name__": "__main__" if on_input else "solution", "__builtins__": __builtins__}
    try:
        exec(compile(program, "program.py", "exec"), names)
        if not on_input:
            exec(compile(test["setup"], "tests", "exec"), names)
            value = eval(compile(test["value"], "tests", "eval"), names) if "value" in test else None
            _send(shown(value, DEEPEST))
    except SystemExit as err:
        sys.stdout.flush()
        # A test of input and output may end so; a call must give its value.
        return 0 if on_input and err.code in (None, 0) else 1
    except BaseException as err:
        if not on_input:
            _send("!" + type(err).__name__)
        return 1
    sys.stdout.flush()
    return 0


def _send(text: str) -> None:
    data = text.encode("utf-8", "replace")
    while data:
        data = data[os.write(3, data) :]


def shown(value: Any, depth: int) -> str:
    """Plain data as a Python literal, which the other side reads without running anything.

    Raises:
        TypeError: It is not plain data: then it equals no literal.
    """
    if depth == 0:
        raise TypeError("too deep")
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value).replace("inf", "1e999")
    if isinstance(value, str):
        return str.__repr__(value)
    if isinstance(value, bytes):
        return bytes.__repr__(value)
    if isinstance(value, dict):
        pairs = (f"{shown(key, depth - 1)}: {shown(item, depth - 1)}" for key, item in dict.items(value))
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        items = [shown(item, depth - 1) for item in value]
        if isinstance(value, list):
            return f"[{', '.join(items)}]"
        if isinstance(value, tuple):
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        return "{" + ", ".join(items) + "}" if items else "set()"
    raise TypeError(f"{type(value).__name__} is not plain data")


def _tried(action: Any) -> str:
    """Why it can't be done; the empty text where it was."""
    try:
        action()
    except OSError as err:
        return err.strerror or str(err)
    return ""


def _tried_in_a_child(action: Any) -> str:
    """The same for what can't be undone: a child of ours tries it and goes."""
    source, sink = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(sink, _tried(action).encode()[:400])
        os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as pipe:
        said = pipe.read()
    os.waitpid(process, 0)
    return said.decode("utf-8", "replace")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
