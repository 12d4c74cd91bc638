"""Levels and advice for measured numbers. Nothing here accesses the machine: measurements are arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rlhf.formatting import bytes_text

Verdict = Literal["ok", "slow", "unsafe"]

GIB = 1 << 30
MIB = 1 << 20
LEAST_DISK = 2 * GIB
"""Below this a run of the smallest real models dies while it saves."""
COMFORTABLE_DISK = 20 * GIB
LEAST_MEMORY = 2 * GIB
"""torch, transformers and the embedded model take about one."""
COMFORTABLE_MEMORY = 8 * GIB
SLOW_FSYNC_SECONDS = 0.05
"""A checkpoint is synced file by file, a dozen times."""
LEAST_OPEN_FILES = 256
ENOUGH_OPEN_FILES = 1024
LEAST_SHM = GIB
"""vllm and ray pass tensors through /dev/shm; docker gives 64 MB by default."""
NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "9p", "lustre", "afs", "ceph")
SCORING_TOLERANCE = 1e-4
"""Nats; as ``rlhf.models.paths.TOLERANCE`` for float32."""
HALF_TOLERANCE = 4e-1
"""Nats. Two kernels that are both right round independently: each was up to 0.3 from float32 on the embedded model."""
SLOW_GFLOPS = 5.0
"""For one thread in float32; a core of the last ten years gives 20 to 150."""
SLOW_WORKER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination."""

    name: str
    value: str
    level: Verdict = "ok"
    advice: str = ""
    """What to do; empty where nothing is to be done."""

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def judge_python(version: tuple[int, int], *, least: tuple[int, int]) -> Finding:
    """The interpreter."""
    text = ".".join(map(str, version))
    if version < least:
        return Finding(
            "python", text, "unsafe", f"rlhf needs at least {'.'.join(map(str, least))}; make a new environment."
        )
    return Finding("python", text)


def judge_cpu(name: str, features: Sequence[str]) -> Finding:
    """The processor."""
    value = f"{name} ({', '.join(features) or 'no vector units that torch makes use of'})"
    if not {"avx2", "asimd"} & set(features):
        return Finding(
            "cpu", value, "slow", "torch's kernels need AVX2 or NEON; training here takes many times as long."
        )
    return Finding("cpu", value)


def judge_compiler(name: str | None, *, why: str = "", asked: bool = False) -> Finding:
    """What `compiled` and `engine.compiled` are made with.

    Args:
        name: Its path and what it says of itself, None where there is none.
        why: There is none, and what to do.
        asked: Whether $CC names one.
    """
    if name is None:
        said = "none; `compiled` and `engine.compiled` need one"
        return Finding("c compiler", said, "slow" if asked else "ok", f"{why[:1].upper()}{why[1:]}.")
    return Finding("c compiler", name)


def judge_threads(*, threads: int, cores: int, quota: float | None, omp: str | None) -> Finding:
    """torch's threads against the cores they can have: more of them wait for each other.

    Args:
        threads: That torch uses.
        cores: That this process may run on.
        quota: Cores' worth of time that the container gets; None for no limit.
        omp: The variable OMP_NUM_THREADS, where it is set.
    """
    real = min(cores, quota) if quota is not None else cores
    limited = f", a quota of {quota:g} cores" if quota is not None else ""
    value = (
        f"{threads} of torch on {cores} usable cores{limited}, OMP_NUM_THREADS {omp if omp is not None else 'not set'}"
    )
    wanted = max(1, int(real))
    if threads > wanted:
        return Finding(
            "threads",
            value,
            "slow",
            f"{threads} threads share {real:g} cores and wait for each other; set OMP_NUM_THREADS={wanted}, or `threads: {wanted}` "
            "in the recipe.",
        )
    if threads < wanted and wanted > 1:
        return Finding(
            "threads",
            value,
            "ok",
            f"{wanted - threads} of {wanted} cores stay idle; that is best for tiny models, not for large ones.",
        )
    return Finding("threads", value)


def judge_memory(*, limit: int | None, available: int | None) -> Finding:
    """Main memory."""
    if limit is None:
        return Finding("memory", "unknown")
    free = min(available, limit) if available is not None else limit
    value = f"{bytes_text(limit)}, {bytes_text(free)} free"
    if free < LEAST_MEMORY:
        advice = "The system will kill a run that needs more; end other programs, or raise the container's limit."
        return Finding("memory", value, "unsafe", advice)
    if free < COMFORTABLE_MEMORY:
        return Finding(
            "memory", value, "ok", "Enough for the embedded model; a model of 1B parameters takes 16 GB to train."
        )
    return Finding("memory", value)


def judge_swap(number: int | None) -> Finding:
    """Swap space. None at all is how most training machines are set up."""
    return Finding("swap", "unknown" if number is None else bytes_text(number) if number else "none")


