"""The examination: probe, judge, and report what is slow or unsafe."""

from __future__ import annotations

import locale
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rlhf
from rlhf.config.threads import usable_cores
from rlhf.errors import RLHFError
from rlhf.formatting import bytes_text
from rlhf.native.library import compiler, why_no_compiler
from rlhf.pipeline.doctor import probes
from rlhf.pipeline.doctor.findings import (
    Finding,
    judge_compiled,
    judge_compiler,
    judge_cpu,
    judge_device,
    judge_disk,
    judge_encoding,
    judge_extras,
    judge_fsync,
    judge_gpus,
    judge_hub,
    judge_matmul,
    judge_memory,
    judge_open_files,
    judge_packages,
    judge_python,
    judge_repeat,
    judge_scoring,
    judge_shared_memory,
    judge_swap,
    judge_threads,
    judge_worker,
)

if TYPE_CHECKING:  # importing it takes seconds
    from rlhf.models.policy import PolicyModel

LEAST_PYTHON = (3, 11)
WIDTH = 28
"""Characters of the column with names."""
EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")
NAME = re.compile(r"^([A-Za-z0-9._-]+)")
NOT_EXTRAS = ("all", "dev")


@dataclass(frozen=True, slots=True)
class Examination:
    """Everything that was found."""

    findings: list[Finding]

    @property
    def is_safe(self) -> bool:
        """Nothing is unsafe."""
        return all(finding.level != "unsafe" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"safe": self.is_safe, "findings": [finding.to_dict() for finding in self.findings]}

    def to_text(self) -> str:
        """One line per finding with its advice below, and a summary as the last line."""
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.level:<8}{finding.name:<{WIDTH}}{finding.value}")
            lines += [f"{'':<{8 + WIDTH}}{finding.advice}"] if finding.advice else []
        counts = {level: sum(f.level == level for f in self.findings) for level in ("unsafe", "slow")}
        said = [f"{count} {level}" for level, count in counts.items() if count]
        return "\n".join([*lines, f"{', '.join(said) or 'Nothing slow or unsafe'}: {len(self.findings)} checks."])


def examine(run_dir: Path | str = "runs", *, trials: bool = True) -> Examination:
    """Check the machine, the installation and the folder that runs are written to.

    Args:
        run_dir: Where runs go; need not exist.
        trials: Also score, train and start processes, which takes about ten seconds.
    """
    findings = [*_machine(), *_storage(Path(run_dir)), *_installation()]
    return Examination([*findings, *_torch(), *(_trials() if trials else ())])


def _machine() -> Iterator[Finding]:
    yield Finding("system", f"{platform.system()} {platform.release()} ({platform.machine()})")
    yield judge_python(sys.version_info[:2], least=LEAST_PYTHON)
    yield judge_cpu(probes.cpu_name(), probes.cpu_features())
    compiler_name = probes.c_compiler()
    yield judge_compiler(
        compiler_name, why=why_no_compiler() if compiler_name is None else "", asked=bool(os.environ.get("CC"))
    )
    yield judge_memory(limit=probes.memory_bytes(), available=probes.available_bytes())
    yield judge_swap(probes.swap_bytes())
    yield judge_open_files(probes.open_file_limit())
    shm = Path("/dev/shm")
    yield judge_shared_memory(shutil.disk_usage(shm).total if shm.is_dir() else None)
    output = getattr(sys.stdout, "encoding", None) or locale.getpreferredencoding(do_setlocale=False)
    yield judge_encoding(file_system=sys.getfilesystemencoding(), output=output)


def _storage(run_dir: Path) -> Iterator[Finding]:
    for name, folder in (("disk here", Path()), ("disk of runs", run_dir)):
        nearest = probes.nearest_folder(folder)
        yield judge_disk(
            name,
            free=probes.free_bytes(nearest),
            file_system=probes.file_system(nearest),
            writable=nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK),
            lockable=probes.can_lock(nearest),
        )
    yield judge_fsync(probes.fsync_seconds(run_dir))
    cache = probes.hub_cache()
    yield judge_hub(
        cache=str(cache),
        writable=os.access(probes.nearest_folder(cache), os.W_OK),
        offline=probes.is_hub_offline(),
        is_cached=cache.is_dir() and any(cache.glob("models--*")),
    )


