"""What this machine can do: matrix products in float32 and bfloat16, copies. Measured in the same run as the rows, in processor seconds.

python -m benchmarks.peer.machine 1        as many threads; prints JSON
"""

from __future__ import annotations

import contextlib
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SHAPES = {
    "2048 x 2048 x 2048": (2048, 2048, 2048),
    "4096 x 256 x 32,000": (4096, 256, 32_000),
    "512 x 768 x 50,000": (512, 768, 50_000),
}
"""Rows, inner, columns: a large square, and the heads of models A and B. The best of them is the peak that shares are taken of."""
REPEATS = 5
COPIED_MIB = 256
PACKAGES = (
    "rlhf", "torch", "transformers", "trl", "accelerate", "peft", "datasets", "numpy", "liger-kernel", "kernels", "flash-attn", "vllm",
)  # fmt: skip


def seconds_of(work: Callable[[], object], *, repeats: int = REPEATS) -> float:
    """Processor seconds of one call: the fastest of several, after one that is not counted. A peak is what is possible."""
    work()
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


def measure(threads: int) -> dict[str, Any]:
    """Floating-point operations a processor second by type and shape, their best, and bytes copied a second."""
    import torch

    torch.set_num_threads(threads)
    by_shape: dict[str, dict[str, float]] = {"fp32": {}, "bf16": {}}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        for shape, (rows, inner, columns) in SHAPES.items():
            left, right = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
            out = torch.empty(rows, columns, dtype=dtype)
            seconds = seconds_of(lambda a=left, b=right, c=out: torch.mm(a, b, out=c))
            by_shape[name][shape] = 2.0 * rows * inner * columns / seconds
    source = torch.ones(COPIED_MIB << 18)
    target = torch.zeros_like(source)
    size = COPIED_MIB << 20
    return {
        "threads": threads,
        "by_shape": by_shape,
        "peak": {name: max(shapes.values()) for name, shapes in by_shape.items()},
        "copy": size / seconds_of(lambda: target.copy_(source)),
        "copy_into_fresh": size / seconds_of(lambda: source.clone()),
    }


def describe() -> dict[str, str]:
    """Name of the processor, memory, system."""
    processor = memory = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            memory = f"{int(line.split()[1]) / (1 << 20):.0f} GiB"
    return {
        "processor": processor,
        "memory": memory,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def card() -> dict[str, str] | None:
    """The GPU that torch would use, with its driver; None where it finds none."""
    import torch

    if not torch.cuda.is_available():
        return None
    about = torch.cuda.get_device_properties(0)
    driver = "unknown"
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
        driver = said[0] if said else driver
    memory = f"{about.total_memory / 2**30:.0f} GiB"
    return {"name": about.name, "memory": memory, "driver": driver, "cuda": str(torch.version.cuda)}


def versions() -> dict[str, str]:
    """Of the packages that matter, in this environment."""
    by_package = {}
    for package in PACKAGES:
        try:
            by_package[package] = version(package)
        except PackageNotFoundError:
            continue
    return by_package


def middle(peaks: list[dict[str, Any]]) -> dict[str, float]:
    """The peak of each type over several measurements: the median, so that one that was disturbed does not count."""
    return {name: statistics.median(p["peak"][name] for p in peaks) for name in ("fp32", "bf16")}


if __name__ == "__main__":
    print(json.dumps({**measure(int(sys.argv[1])), "machine": describe(), "versions": versions()}))
