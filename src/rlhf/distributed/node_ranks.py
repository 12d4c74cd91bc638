"""The ranks of one node: an actor starts torch's launcher there as a process of its own, hands on what it prints, and ends it.

    python -m rlhf.distributed.node_ranks NODE NODES ADDRESS PORT PROCESSES ARGUMENTS...

is that process. It lives as long as its standard input is open, so that it ends with its actor, however that ends. ``NodeRanks`` is what
the actor holds; ``rlhf.distributed.ray_ranks`` asks it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from rlhf.distributed.torchrun import NodePlace, run_as_ranks
from rlhf.errors import ConfigError, RLHFError, text_of
from rlhf.files import sha256
from rlhf.version import __version__

SEEN_SECONDS = 5.0
"""For what another machine wrote to be seen on this one."""
LATE_OUTPUT_SECONDS = 2.0
"""For the last lines, of a process that ended but whose own children keep its output open."""


class NodeRanks:
    """What the actor of a node holds.

    Args:
        folder: Where the command was typed; the ranks start there.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []
        self._printed: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def started(self) -> dict[str, object]:
        """The version here, and a port that is free."""
        with socket.socket() as free:
            free.bind(("", 0))
            return {"version": __version__, "port": free.getsockname()[1]}

    def check_files(self, files: Mapping[str, str]) -> None:
        """Refuse where a file or the working folder is not seen, or a file is another one.

        Args:
            files: Absolute path -> sha256 of its content.

        Raises:
            ConfigError: Naming the file or the folder.
        """
        if not Path(self.folder).is_dir():
            raise ConfigError(f"{self.folder}, where the command was typed, is no folder there")
        deadline = time.monotonic() + SEEN_SECONDS
        for path, wanted in files.items():
            while (content := _hash_of(path)) != wanted:
                if time.monotonic() > deadline:
                    how = "is not there" if content is None else "has another content there"
                    raise ConfigError(f"{path} {how}")
                time.sleep(0.1)

    def begin(
        self, place: Sequence[str], processes: int, arguments: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        """Start the ranks.

        Args:
            place: The fields of a ``NodePlace``, as text.
            processes: Ranks on this node.
            arguments: Of the command line.
            variables: For the ranks' environment, over this process's own.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rlhf.distributed.node_ranks", *place, str(processes), *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=self.folder, env={**os.environ, **variables}, start_new_session=True,
        )  # fmt: skip
        for name in ("stdout", "stderr"):
            reader = threading.Thread(target=self._read, args=(name, getattr(self._process, name)), daemon=True)
            reader.start()
            self._readers.append(reader)

    def _read(self, name: str, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                self._printed.put((name, line.decode("utf-8", errors="backslashreplace")))

    def output(self, seconds: float) -> tuple[list[tuple[str, str]], int | None]:
        """What was printed since, as (stdout or stderr, line), and the exit code once the ranks ended; waits so long for a line."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            self.stop(at_once=False)
            for reader in self._readers:
                reader.join(LATE_OUTPUT_SECONDS)
        lines: list[tuple[str, str]] = []
        with contextlib.suppress(queue.Empty):
            lines.append(self._printed.get(timeout=seconds if code is None else 0))
            while True:
                lines.append(self._printed.get_nowait())
        return lines, code

    def stop(self, at_once: bool) -> None:
        """Ask the ranks to end after their step with a checkpoint, or kill them."""
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        if at_once:
            _kill_children_of(self._process.pid)


def _hash_of(path: str) -> str | None:
    try:
        return sha256(Path(path))
    except OSError:
        return None


def _kill_children_of(process: int) -> None:
    """Kill what a process started, with everything of their process groups."""
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(child), signal.SIGKILL)


def _end_with_starter() -> None:
    """Pass the end of standard input on, as the signal that ends ranks."""
    while os.read(0, 1):  # not sys.stdin, whose lock this thread would hold while Python ends
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main(arguments: Sequence[str]) -> int:
    """Run the ranks of this node; their exit code."""
    node, nodes, address, port, processes, *rest = arguments
    threading.Thread(target=_end_with_starter, daemon=True).start()
    try:
        return run_as_ranks(int(processes), rest, place=NodePlace(int(node), int(nodes), address, int(port)))
    except RLHFError as err:
        print(f"error: {text_of(err)}", file=sys.stderr)
        return err.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
