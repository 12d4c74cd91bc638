"""Facts about the machine: files of /proc and /sys, environment variables, system calls, the compiler's version. No torch.

A number that is not available is None, never 0.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from rlhf.errors import ConfigError
from rlhf.native.library import compiler, compiler_version

CGROUP = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60
"""cgroup v1 writes a number near 2^63 where nothing limits memory."""
FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "asimd", "sve", "bf16")
"""CPU features that torch's kernels make use of."""


def cpu_name() -> str:
    """As the maker calls it."""
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def cpu_features() -> tuple[str, ...]:
    """Those of FEATURES that the CPU has."""
    line = next((line for line in _lines(Path("/proc/cpuinfo")) if line.startswith(("flags", "Features"))), "")
    flags = set(line.partition(":")[2].split())
    return tuple(name for name in FEATURES if name in flags)


def c_compiler() -> str | None:
    """Its command, and the first line of its version text; None if there is none."""
    command = compiler()
    if command is None:
        return None
    said: list[str] = []
    with contextlib.suppress(ConfigError):  # reported by the trial
        said = compiler_version(command).splitlines()
    return shlex.join(command) + (f" ({said[0]})" if said else "")


def cpu_quota(root: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores' worth of time that the control group allows; None where it limits nothing."""
    quotas = []
    for folder in _groups(root, own, "cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not period:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_bytes(root: Path = CGROUP, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Memory that this process can have: the machine's, or the limit of its control group."""
    limits = [total] if (total := _meminfo().get("MemTotal")) is not None else []
    for folder in _groups(root, own, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _text(folder / name)
            if text.isdigit() and int(text) < UNLIMITED:
                limits.append(int(text))
    return min(limits, default=None)


def available_bytes() -> int | None:
    """Memory that is free now, or soon can be."""
    return _meminfo().get("MemAvailable")


def swap_bytes() -> int | None:
    """Swap space in all."""
    return _meminfo().get("SwapTotal")


def free_bytes(path: Path) -> int:
    """Free space where a path lies, or would lie."""
    return shutil.disk_usage(nearest_folder(path)).free


def nearest_folder(path: Path) -> Path:
    """The path, or the nearest folder above that is there."""
    path = path.expanduser().absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def file_system(path: Path, mounts: Iterable[str] | None = None) -> str | None:
    """Type of the file system of a path: ext4, nfs4, tmpfs ...; None if unknown."""
    where = nearest_folder(path)
    best, kind = -1, None
    for line in _lines(Path("/proc/mounts")) if mounts is None else mounts:
        parts = line.split()
        if len(parts) < 3:
            continue
        point = Path(parts[1].replace("\\040", " "))
        if (where == point or point in where.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), parts[2]
    return kind


def can_lock(folder: Path) -> bool | None:
    """Whether a file there can be locked, which is how a run keeps others out; None where nothing may be written."""
    import fcntl
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(dir=nearest_folder(folder), prefix=".rlhf-doctor-") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            return True
    except OSError:
        return None


def fsync_seconds(folder: Path, *, times: int = 5) -> float | None:
    """Median time to put a small file on disk; None where nothing may be written."""
    import tempfile

    taken = []
    try:
        with tempfile.NamedTemporaryFile(dir=nearest_folder(folder), prefix=".rlhf-doctor-") as file:
            for _ in range(times):
                file.write(b"x" * 4096)
                file.flush()
                began = time.perf_counter()
                os.fsync(file.fileno())
                taken.append(time.perf_counter() - began)
    except OSError:
        return None
    return sorted(taken)[times // 2]


def open_file_limit() -> int | None:
    """How many files this process may have open."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def has_nvidia() -> bool:
    """Whether the kernel shows an NVIDIA GPU to this process; torch may know better."""
    return Path("/dev/nvidiactl").exists()


def may_have_gpu() -> bool:
    """Whether this process may see a GPU of any make, so that asking torch is worth the seconds of importing it.

    CUDA needs ``nvidia*`` (on Jetson ``nvmap``), ROCm ``kfd``, and both need ``dxg`` in WSL.
    """
    return any(True for pattern in ("nvidia*", "nvmap", "kfd", "dxg") for _ in Path("/dev").glob(pattern))


def is_hub_offline(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the hub client may not use the network."""
    return environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def hub_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the hub client keeps what it downloads."""
    if cache := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    base = environment.get("XDG_CACHE_HOME", "~/.cache")
    return Path(environment.get("HF_HOME", f"{base}/huggingface")).expanduser() / "hub"


def _groups(root: Path, own: Path, controller: str) -> list[Path]:
    """Folders of the control groups that this process is in, whose limits all hold; of version 2 and of version 1."""
    folders: list[Path] = []
    for line in _lines(own):
        _, _, rest = line.partition(":")
        names, _, inside = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        base = root / controller if names else root
        folder = base / inside.strip("/")
        # Inside a container the group's own folder is often mounted as the root, and its outer path is not there.
        while True:
            folders.append(folder)
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent
    return folders


def _meminfo() -> dict[str, int]:
    """/proc/meminfo in bytes."""
    memory = {}
    for line in _lines(Path("/proc/meminfo")):
        name, _, rest = line.partition(":")
        number = rest.split()[0] if rest.split() else ""
        if number.isdigit():
            memory[name] = int(number) * 1024
    return memory


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()
