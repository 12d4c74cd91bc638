"""`make bench-gpu` without a GPU: what it measures with, what it tries, what it says, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.peer import driver, environments, gpu, gpu_report
from benchmarks.peer.cases import CURVES, FLASH, GOALS, GPU_MODELS, HUB_FLASH, Candidate, Case, candidates_of, gpu_cases
from benchmarks.peer.channel import MIB, Card, Meter, Step
from benchmarks.peer.driver import Plan, SideFailed, SideResult, best_candidate, module_of, peer_of
from benchmarks.peer.models import arguments_of, folder_of
from benchmarks.peer.work import draw_rows

ABOUT: dict[str, Any] = {
    "card": {"name": "H200", "memory": "139 GiB", "driver": "570.1", "cuda": "13.0"},
    "machine": {"processor": "EPYC", "memory": "128 GiB", "system": "Linux 6", "python": "3.12"},
    "versions": {"torch": "2.13.0", "trl": "1.16.0"},
}


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_refuses_in_one_sentence_and_measures_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "measured", lambda *args, **kwargs: pytest.fail("it measured"))
    with pytest.raises(SystemExit) as refusal:
        gpu.main([])
    told = str(refusal.value)
    assert f"torch {torch.__version__} finds none" in told
    assert "`make bench` compares on the processor" in told
    assert "\n" not in told


@pytest.mark.parametrize(
    ("words", "told"), [(["--device", "cpu"], "with --tiny"), (["--tiny", "--large"], "exclude each other")]
)
def test_what_would_measure_nothing_of_use_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        gpu.arguments(words)
    assert told in capsys.readouterr().err


def test_a_tried_out_page_never_becomes_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "BENCH", tmp_path / "bench")
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    (tmp_path / "bench").mkdir()
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(gpu, "about_side", lambda side: ABOUT)
    plans = []

    def measured(case: Case, plan: Plan, rows: Any, *, again: bool) -> dict[str, Any]:
        plans.append(plan)
        return row(case.name)

    monkeypatch.setattr(gpu, "measured", measured)
    gpu.main(["--device", "cpu", "--tiny"])
    assert len(plans) == 3
    assert not any(plan.in_turns for plan in plans)
    assert not (tmp_path / "benchmarks" / "RESULTS-gpu.md").exists()
    assert "Tried out on a processor" in (tmp_path / "bench" / "gpu-tried.md").read_text()
    gpu.main(["--rows", "sft", "--large"])
    assert "H200, 139 GiB, driver 570.1, CUDA 13.0" in (tmp_path / "benchmarks" / "RESULTS-gpu.md").read_text()
    assert len(plans) == 5


def test_a_row_that_failed_has_no_ratio_and_the_command_says_so_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(gpu, "BENCH", tmp_path)
    monkeypatch.setattr(gpu, "about_side", lambda side: ABOUT)
    monkeypatch.setattr(gpu, "measured", lambda case, *_, **__: {"name": case.name, "error": "losses differ"})
    with pytest.raises(SystemExit) as left:
        gpu.main(["--device", "cpu", "--tiny", "--rows", "dpo"])
    assert left.value.code == 1
    assert "no ratio: losses differ" in (tmp_path / "gpu-tried.md").read_text()


# --- the work ---------------------------------------------------------------------------------------------------------


def test_the_models_have_the_size_they_are_named_for():
    # Qwen2.5's own counts are 494,032,768 and 1,543,714,304, with biases and norms
    assert GPU_MODELS["0.5B"].parameters == pytest.approx(494_032_768, rel=1e-3)
    assert GPU_MODELS["1.5B"].parameters == pytest.approx(1_543_714_304, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("tiny", [False, True])
def test_sequences_fit_into_the_model_and_the_longest_come_near_4096(tiny: bool):
    for case in gpu_cases(device="cuda", tiny=tiny):
        rows = draw_rows(case, count=400)
        ends = [len(ids) for row in rows for ids in row["completions"]] or [case.max_new_tokens]
        longest = max(len(row["prompt"]) for row in rows) + max(ends)
        assert longest <= case.shape.positions
        assert tiny or longest > (3500 if case.method != "grpo" else 2000)


def test_rows_of_the_processors_table_are_named_as_before():
    assert Case("dpo").name == "dpo-A-bf16-1t-4"
    assert Case("grpo", rows=2, group=8).name == "grpo-A-bf16-1t-2x8"
    names = [case.name for device in ("cpu", "cuda") for case in gpu_cases(device=device, tiny=True)]  # type: ignore[arg-type]
    names += [case.name for case in (*gpu_cases(device="cuda"), *gpu_cases(device="cuda", large=True))]
    names += [goal.case.name for goal in GOALS] + [point.name for points in CURVES.values() for point in points]
    assert len(set(names)) >= len(names) - 2  # two points of the curves are rows of the table


def test_a_model_that_is_sampled_from_ends_its_completions_and_has_a_head_of_its_own(tmp_path: Path):
    sft, _, grpo = gpu_cases(device="cuda")
    assert sft.shape.tied
    assert not grpo.shape.tied
    assert grpo.ends_after == 272
    assert folder_of(tmp_path, sft) != folder_of(tmp_path, grpo)
    *_, ends, judge = arguments_of(tmp_path, grpo)
    assert (ends, judge) == ("272", "no-judge")
    assert folder_of(tmp_path, Case("grpo")).name.startswith("A-32000-sampled-68-")
    assert arguments_of(tmp_path, Case("grpo"))[-1] == "68"


# --- the peer's settings ----------------------------------------------------------------------------------------------


def test_rows_without_padding_are_for_flash_attention_and_every_setting_names_what_it_needs():
    for case in gpu_cases(device="cuda"):
        actual = candidates_of(case)
        assert len({candidate.name for candidate in actual}) == len(actual)
        for candidate in actual:
            if candidate.settings.get("padding_free"):
                assert candidate.model in (FLASH, HUB_FLASH)
            assert ("liger_kernel" in candidate.needs) == bool(candidate.settings.get("use_liger_kernel"))
            assert ("vllm" in candidate.needs) == bool(candidate.settings.get("use_vllm"))
            assert ("flash_attn" in candidate.needs) == (candidate.model == FLASH)
            assert "packing" not in candidate.settings
    sft, dpo, grpo = (candidates_of(case) for case in gpu_cases(device="cuda"))
    assert any(c.settings.get("padding_free") and c.settings.get("use_liger_kernel") for c in sft)
    assert any(c.settings.get("precompute_ref_log_probs") and c.model == FLASH for c in dpo)
    assert any(c.settings.get("use_vllm") and c.model == HUB_FLASH for c in grpo)


def test_settings_that_do_not_run_are_told_and_the_fastest_of_the_others_is_taken(monkeypatch: pytest.MonkeyPatch):
    case = Case("sft", device="cuda")
    options = [
        Candidate("slow"),
        Candidate("absent", needs=("there_is_no_such",)),
        Candidate("broken"),
        Candidate("fast"),
    ]
    monkeypatch.setattr(driver, "candidates_of", lambda _: options)
    monkeypatch.setattr(driver, "python_of", lambda _: Path(sys.executable))

    def seconds(case: Case, candidate: Candidate, log: Path, *, seed: int) -> float:
        if candidate.name == "broken":
            raise SideFailed("trl-gpu: out of memory")
        return {"slow": 2.0, "fast": 1.0}[candidate.name]

    monkeypatch.setattr(driver, "seconds_a_step", seconds)
    best, told = best_candidate(case, Plan())
    assert best.name == "fast"
    assert told == {
        "slow": 2.0, "absent": "there_is_no_such not installed", "broken": "trl-gpu: out of memory", "fast": 1.0,
    }  # fmt: skip
    monkeypatch.setattr(driver, "candidates_of", lambda _: options[1:3])
    with pytest.raises(SideFailed, match="none of its settings"):
        best_candidate(case, Plan())


def test_the_peer_of_a_gpu_is_an_environment_of_its_own_that_may_reach_the_hub():
    case = Case("dpo", device="cuda")
    assert peer_of(case) == "trl-gpu" in environments.REQUIREMENTS
    assert module_of("trl-gpu", case) == module_of("trl", case) == "benchmarks.peer.side_trl"
    assert module_of("trl-ppo", case) == "benchmarks.peer.side_trl_ppo"
    assert module_of("rlhf", case) == "benchmarks.peer.side_rlhf"
    assert driver.environment("trl-gpu", case, 0, 1)["HF_HUB_OFFLINE"] == "0"
    assert driver.environment("trl", Case("dpo"), 0, 1)["HF_HUB_OFFLINE"] == "1"


def test_what_can_not_be_installed_besides_is_told_and_the_peer_goes_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ran: list[list[str]] = []

    def run(command: list[str], *, check: bool = False) -> subprocess.CompletedProcess[bytes]:
        ran.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        failed = "trl[vllm]==1.16.0" in command
        assert not (failed and check)
        return subprocess.CompletedProcess(command, int(failed))

    monkeypatch.setattr(subprocess, "run", run)
    told: list[str] = []
    environments.prepare(tmp_path, "trl-gpu", say=told.append)
    assert [line for line in told if "goes without it" in line] == [
        "trl[vllm]==1.16.0 can't be installed beside the rest; the peer goes without it"
    ]
    extras = [command for command in ran if command[-1] in environments.OPTIONAL["trl-gpu"]]
    assert len(extras) == 3
    assert all("-c" in command for command in extras)  # so that none of them changes torch
    ran.clear()
    environments.prepare(tmp_path, "trl-gpu", say=told.append)
    assert ran == []


# --- measuring --------------------------------------------------------------------------------------------------------


class Cuda:
    """Stands in for torch.cuda: what was asked of it, and an allocator whose peak is told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.allocated, self.peak, self.reserved = 100 * MIB, 100 * MIB, 120 * MIB

    def synchronize(self) -> None:
        self.asked.append("synchronize")

    def empty_cache(self) -> None:
        self.asked.append("empty_cache")

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.allocated

    def memory_allocated(self) -> int:
        return self.allocated

    def max_memory_allocated(self) -> int:
        return self.peak

    def max_memory_reserved(self) -> int:
        return self.reserved


