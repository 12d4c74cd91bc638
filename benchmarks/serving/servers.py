"""The servers: how each is started at its fastest settings on one core, and how much memory its processes hold."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

NAME = "m"
START_SECONDS = 300.0


@dataclass(frozen=True)
class Server:
    """One way to serve the model."""

    name: str
    command: Callable[[Path, Path, Path, int], list[str]]
    """Of the folder with the virtual environments, the model's folder, its GGUF file and the port."""
    environment: str | None = None
    """Which virtual environment; None for this one."""
    variables: Mapping[str, str] = field(default_factory=dict)
    serves_folder_name: bool = False
    """Requests name the model by its folder."""


def _rlhf(products: str) -> Callable[[Path, Path, Path, int], list[str]]:
    return lambda bench, folder, gguf, port: [
        sys.executable, "-m", "rlhf", "serve", str(folder), "--name", NAME, "--port", str(port), f"products={products}",
    ]  # fmt: skip


def _transformers(*options: str) -> Callable[[Path, Path, Path, int], list[str]]:
    return lambda bench, folder, gguf, port: [
        str(bench / "serving-transformers/bin/transformers"), "serve", str(folder), "--device", "cpu", "--port", str(port), *options,
    ]  # fmt: skip


SERVERS = (
    Server("rlhf, bfloat16", _rlhf("bfloat16")),
    Server("rlhf, float32", _rlhf("float32")),
    Server(
        "over vLLM: rlhf serve --engine vllm",
        lambda bench, folder, gguf, port: [
            *_rlhf("bfloat16")(bench, folder, gguf, port), "--engine", "vllm", "context_length=2048",
            f"engine.python={bench / 'serving-vllm/bin/python'}",
        ],
        "serving-vllm",
    ),
    Server("transformers", _transformers(), "serving-transformers", serves_folder_name=True),
    Server(
        "transformers, continuous batching",
        _transformers("--continuous-batching", "--attn-implementation", "sdpa"),
        "serving-transformers",
        serves_folder_name=True,
    ),
    Server(
        "vLLM (CPU build)",
        lambda bench, folder, gguf, port: [
            str(bench / "serving-vllm/bin/python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder),
            "--served-model-name", NAME, "--port", str(port), "--enforce-eager", "--dtype", "bfloat16", "--max-model-len", "2048",
            "--enable-prefix-caching",
        ],
        "serving-vllm",
        {
            "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING",
        },
    ),
    Server(
        "llama_cpp.server, bfloat16",
        lambda bench, folder, gguf, port: [
            str(bench / "serving-llama/bin/python"), "-m", "llama_cpp.server", "--model", str(gguf), "--model_alias", NAME, "--port",
            str(port), "--interrupt_requests", "false", "--use_mmap", "false", "--n_threads", "1", "--n_threads_batch", "1", "--n_ctx",
            "2048",
        ],
        "serving-llama",
    ),
)  # fmt: skip


@dataclass
class Running:
    """A server that answers."""

    url: str
    model: str
    started_seconds: float
    peak_bytes: int = 0
    """Of the resident pages of all its processes, those that several share counted once (PSS); but all of the largest process's, whatever
    else on this machine has the same libraries loaded."""


@contextmanager
def running(server: Server, bench: Path, folder: Path, gguf: Path, *, core: int, log: Path) -> Iterator[Running]:
    """Start it on one core, and end it.

    Raises:
        SystemExit: It ends, or does not answer in time; its output is in ``log``.
    """
    port = _free_port()
    command = ["taskset", "-c", str(core), *server.command(bench, folder, gguf, port)]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    begin = time.monotonic()
    variables["HF_HUB_CACHE"] = str(log.parent / "hub")  # transformers' server lists a folder that has to be there
    Path(variables["HF_HUB_CACHE"]).mkdir(exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env={**variables, **server.variables}, stdout=output, stderr=output, start_new_session=True
        )
    seen = Running(f"http://127.0.0.1:{port}", str(folder) if server.serves_folder_name else NAME, 0.0)
    stop = threading.Event()
    try:
        while not _answers(seen.url):
            if process.poll() is not None or time.monotonic() - begin > START_SECONDS:
                raise SystemExit(f"{server.name} does not answer; its output is in {log}")
            time.sleep(0.2)
        seen.started_seconds = time.monotonic() - begin
        watcher = threading.Thread(target=_watch, args=(process.pid, seen, stop), daemon=True)
        watcher.start()
        yield seen
        stop.set()
        watcher.join()
    finally:
        stop.set()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _watch(pid: int, seen: Running, stop: threading.Event) -> None:
    while not stop.wait(1.0):
        with suppress(psutil.Error):
            family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            held = [each.memory_full_info() for each in family]
            seen.peak_bytes = max(seen.peak_bytes, sum(one.pss for one in held), *(one.rss for one in held))


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