def judge_disk(name: str, *, free: int, file_system: str | None, writable: bool, lockable: bool | None) -> Finding:
    """A folder that a run would write to.

    Args:
        name: How the finding is called.
        free: Bytes.
        file_system: Its type, where that is known.
        writable: By this process.
        lockable: Whether files there can be locked; None where nothing may be written.
    """
    value = f"{bytes_text(free)} free{f' on {file_system}' if file_system else ''}"
    if not writable:
        return Finding(
            name, f"{value}, not writable", "unsafe", "A run can't save there; set output_dir to another folder."
        )
    if free < LEAST_DISK:
        return Finding(
            name, value, "unsafe", f"A run stops when it can't save; have at least {bytes_text(LEAST_DISK)} free."
        )
    if lockable is False:
        return Finding(
            name,
            f"{value}, no file locks",
            "unsafe",
            "File locks have no effect here, so two runs could use one folder; put output_dir on a local disk.",
        )
    if file_system is not None and file_system.startswith(NETWORK_FILE_SYSTEMS):
        return Finding(
            name, value, "slow", "A network file system: put output_dir on a local disk, copy results afterwards."
        )
    if free < COMFORTABLE_DISK:
        return Finding(name, value, "ok", "Enough for small models; a checkpoint of 1B parameters takes 12 GB.")
    return Finding(name, value)


def judge_fsync(seconds: float | None) -> Finding:
    """How long the disk takes to promise."""
    if seconds is None:
        return Finding("fsync", "not measured (nothing may be written there)")
    value = f"{seconds * 1000:.1f} ms"
    if seconds > SLOW_FSYNC_SECONDS:
        return Finding(
            "fsync", value, "slow", "Every checkpoint waits for it many times; save less often, or on another disk."
        )
    return Finding("fsync", value)


def judge_shared_memory(total: int | None) -> Finding:
    """/dev/shm."""
    if total is None:
        return Finding("/dev/shm", "none")
    if total < LEAST_SHM:
        return Finding(
            "/dev/shm", bytes_text(total), "slow", "Too small for vllm and ray; start the container with --shm-size=8g."
        )
    return Finding("/dev/shm", bytes_text(total))


def judge_open_files(limit: int | None) -> Finding:
    """How many files a process may have open."""
    if limit is None or limit < 0:
        return Finding("open files", "no limit" if limit is not None else "unknown")
    if limit < LEAST_OPEN_FILES:
        advice = "Sharded models and workers run out of it; raise it with `ulimit -n 4096`."
        return Finding("open files", f"{limit:,}", "unsafe", advice)
    if limit < ENOUGH_OPEN_FILES:
        return Finding("open files", f"{limit:,}", "ok", "Raise it with `ulimit -n 4096` before large sharded models.")
    return Finding("open files", f"{limit:,}")


def judge_packages(wrong: Mapping[str, str], other: Mapping[str, str], *, count: int) -> Finding:
    """Installed versions against those that are needed and those that were tested.

    Args:
        wrong: Package to what is wrong with its version: outside what pyproject.toml allows, or absent.
        other: Package to how it differs from the version that the tests ran with.
        count: Packages that were compared.
    """
    if wrong:
        text = "; ".join(f"{name} {what}" for name, what in wrong.items())
        return Finding(
            "packages", text, "unsafe", "Results may be wrong or not come at all: pip install --upgrade rlhf."
        )
    if other:
        text = "; ".join(f"{name} {what}" for name, what in other.items())
        return Finding(
            "packages", f"{count} fit; not as tested: {text}", "ok",
            "Bits may differ from published results: pip install -r requirements/core.txt.",
        )  # fmt: skip
    return Finding("packages", f"{count} as needed and tested")


def judge_extras(present: Sequence[str], absent: Sequence[str]) -> Finding:
    """Optional packages."""
    value = f"{', '.join(present) or 'none'} installed" + (f"; not installed: {', '.join(absent)}" if absent else "")
    return Finding("extras", value, "ok", "")


def judge_hub(*, cache: str, writable: bool, offline: bool, is_cached: bool) -> Finding:
    """The hub client's cache."""
    value = f"{cache}{', offline' if offline else ''}"
    if not writable and not offline:
        return Finding(
            "hub cache", f"{value}, not writable", "slow", "Models are downloaded again each time; set HF_HOME."
        )
    if offline and not is_cached:
        return Finding("hub cache", value, "ok", "Empty and HF_HUB_OFFLINE is set: only local folders can be used.")
    return Finding("hub cache", value)


def judge_encoding(*, file_system: str, output: str) -> Finding:
    """Text must be UTF-8 all over, or file names and samples come out garbled."""
    value = f"file names {file_system}, output {output}"
    wrong = [name for name in (file_system, output) if name.lower().replace("-", "") not in ("utf8", "utf8sig")]
    if wrong:
        return Finding("encoding", value, "unsafe", "Samples can't be printed; set LANG=C.UTF-8 or PYTHONUTF8=1.")
    return Finding("encoding", value)


