"""What the doctor says about bad machines, fed to it as numbers; and that it finds its way about this one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlhf.native.library import compiler, load
from rlhf.pipeline.doctor import Examination, examine, findings, probes
from rlhf.pipeline.doctor.examine import compare_packages
from rlhf.pipeline.doctor.findings import GIB, MIB, Finding

GOOD_DISK = {"free": 100 * GIB, "file_system": "ext4", "writable": True, "lockable": True}
GOOD_GPU = {"driver_seen": True, "torch_build": "12.8", "bf16": True}


@pytest.mark.parametrize(
    ("finding", "level", "says"),
    [
        (findings.judge_threads(threads=8, cores=16, quota=0.5, omp=None), "slow", "set OMP_NUM_THREADS=1"),
        (findings.judge_threads(threads=8, cores=2, quota=None, omp="8"), "slow", "8 threads share 2 cores"),
        (findings.judge_threads(threads=4, cores=8, quota=4.5, omp="4"), "ok", ""),
        (findings.judge_threads(threads=1, cores=2, quota=None, omp="1"), "ok", "best for tiny models"),
        (findings.judge_memory(limit=64 * GIB, available=GIB), "unsafe", "end other programs"),
        (findings.judge_memory(limit=500 * MIB, available=60 * GIB), "unsafe", "raise the container's limit"),
        (findings.judge_memory(limit=6 * GIB, available=5 * GIB), "ok", "Enough for the embedded model"),
        (findings.judge_memory(limit=None, available=None), "ok", ""),
        (findings.judge_disk("disk", **{**GOOD_DISK, "free": 100 * MIB}), "unsafe", "have at least 2.0 GiB free"),
        (findings.judge_disk("disk", **{**GOOD_DISK, "writable": False}), "unsafe", "set output_dir"),
        (findings.judge_disk("disk", **{**GOOD_DISK, "lockable": False}), "unsafe", "File locks"),
        (findings.judge_disk("disk", **{**GOOD_DISK, "file_system": "nfs4"}), "slow", "local disk"),
        (findings.judge_disk("disk", **{**GOOD_DISK, "free": 5 * GIB}), "ok", "Enough for small models"),
        (findings.judge_disk("disk", **GOOD_DISK), "ok", ""),
        (findings.judge_fsync(0.2), "slow", "save less often"),
        (findings.judge_fsync(0.002), "ok", ""),
        (findings.judge_fsync(None), "ok", ""),
        (findings.judge_shared_memory(64 * MIB), "slow", "--shm-size=8g"),
        (findings.judge_shared_memory(None), "ok", ""),
        (findings.judge_open_files(100), "unsafe", "ulimit -n 4096"),
        (findings.judge_open_files(512), "ok", "ulimit -n 4096"),
        (findings.judge_open_files(-1), "ok", ""),
        (findings.judge_python((3, 9), least=(3, 11)), "unsafe", "at least 3.11"),
        (findings.judge_cpu("Old", ()), "slow", "AVX2"),
        (findings.judge_cpu("ARM", ("asimd",)), "ok", ""),
        (findings.judge_compiler("/usr/bin/cc"), "ok", ""),
        (
            findings.judge_compiler(None, why="none is on the PATH; install one"),
            "ok",
            "None is on the PATH; install one.",
        ),
        (findings.judge_compiler(None, why="$CC is 'x'; correct it", asked=True), "slow", "$CC is 'x'; correct it."),
        (findings.judge_compiled(1e-6), "ok", ""),
        (findings.judge_compiled(2e-4), "unsafe", "Leave `compiled` out, or name another compiler in $CC"),
        (findings.judge_compiled(2e-4, sampled=True), "unsafe", "Leave `engine.compiled` out"),
        (findings.judge_compiled(float("nan"), half=True), "unsafe", "another compiler in $CC"),
        (findings.judge_compiled(0.1, half=True), "ok", ""),
        (findings.judge_encoding(file_system="utf-8", output="ascii"), "unsafe", "PYTHONUTF8=1"),
        (findings.judge_encoding(file_system="utf-8", output="UTF-8"), "ok", ""),
        (findings.judge_hub(cache="/c", writable=False, offline=False, is_cached=False), "slow", "set HF_HOME"),
        (findings.judge_hub(cache="/c", writable=True, offline=True, is_cached=False), "ok", "only local folders"),
        (findings.judge_gpus([], driver_seen=True, torch_build=None, bf16=None), "slow", "Install torch for your CUDA"),
        (findings.judge_gpus([], driver_seen=False, torch_build=None, bf16=None), "ok", ""),
        (findings.judge_gpus(["T4"], **{**GOOD_GPU, "bf16": False}), "ok", "Use autocast: float16"),
        (findings.judge_scoring(0.5), "unsafe", "padded path"),
        (findings.judge_scoring(float("nan")), "unsafe", "padded path"),
        (findings.judge_scoring(0.05, half=True), "ok", ""),
        (findings.judge_repeat(same=False), "unsafe", "OMP_NUM_THREADS=1"),
        (findings.judge_matmul(8.0, threads=4), "slow", "throttled"),
        (findings.judge_matmul(80.0, threads=4), "ok", ""),
        (findings.judge_worker(answered=False, killed=False, seconds=1, reason="gone"), "unsafe", "in_process: true"),
        (findings.judge_worker(answered=True, killed=False, seconds=1, reason=""), "unsafe", "hangs"),
        (findings.judge_worker(answered=True, killed=True, seconds=9, reason=""), "slow", "network disk"),
        (findings.judge_worker(answered=True, killed=True, seconds=0.2, reason=""), "ok", ""),
    ],
    ids=lambda value: value.name if isinstance(value, Finding) else "",
)
def test_a_number_gets_the_verdict_and_the_advice(finding, level, says):
    assert finding.level == level
    assert says in finding.advice
    assert bool(finding.advice) == bool(says)


def test_the_comparison_of_packed_and_padded_says_what_was_compared_and_how_far_apart_is_too_far():
    actual = findings.judge_scoring(0.12, half=True)
    assert actual.name == "packed = padded, bfloat16"
    assert actual.value == "log-probabilities of the same texts differ by 1.2e-01 nats at most; up to 0.4 is rounding"
    assert "up to 0.0001 is rounding" in findings.judge_scoring(2e-6).value


@pytest.mark.parametrize(
    ("versions", "tested", "level", "says"),
    [
        (
            {"torch": "2.13.0+cpu", "numpy": "2.4.6"},
            {"torch": "2.13.0", "numpy": "2.4.6"},
            "ok",
            "2 as needed and tested",
        ),
        ({"torch": "2.9.1", "numpy": "2.4.6"}, {}, "unsafe", "torch 2.9.1 does not fit >=2.10"),
        ({"torch": "2.13.0"}, {}, "unsafe", "numpy is not installed (wanted >=2.2)"),
        ({"torch": "2.14.0", "numpy": "2.4.6"}, {"torch": "2.13.0"}, "ok", "torch 2.14.0 (tested with 2.13.0)"),
    ],
)
def test_packages_are_compared_with_what_is_needed_and_what_was_tested(versions, tested, level, says):
    finding = compare_packages(["torch>=2.10", "numpy>=2.2"], versions.get, tested)
    assert finding.level == level
    assert says in finding.value


def group_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_limits_of_a_control_group_of_version_2_are_read_from_the_whole_path(tmp_path):
    own = tmp_path / "own"
    own.write_text("0::/slice/job\n", encoding="utf-8")
    root = tmp_path / "cgroup"
    group_files(
        root,
        {
            "slice/cpu.max": "50000 100000",
            "slice/job/cpu.max": "max 100000",
            "slice/memory.max": "max",
            "slice/job/memory.max": str(300 * MIB),
        },
    )
    assert probes.cpu_quota(root, own) == 0.5
    assert probes.memory_bytes(root, own) == 300 * MIB


def test_limits_of_a_control_group_of_version_1_are_read_too(tmp_path):
    own = tmp_path / "own"
    own.write_text("4:memory:/docker/x\n2:cpu,cpuacct:/docker/x\n0::/\n", encoding="utf-8")
    root = tmp_path / "cgroup"  # in a container the own group is mounted as the root
    group_files(
        root,
        {
            "cpu/cpu.cfs_quota_us": "150000",
            "cpu/cpu.cfs_period_us": "100000",
            "memory/memory.limit_in_bytes": str(200 * MIB),
        },
    )
    assert probes.cpu_quota(root, own) == 1.5
    assert probes.memory_bytes(root, own) == 200 * MIB
    group_files(root, {"cpu/cpu.cfs_quota_us": "-1", "memory/memory.limit_in_bytes": str((1 << 63) - 4096)})
    assert probes.cpu_quota(root, own) is None
    unlimited = probes.memory_bytes(root, own)
    assert unlimited is None or unlimited > 200 * MIB


def test_the_file_system_is_that_of_the_nearest_mount(tmp_path):
    (tmp_path / "a b").mkdir()
    mounts = [
        "/dev/sda / ext4 rw 0 0",
        f"server:/x {tmp_path} nfs4 rw 0 0",
        f"tmp {str(tmp_path / 'a b').replace(' ', chr(92) + '040')} tmpfs rw 0 0",
    ]
    assert probes.file_system(tmp_path / "runs" / "x", mounts) == "nfs4"
    assert probes.file_system(tmp_path / "a b" / "x", mounts) == "tmpfs"
    assert probes.file_system(Path("/"), mounts) == "ext4"
    assert probes.file_system(Path("/"), []) is None


def test_probing_leaves_nothing_behind(tmp_path):
    assert probes.can_lock(tmp_path / "not" / "there") is True
    seconds = probes.fsync_seconds(tmp_path)
    assert seconds is not None
    assert seconds > 0
    assert list(tmp_path.iterdir()) == []


def test_the_hub_cache_follows_the_environment():
    assert probes.hub_cache({"HF_HOME": "/data/hf"}) == Path("/data/hf/hub")
    assert probes.hub_cache({"HF_HUB_CACHE": "/data/cache", "HF_HOME": "/data/hf"}) == Path("/data/cache")
    assert probes.hub_cache({"XDG_CACHE_HOME": "/data/x"}) == Path("/data/x/huggingface/hub")
    assert probes.is_hub_offline({"HF_HUB_OFFLINE": "1"})
    assert not probes.is_hub_offline({"HF_HUB_OFFLINE": "0"})


def test_one_unsafe_finding_makes_the_examination_unsafe():
    examination = Examination(
        [Finding("a", "1"), Finding("b", "2", "slow", "Do this."), Finding("c", "3", "unsafe", "Do that.")]
    )
    assert not examination.is_safe
    lines = examination.to_text().splitlines()
    assert lines[0].split() == ["ok", "a", "1"]
    assert lines[2].strip() == "Do this."
    assert lines[-1] == "1 unsafe, 1 slow: 3 checks."
    assert Examination(examination.findings[:2]).is_safe
    assert json.loads(json.dumps(examination.to_dict()))["findings"][2]["advice"] == "Do that."


@pytest.mark.slow
def test_the_examination_looks_at_everything_and_tries_it(tmp_path):
    actual = {finding.name: finding for finding in examine(tmp_path / "runs").findings}
    assert {"system", "python", "cpu", "memory", "swap", "open files", "/dev/shm", "encoding", "disk here", "fsync", "hub cache",
            "packages", "extras", "threads", "gpu", "c compiler"} <= set(actual)  # fmt: skip
    assert actual["packed = padded"].level == "ok"
    assert actual["packed = padded, bfloat16"].level == "ok"
    assert actual["same step twice"].value == "same bits"
    for name in ("in C = by torch", "in C = by torch, bfloat16", "sampled in C = scored"):
        assert (actual[name].level == "ok") if compiler() else name not in actual
    assert "is killed when it hangs" in actual["reward worker"].value
    assert not (tmp_path / "runs").exists()


def test_a_compiler_that_fails_is_found_out(tmp_path, monkeypatch):
    from rlhf.pipeline.doctor import trials

    script = tmp_path / "my-cc"
    script.write_text("#!/bin/sh\necho 'out of ink' >&2\nexit 3\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    # What this process has compiled already is not compiled again, but for another set of macros.
    monkeypatch.setattr(trials, "compiled_difference", lambda policy, half: load("softmax", HALF=0, ANOTHER=1))
    actual = {finding.name: finding for finding in examine(tmp_path / "runs").findings}
    assert actual["c compiler"].value == str(script)
    failed = actual["in C = by torch"]
    assert (failed.value, failed.level) == ("failed", "unsafe")
    assert "my-cc failed" in failed.advice
    assert "out of ink" in failed.advice


@pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
def test_what_is_wrong_in_c_is_found_out(monkeypatch):
    from rlhf.models import logprobs
    from rlhf.pipeline.doctor import trials

    policy = trials.load_embedded()
    assert trials.compiled_difference(policy, half=False) < findings.SCORING_TOLERANCE
    honest, asked = trials.score, []

    def biased(model, batch, *, path):
        asked.append(logprobs.is_in_c())
        scores = honest(model, batch, path=path)
        return type(scores)(scores.logprobs + 0.01, None) if asked[-1] else scores

    monkeypatch.setattr(trials, "score", biased)
    assert trials.compiled_difference(policy, half=False) == pytest.approx(0.01, abs=1e-3)
    assert asked == [True, False]


@pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
def test_sampling_in_c_that_says_something_else_is_found_out(monkeypatch):
    from rlhf.pipeline.doctor import trials
    from rlhf.rollout.compiled import CompiledModel

    policy = trials.load_embedded()
    asked, honest = [], CompiledModel.draw
    monkeypatch.setattr(CompiledModel, "draw", lambda self, *a, **k: asked.append(1) or honest(self, *a, **k))
    assert trials.sampled_difference(policy) < findings.SCORING_TOLERANCE
    assert asked, "it was sampled in C"
    own = trials.LocalEngine.generate

    def biased(engine, *a, **k):
        return [[replace(c, logprobs=[x - 0.01 for x in c.logprobs]) for c in group] for group in own(engine, *a, **k)]

    monkeypatch.setattr(trials.LocalEngine, "generate", biased)
    assert trials.sampled_difference(policy) == pytest.approx(0.01, abs=1e-3)


@pytest.mark.skipif(compiler() is None, reason="no C compiler on the PATH")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decoding_in_c_that_is_wrong_is_found_out_though_a_run_would_do_without_it(dtype, monkeypatch, tmp_path):
    from rlhf.rollout.compiled import CompiledModel

    honest = CompiledModel.hidden

    def wrong(self, *a, **k):
        actual = honest(self, *a, **k)
        return actual.roll(1, -1) if self.dtype == dtype else actual

    monkeypatch.setattr(CompiledModel, "hidden", wrong)
    actual = {finding.name: finding for finding in examine(tmp_path / "runs").findings}
    assert actual["in C = by torch"].level == "ok"
    assert actual["sampled in C = scored"].level == "unsafe"
    assert "Decoding in C gives other logits than the model" in actual["sampled in C = scored"].advice


def test_a_worker_that_does_not_answer_is_found_out(monkeypatch):
    from rlhf.pipeline.doctor import trials

    monkeypatch.setattr("rlhf.rewards.function_process.START", "raise SystemExit(3)")
    tried = trials.try_worker()
    assert not tried.answered
    assert "3" in tried.reason


def test_scoring_that_depends_on_the_batch_is_found_out(monkeypatch):
    from rlhf.pipeline.doctor import trials

    policy = trials.load_embedded()
    assert trials.scoring_difference(policy, half=False) < findings.SCORING_TOLERANCE
    honest = trials.score

    def biased(model, batch, *, path):
        scores = honest(model, batch, path=path)
        return scores if path != "packed" else type(scores)(scores.logprobs + 0.01, None)

    monkeypatch.setattr(trials, "score", biased)
    assert trials.scoring_difference(policy, half=False) == pytest.approx(0.01, abs=1e-3)


def test_a_step_that_draws_random_numbers_does_not_repeat(monkeypatch):
    import torch

    from rlhf.pipeline.doctor import trials

    policy = trials.load_embedded()
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    assert trials.step_repeats(policy)
    honest = trials._take_step

    def noisy(policy, batch):
        honest(policy, batch)
        with torch.no_grad():
            next(policy.model.parameters()).add_(torch.randn(()) * 1e-3)

    monkeypatch.setattr(trials, "_take_step", noisy)
    assert not trials.step_repeats(policy)
    assert all(torch.equal(before[name], value) for name, value in policy.model.state_dict().items())