@pytest.mark.slow
def test_on_a_gpu_a_step_ends_when_the_queue_is_empty_and_its_memory_is_that_of_torch(monkeypatch: pytest.MonkeyPatch):
    cuda, sent = Cuda(), []
    monkeypatch.setattr(torch, "cuda", cuda)
    channel: Any = SimpleNamespace(
        send=lambda **message: sent.append(message), receive=lambda: {"do": "steps", "count": 2}
    )
    meter = Meter(channel)
    meter.measure_on("cuda")
    assert isinstance(meter.gauge, Card)
    cuda.peak = 900 * MIB  # of loading
    meter.begin()
    assert sent[0]["resident_mib"] == 100.0
    before = cuda.asked.count("synchronize")
    cuda.peak, cuda.reserved = 350 * MIB, 400 * MIB
    meter.step_done()
    assert cuda.asked.count("synchronize") == before + 2  # at the end of one step, at the start of the next
    meter.step_done()
    (first, _) = sent[1]["steps"]
    assert (first["peak_mib"], first["reserved_mib"]) == (250.0, 400.0)
    assert Step(**json.loads(json.dumps(first))).seconds > 0


# --- the page ---------------------------------------------------------------------------------------------------------


def row(name: str = "sft-0.5B", **changes: Any) -> dict[str, Any]:
    """Worked by hand: 1,000 and 3,000 tokens in steps of one and three seconds here, of two and six there."""

    def side(seconds: tuple[float, float], peak: float, gap: float | None) -> dict[str, Any]:
        steps = [Step(s, s, peak, reserved_mib=2 * peak + 1000) for s in seconds]
        values = {} if gap is None else {"logprob_gap": [gap / 2, gap]}
        return asdict(SideResult(resident_mib=1000.0, warm_up=[steps[0]], steps=steps, values=values))

    return {
        "name": name, "ratio": 2.0, "ratios": [2.0, 2.0], "wall_ratio": 2.0, "memory_ratio": 0.1, "candidate": "Liger",
        "candidates": {"SDPA": 2.5, "Liger": 2.0, "vLLM": "vllm not installed"}, "asserted": "loss of steps 1 to 4 within 0.005",
        "seconds": {"rlhf": 2.0, "trl": 4.0}, "peak_mib": {"rlhf": 100.0, "trl": 1000.0}, "flop_per_second": 1e9,
        "tokens": [{"real": 1000}, {"real": 3000}],
        "sides": {"rlhf": side((1.0, 3.0), 100.0, 0.004), "trl": side((2.0, 6.0), 1000.0, None)}, **changes,
    }  # fmt: skip