def judge_gpus(names: Sequence[str], *, driver_seen: bool, torch_build: str | None, bf16: bool | None) -> Finding:
    """GPUs as torch sees them.

    Args:
        names: Of each, with its memory.
        driver_seen: Whether the kernel shows an NVIDIA driver.
        torch_build: The CUDA version that torch was built for; None for a CPU build.
        bf16: Whether bfloat16 is supported.
    """
    if names:
        value = f"{', '.join(names)} (CUDA {torch_build}, bfloat16 {'yes' if bf16 else 'no'})"
        return Finding("gpu", value, "ok", "" if bf16 else "Use autocast: float16; bfloat16 is emulated here.")
    if driver_seen:
        why = f"built for CUDA {torch_build}; the driver may be too old" if torch_build else "a build for CPUs"
        return Finding(
            "gpu", f"one is there, and torch does not use it ({why})", "slow", "Install torch for your CUDA version."
        )
    return Finding("gpu", "none")


def judge_device(chosen: str, *, gpus: int) -> Finding:
    """The default device of models.

    Args:
        chosen: What ``device: auto`` is here.
        gpus: How many there are.
    """
    others = "; a run uses one of them, which `device: cuda:N` names" if gpus > 1 else ""
    return Finding("models go to", f"{chosen}{others}")


def judge_scoring(difference: float, *, half: bool = False) -> Finding:
    """Packed against padded: the largest difference of a log-probability, in nats."""
    name, allowed = ("packed = padded, bfloat16", HALF_TOLERANCE) if half else ("packed = padded", SCORING_TOLERANCE)
    value = (
        f"log-probabilities of the same texts differ by {difference:.1e} nats at most; up to {allowed:g} is rounding"
    )
    if not difference <= allowed:  # NaN too
        return Finding(
            name, value, "unsafe",
            "The same text gives different numbers in another batch. Another torch or "
            "transformers version, or another CPU's kernels? Runs will take the padded path, or refuse to start.",
        )  # fmt: skip
    return Finding(name, value)


def judge_compiled(difference: float, *, half: bool = False, sampled: bool = False) -> Finding:
    """What `compiled` computes against torch, or `engine.compiled` against scoring: the largest difference of a log-probability, in nats."""
    key, name = ("engine.compiled", "sampled in C = scored") if sampled else ("compiled", "in C = by torch")
    allowed = HALF_TOLERANCE if half else SCORING_TOLERANCE
    name += ", bfloat16" if half else ""
    value = f"log-probabilities differ by {difference:.1e} nats at most; up to {allowed:g} is rounding"
    if not difference <= allowed:  # NaN too
        return Finding(name, value, "unsafe", f"Leave `{key}` out, or name another compiler in $CC.")
    return Finding(name, value)


def judge_repeat(same: bool, *, on_gpu: bool = False) -> Finding:
    """A training step repeated; on a GPU equal bits are not guaranteed, because some sums have no fixed order there."""
    if same:
        return Finding("same step twice", "same bits")
    if on_gpu:
        advice = "A resumed run ends near an uninterrupted one, but not with the same bits; `device: cpu` gives the same bits."
        return Finding("same step twice", "other bits: on a GPU some sums have no fixed order", "ok", advice)
    return Finding(
        "same step twice", "other bits", "unsafe",
        "A run that is resumed here will not end as one that was not interrupted; set OMP_NUM_THREADS=1 and try again.",
    )  # fmt: skip


def judge_matmul(gflops: float, *, threads: int) -> Finding:
    """Speed of a float32 matrix product."""
    value = f"{gflops:,.0f} GFLOP/s with {threads} thread{'s' if threads > 1 else ''}"
    if gflops / threads < SLOW_GFLOPS:
        return Finding("matrix product", value, "slow", "Something else uses the cores, or the machine is throttled.")
    return Finding("matrix product", value)


def judge_worker(*, answered: bool, killed: bool, seconds: float, reason: str) -> Finding:
    """The process that reward functions run in: does it answer, and does it die when it hangs?"""
    if not answered:
        return Finding(
            "reward worker", f"does not answer: {reason}", "unsafe", "Use `in_process: true` for reward functions."
        )
    if not killed:
        advice = "A reward function that hangs would stop a run; use `in_process: true` only for functions you trust."
        return Finding("reward worker", "answers, and can't be killed", "unsafe", advice)
    value = f"answers after {seconds:.1f} s, is killed when it hangs"
    if seconds > SLOW_WORKER_SECONDS:
        return Finding(
            "reward worker", value, "slow", "Starting Python takes long: is the environment on a network disk?"
        )
    return Finding("reward worker", value)