def _installation() -> Iterator[Finding]:
    try:
        required = metadata.requires("rlhf") or []
    except metadata.PackageNotFoundError:
        yield Finding(
            "packages", "rlhf runs from a folder that was not installed", "ok", "pip install -e . to have them checked."
        )
        return
    core = [line for line in required if not EXTRA.search(line)]
    yield compare_packages(core, _installed, tested_versions())
    by_extra: dict[str, list[str]] = {}
    for line in required:
        if (extra := EXTRA.search(line)) and extra[1] not in NOT_EXTRAS:
            by_extra.setdefault(extra[1], []).append(_package_name(line))
    present = [extra for extra, packages in by_extra.items() if all(_installed(name) for name in packages)]
    yield judge_extras(present, [extra for extra in by_extra if extra not in present])


def compare_packages(required: list[str], installed: Callable[[str], str | None], tested: Mapping[str, str]) -> Finding:
    """Compare installed versions with what is needed, and with what the tests ran with.

    Args:
        required: Requirements as pyproject.toml has them.
        installed: Name to version, None where it is absent.
        tested: Name to version.
    """
    from packaging.requirements import Requirement
    from packaging.version import Version

    wrong, other = {}, {}
    for line in required:
        requirement = Requirement(line)
        version = installed(requirement.name)
        if version is None:
            wrong[requirement.name] = f"is not installed (wanted {requirement.specifier})"
        elif not requirement.specifier.contains(Version(version).public, prereleases=True):
            wrong[requirement.name] = f"{version} does not fit {requirement.specifier}"
        elif (pin := tested.get(requirement.name.lower())) is not None and Version(version).public != pin:
            other[requirement.name] = f"{version} (tested with {pin})"
    return judge_packages(wrong, other, count=len(required))


def tested_versions() -> dict[str, str]:
    """The pins of requirements/core.txt, where the package runs from its repository; empty elsewhere."""
    file = Path(rlhf.__file__).parents[2] / "requirements" / "core.txt"
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    pins = (re.match(r"^([\w.-]+)==([^\s;+]+)", line) for line in lines)
    return {pin[1].lower(): pin[2] for pin in pins if pin}


def _torch() -> Iterator[Finding]:
    import torch

    from rlhf.config.model import AUTO
    from rlhf.models.device import describe_device, resolve_device

    quota = probes.cpu_quota()
    yield judge_threads(
        threads=torch.get_num_threads(),
        cores=usable_cores(),
        quota=quota,
        omp=os.environ.get("OMP_NUM_THREADS"),
    )
    has_cuda = torch.cuda.is_available()
    properties = [
        torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count() if has_cuda else 0)
    ]
    yield judge_gpus(
        [f"{gpu.name} with {bytes_text(gpu.total_memory)}" for gpu in properties],
        driver_seen=probes.has_nvidia(),
        torch_build=torch.version.cuda,
        bf16=torch.cuda.is_bf16_supported() if has_cuda else None,
    )
    yield judge_device(describe_device(resolve_device(AUTO)), gpus=len(properties))


def _trials() -> Iterator[Finding]:
    import torch

    from rlhf.pipeline.doctor import trials

    yield judge_matmul(trials.matmul_gflops(), threads=torch.get_num_threads())
    try:
        policy = trials.load_embedded()
    except RLHFError as err:
        yield Finding("embedded model", str(err), "unsafe", "Reinstall rlhf.")
    else:
        yield judge_scoring(trials.scoring_difference(policy, half=False))
        yield judge_scoring(trials.scoring_difference(policy, half=True), half=True)
        yield judge_repeat(trials.step_repeats(policy), on_gpu=policy.device.type == "cuda")
        if policy.device.type == "cpu" and compiler() is not None:
            yield from _try_compiled(policy)
    tried = trials.try_worker()
    yield judge_worker(answered=tried.answered, killed=tried.killed, seconds=tried.seconds, reason=tried.reason)


def _try_compiled(policy: PolicyModel) -> Iterator[Finding]:
    from rlhf.pipeline.doctor import trials

    name = "in C = by torch"
    try:
        for half in (False, True):
            yield judge_compiled(trials.compiled_difference(policy, half=half), half=half)
        name = "sampled in C = scored"
        if policy.path == "packed":  # else nothing is sampled in C
            yield judge_compiled(trials.sampled_difference(policy), sampled=True)
    except RLHFError as err:
        yield Finding(name, "failed", "unsafe", str(err))


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _package_name(requirement: str) -> str:
    match = NAME.match(requirement)
    assert match is not None
    return match[1]