def test_the_page_says_tokens_a_second_peaks_with_the_weights_and_what_was_not_measured():
    page = gpu_report.page([row()], ours=ABOUT, theirs=ABOUT, command="x", device="cuda")
    (line,) = [line for line in page.splitlines() if line.startswith("| sft-0.5B")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == [
        "sft-0.5B", "1,000", "500", "2.00", "1,100", "2,000", "0.55, **not met**", "1,200 / 3,000",
        "0.0040 / not measured",
    ]  # fmt: skip
    assert "**Liger** (SDPA: 2.5 s; Liger: 2 s; vLLM: vllm not installed)" in page
    assert "loss of steps 1 to 4 within 0.005" in page


def test_a_pass_of_the_reference_before_the_first_step_counts_in_tokens_a_second_and_in_the_ratio():
    dpo = row("dpo", reference_seconds_per_step={"rlhf": 1.0, "trl": 0.0}, ratio_one_epoch=1.4)
    assert gpu_report.tokens_per_second(dpo, "rlhf") == (1000 / 2 + 3000 / 4) / 2
    assert gpu_report.tokens_per_second(dpo, "trl") == 500.0
    assert "| 1.40, **not met** |" in gpu_report.table([dpo])


def test_where_completions_are_sampled_their_tokens_count():
    sampled = row("grpo")
    for side in sampled["sides"].values():
        for step in side["steps"]:
            step["completion_tokens"] = 60
    assert gpu_report.tokens_per_second(sampled, "rlhf") == 40.0  # of 60 and 20
