"""The arithmetic of the comparison with TRL: what it calls work, agreement and a ratio. No model runs here."""

from __future__ import annotations

import json
import os
import random
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rlhf
from benchmarks.peer import __main__ as command
from benchmarks.peer import driver, report
from benchmarks.peer.agreement import Check, Disagreement, check_greedy, check_numbers, check_rows, compare
from benchmarks.peer.cases import CURVES, EOS, GOALS, MODELS, Case, Shape
from benchmarks.peer.channel import Channel, Meter, Step, status_mib
from benchmarks.peer.driver import Agreement, SideResult, activities_of, per_unit, summary
from benchmarks.peer.results import MEASURING, NOT_MEASURED, Rows, code_hash, row_key
from benchmarks.peer.work import (
    EQUAL_LENGTHS,
    Tokens,
    count_tokens,
    draw_length,
    draw_rows,
    force_completions,
    forward_flop,
    share_of_low_words,
    share_of_peak,
    text_of,
    useful_flop,
)
from rlhf import allocator
from rlhf.pipeline.code_hash import code_of_modules

PAIR = {"prompt": [5, 6, 7], "completions": [[8, EOS], [9, 9, 9, EOS]]}
OTHER = {"prompt": [5], "completions": [[8, 8, EOS], [EOS]]}


# --- rows and tokens --------------------------------------------------------------------------------------------------


def test_tokens_of_two_pairs_worked_by_hand():
    # sequences of 3 + 2, 3 + 4, 1 + 3, 1 + 1 tokens; prompts of 3 and 1 once; the longest of four is 7
    assert count_tokens([PAIR, OTHER]) == Tokens(real=18, unique=14, padded=28, scored=10, completions=10)
    assert count_tokens([PAIR, OTHER]).waste == 2.0
    assert count_tokens([PAIR], scores_tokens=False).scored == 0


def test_the_mean_length_is_the_one_that_was_asked_for():
    rng = random.Random(0)
    assert statistics.mean(draw_length(rng, 160) for _ in range(20_000)) == pytest.approx(160, rel=0.02)


def test_rows_are_the_same_for_the_same_seed_and_others_for_another():
    case = Case("dpo")
    assert draw_rows(case, count=5) == draw_rows(case, count=5)
    assert draw_rows(case, count=5) == draw_rows(case, count=9)[:5]
    assert draw_rows(case, count=5) != draw_rows(case, count=5, seed=1)


@pytest.mark.parametrize(("method", "completions"), [("sft", 1), ("kto", 1), ("dpo", 2), ("reward", 2), ("grpo", 0)])
def test_rows_have_as_many_completions_as_their_method_learns_from_each_with_an_end(method: Any, completions: int):
    rows = draw_rows(Case(method), count=40)
    assert {len(row["completions"]) for row in rows} == {completions}
    assert all(ids[-1] == EOS and EOS not in ids[:-1] for row in rows for ids in row["completions"])
    assert len({tuple(row["prompt"]) for row in rows}) == 40
    assert all(0 < token < 32_000 for row in rows for ids in [row["prompt"], *row["completions"]] for token in ids)


def test_the_first_steps_of_orpo_have_chosen_completions_of_one_length():
    case = Case("orpo", rows=3)
    lengths = [len(row["completions"][0]) for row in draw_rows(case, count=40)]
    assert set(lengths[: 3 * EQUAL_LENGTHS]) == {case.completion_mean}
    assert len(set(lengths[3 * EQUAL_LENGTHS :])) > 5


def test_forced_completions_are_whole_or_of_many_lengths():
    case = Case("grpo", rows=2, group=4, max_new_tokens=64)
    rows = draw_rows(case, count=4)
    whole = [ids for row in force_completions(rows, case, whole=True) for ids in row["completions"]]
    assert [len(ids) for ids in whole] == [64] * 16
    assert not any(EOS in ids for ids in whole)
    drawn = [ids for row in force_completions(rows, case, whole=False) for ids in row["completions"]]
    assert len({len(ids) for ids in drawn}) > 3
    assert all(len(ids) <= 64 and (ids[-1] == EOS) == (len(ids) < 64) for ids in drawn)


def test_a_text_names_its_ids():
    assert text_of([3, 31_999, EOS]) == "w3 w31999 </s>"


def test_the_reward_is_the_share_of_low_words_in_percent():
    assert share_of_low_words([3, 4, 99, 50], 100) == 50.0


# --- useful work ------------------------------------------------------------------------------------------------------

SMALL = Shape(hidden=4, layers=2, heads=2, intermediate=8, vocabulary=10, tied=False)


def test_parameters_of_a_shape_worked_by_hand():
    # a layer: 4 matrices of 4 x 4, 3 of 4 x 8; embeddings and head of 10 x 4
    assert SMALL.body_parameters == 2 * (64 + 96)
    assert SMALL.head_parameters == 40
    assert SMALL.parameters == 400
    assert replace(SMALL, tied=True).parameters == 360


def test_the_models_are_of_the_sizes_that_the_issue_names():
    assert MODELS["A"].parameters == pytest.approx(20e6, rel=0.06)
    assert MODELS["B"].parameters == pytest.approx(124e6, rel=0.01)


def test_useful_work_of_a_step_worked_by_hand():
    shape, tokens = MODELS["A"], Tokens(real=0, unique=100, padded=0, scored=40, completions=40)
    forward = 2 * (shape.body_parameters * 100 + shape.head_parameters * 40)
    backbone = 2 * shape.body_parameters * 100
    assert forward_flop(shape, 100, 40) == forward
    by_method: dict[Any, float] = {
        "generate": forward, "sft": 3 * forward, "dpo": 3 * forward, "kto": 5 * forward, "grpo": 4 * forward,
        "ppo": 2 * forward + 2 * backbone + 4 * 3 * (forward + backbone),
    }  # fmt: skip
    for method, flop in by_method.items():
        assert useful_flop(Case(method), tokens) == flop, method
    assert share_of_peak(1e9, 0.5, 8e9) == 0.25


# --- agreement --------------------------------------------------------------------------------------------------------


def side(
    losses: list[float], *, seconds: list[float] | None = None, tokens: int | None = None, **ready: Any
) -> SideResult:
    steps = [Step(s, 2 * s, 100.0, tokens, None if tokens is None else [(10, [tokens])]) for s in seconds or []]
    return SideResult(resident_mib=50, steps=steps, losses=losses, values={"loss": losses}, ready=ready)


def test_equal_losses_agree_and_the_largest_difference_is_told():
    told = check_numbers(Check("loss", 4), [1.0, 2.0], [1.0, 2.0001], dtype="fp32")
    assert told == "loss of steps 1 to 2 within 0.0001 (largest relative difference 5.0e-05)"


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        ([1.0, 2.0], [1.0, 2.001], "loss of step 2"),
        ([1.0], [float("nan")], "loss of step 1"),
        ([float("nan")], [1.0], "loss of step 1"),
        ([], [1.0], "could be compared"),
    ],
)
def test_other_losses_disagree(ours: list[float], theirs: list[float], says: str):
    with pytest.raises(Disagreement, match=says):
        check_numbers(Check("loss", 4), ours, theirs, dtype="fp32")


def test_only_the_first_steps_are_compared_and_the_peers_mean_with_ours():
    check_numbers(Check("loss", 1), [1.0, 5.0], [1.0, 6.0], dtype="fp32")
    case, task = Case("ppo", dtype="fp32"), {"rows": []}
    ours, theirs = side([]), side([])
    ours.values = {"score": [1.0], "value_loss": [1.0, 2.0, 3.0, 6.0], "policy_loss": [0.0, 0.0, 0.0, -0.4]}
    theirs.values = {"score": [1.0], "value_loss": [3.0], "policy_loss": [-0.1]}
    assert "policy_loss of step 1" in compare(case, task, ours, theirs)
    theirs.values["value_loss"] = [3.01]
    with pytest.raises(Disagreement, match="value_loss"):
        compare(case, task, ours, theirs)


def test_in_bf16_a_sum_that_cancels_is_compared_by_the_size_of_its_terms():
    check = Check("policy_loss", 1, 0.02, terms=0.5)
    assert "within 0.005" in check_numbers(check, [0.0381], [0.0362], dtype="bf16")
    for ours, dtype in ((0.0397, "bf16"), (0.0381, "fp32"), (0.0363, "fp32")):
        with pytest.raises(Disagreement, match="policy_loss of step 1"):
            check_numbers(check, [ours], [0.0362], dtype=dtype)


@pytest.mark.parametrize(
    ("ours", "theirs", "exact", "ours_exact", "says"),
    [
        ([0.6931, 0.6831], [0.6931, 0.6781], [0.6931, 0.6821], [0.6931, 0.6821], None),
        ([0.6931, 0.6931], [0.6931, 0.6781], [0.6931, 0.6821], [0.6931, 0.6821], None),  # 2.75 times as far as the peer
        ([0.6931, 0.7031], [0.6931, 0.6781], [0.6931, 0.6821], [0.6931, 0.6821], "in bf16 is 3.1e-02 from"),
        ([0.6931, 0.6831], [0.6931, 0.6781], [0.6931, 0.6821], [0.6931, 0.6831], "loss of step 2"),
    ],
)  # fmt: skip
def test_sides_that_part_in_bf16_are_compared_in_float32(
    ours: list[float], theirs: list[float], exact: list[float], ours_exact: list[float], says: str | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    asked = []

    def alone(case: Case, task: Any, name: str, log: Path, *, steps: int) -> SideResult:
        asked.append((name, case.dtype, task["case"]["dtype"], steps))
        return side(ours_exact if name == "rlhf" else exact)

    monkeypatch.setattr(driver, "alone", alone)
    case = Case("dpo", dtype="bf16")
    agreement = Agreement(case, {"rows": [], "case": case.to_json(), "forced": False}, ("rlhf", "trl"), tmp_path)
    for _ in range(2):
        if says is None:
            assert "in TRL" in agreement.check([side(ours), side(theirs)])
        else:
            with pytest.raises(Disagreement, match=says):
                agreement.check([side(ours), side(theirs)])
    assert asked == [("rlhf", "fp32", "fp32", 4), ("trl", "fp32", "fp32", 4)], "float32 is asked once"


def test_other_tokens_disagree_even_where_the_losses_are_equal():
    trained_on = [[[5, 6, 7, 8, EOS], [5, 6, 7, 9, 9, 9, EOS]]]
    check_rows([PAIR, OTHER], trained_on)
    trained_on[0][1][3] = 10
    with pytest.raises(Disagreement, match="row 0"):
        compare(Case("dpo"), {"rows": [PAIR, OTHER]}, side([1.0]), side([1.0], trained_on=trained_on))


def test_greedy_completions_are_compared_token_by_token():
    assert "2 prompts" in check_greedy([[3, 4], [5]], [[3, 4], [5]])
    for theirs in ([[3, 4], [6]], [[3], [5]]):
        with pytest.raises(Disagreement, match="1 of 2"):
            check_greedy([[3, 4], [5]], theirs)
    with pytest.raises(Disagreement):
        check_greedy([], [])


# --- ratios -----------------------------------------------------------------------------------------------------------


def test_a_ratio_is_the_median_over_pairs_of_steps():
    rows = [PAIR, OTHER, PAIR]
    ours, theirs = side([], seconds=[1.0, 1.0, 2.0]), side([], seconds=[4.0, 9.0, 10.0])
    theirs.steps[2].peak_mib = 400.0
    figures = summary(Case("dpo", rows=1), rows, ours, theirs)
    assert figures["ratios"] == [4.0, 9.0, 5.0]
    assert figures["ratio"] == 5.0
    assert figures["memory_ratio"] == 0.25
    assert "ratio_one_epoch" not in figures
    assert figures["tokens"][0]["unique"] == 9


def test_the_reference_that_was_asked_before_counts_over_one_epoch():
    rows = [PAIR, OTHER]
    ours, theirs = side([], seconds=[1.0, 1.0]), side([], seconds=[8.0, 8.0])
    ours.notes["reference_seconds"] = 2.0
    figures = summary(Case("dpo", rows=1), rows, ours, theirs)
    assert figures["ratio"] == 8.0
    assert figures["ratio_one_epoch"] == 4.0


def test_where_the_time_goes_is_of_the_timed_steps_alone():
    ours = side([1.0], seconds=[1.0, 3.0])
    ours.warm_up = [Step(9.0, 9.0, 1.0, None, None)]
    # two optimizer steps to one of the comparison; what is told adds up from the beginning
    ours.notes["activities"] = [{"forward": seconds} for seconds in (4.0, 8.0, 8.5, 9.0)] + [
        {"forward": 10.0, "backward": 1.0},
        {"forward": 11.0, "backward": 2.0},
    ]
    assert activities_of(ours) == {"forward": 1.5, "backward": 1.0}


def test_seconds_are_for_each_sampled_token_where_sides_sample_their_own():
    assert per_unit(Step(6.0, 6.0, 0.0, completion_tokens=3)) == 2.0
    ours, theirs = side([], seconds=[1.0], tokens=10), side([], seconds=[8.0], tokens=40)
    assert summary(Case("generate", rows=1), [], ours, theirs)["ratio"] == 2.0


# --- a side and its driver --------------------------------------------------------------------------------------------


@contextmanager
def talking_to(work: Callable[[Meter], None]) -> Iterator[Channel]:
    """The driver's end of a channel whose other end works in a thread."""
    down, up = os.pipe(), os.pipe()
    here, there = Channel(up[0], down[1]), Channel(down[0], up[1])

    def run() -> None:
        with suppress(EOFError):  # the driver has enough
            work(Meter(there))

    side = threading.Thread(target=run)
    side.start()
    yield here
    here.close()
    side.join()
    there.close()


def test_a_side_stands_still_until_it_is_let_go_and_reports_what_it_took():
    taken: list[int] = []

    def work(meter: Meter) -> None:
        meter.begin(greedy=[])
        for step in range(3):
            taken.append(step)
            meter.losses.append(float(step))
            meter.step_done(sequences=[(5, [2, 3])])

    with talking_to(work) as driver:
        ready = driver.receive()
        assert ready["kind"] == "ready"
        assert ready["resident_mib"] > 1
        assert taken == []
        driver.send(do="steps", count=2)
        report = driver.receive()
        assert taken == [0, 1], "the third waits to be let go"
    assert len(report["steps"]) == 2
    assert report["losses"] == [0.0, 1.0]
    assert report["steps"][0]["completion_tokens"] == 5
    assert all({"seconds", "wall_seconds"} <= step.keys() for step in report["steps"])


def test_sizes_are_read_in_mebibytes():
    assert status_mib("VmHWM", "Name:\tpython\nVmHWM:\t    2048 kB\n") == 2.0
    with pytest.raises(LookupError, match="VmPeak"):
        status_mib("VmPeak", "VmHWM: 1 kB")


# --- rows that are kept, and what is written of them ------------------------------------------------------------------


def test_a_row_is_found_again_only_for_the_same_code_and_settings(tmp_path: Path):
    rows, case = Rows(tmp_path), Case("dpo")
    key = row_key("code", case, {"steps": 8})
    rows.keep(case, {"key": key, "ratio": 2.0})
    assert rows.find(case, key) == {"key": key, "ratio": 2.0}
    for other in (row_key("changed", case, {"steps": 8}), row_key("code", case, {"steps": 3})):
        assert rows.find(case, other) is None
    assert rows.find(case) is not None
    assert rows.find(replace(case, threads=2)) is None


def test_every_case_has_a_file_of_its_own():
    cases = [replace(goal.case, dtype=d, threads=t) for goal in GOALS for d in ("bf16", "fp32") for t in (1, 2)]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    points = [point for curve in CURVES.values() for point in curve]
    assert len({point.name for point in points}) == len(points)


def written(tmp_path: Path, row: dict[str, Any]) -> str:
    rows, case = Rows(tmp_path / "rows"), GOALS[2].case
    assert case.method == "dpo"
    rows.keep(case, {"case": case.to_json(), "name": case.name, "code": "now", "date": "2026-01-01", **row})
    peak = {"fp32": 1e11, "bf16": 4e11}
    machine = {
        "peak": peak, "by_shape": {"fp32": {"large": 1e11}}, "copy": 1e10, "copy_into_fresh": 1e9, "versions": {},
        "machine": {"processor": "a processor", "memory": "1 GiB", "system": "Linux", "python": "3.11"},
    }  # fmt: skip
    report.write(
        tmp_path,
        rows,
        code="now",
        machine={"1": machine, "2": machine},
        command="a command",
        note="the other core was busy",
    )
    return (tmp_path / "RESULTS.md").read_text()


MEASURED = {
    "ratio": 16.0, "ratios": [15.0, 16.0, 18.0], "wall_ratio": 15.5, "memory_ratio": 0.2, "ratio_one_epoch": 13.0,
    "seconds": {"rlhf": 0.5, "trl": 8.0}, "peak_mib": {"rlhf": 100.0, "trl": 500.0}, "flop_per_second": 1e11,
    "asserted": "loss of steps 1 to 4", "candidate": "plain", "candidates": {"plain": 8.0},
}  # fmt: skip


def test_the_report_says_which_goal_is_met_and_what_the_references_pass_and_the_machine_leave_of_it(tmp_path: Path):
    text = written(tmp_path, MEASURED)
    line = next(line for line in text.splitlines() if line.startswith("| DPO |"))
    assert ">= 14x | 16.0x" in line
    assert "| 15.5x | **not met** over an epoch, met by the steps alone | 13.0x | 64.0x |" in line, (
        "wall; the reference's pass over one epoch; a quarter of the peak is used"
    )
    assert "| **not met** | 0.500" in line, "0.20 is above 0.15"
    assert "25%" in line
    assert "loss of steps 1 to 4" in text
    assert "- **the other core was busy**" in text
    assert json.loads((tmp_path / "results.json").read_text())["rows"]["dpo-A-bf16-1t-4"]["ratio"] == 16.0
    worse = written(tmp_path, {**MEASURED, "ratio": 13.9, "memory_ratio": 0.1})
    assert next(line for line in worse.splitlines() if line.startswith("| DPO |")).count("**not met**") == 1


@pytest.mark.parametrize("name", ["RESULTS.md", "RESULTS-epyc.md"])
def test_published_ratios_begin_with_what_the_audit_found(name, tmp_path):
    title, caveat, _ = (Path(report.__file__).parents[1] / name).read_text(encoding="utf-8").split("\n\n", 2)
    assert title.startswith("# ")
    assert report.NOT_FASTEST.startswith(caveat)
    assert caveat in written(tmp_path, MEASURED), "the command that writes the page keeps it"


@pytest.mark.parametrize(
    ("value", "goal", "said"),
    [
        (2.48, 2.5, "2.48"),
        (2.5, 2.5, "2.5"),
        (2.52, 2.5, "2.52"),
        (2.4996, 2.5, "2.4996"),
        (2.49999996, 2.5, "2.49999996"),
        (3.14, 2.5, "3.1"),
        (3.14, None, "3.1"),
    ],
)
def test_a_number_is_not_rounded_to_a_goal_that_it_is_not(value, goal, said):
    assert report.beside(value, goal, 1) == said


def test_a_share_of_the_peak_is_not_rounded_to_its_goal():
    case = next(goal.case for goal in GOALS if goal.case.model == "B")
    machine = {str(threads): {"peak": {"fp32": 1e11, "bf16": 4e11}} for threads in (1, 2)}
    table = report.share_table({case.name: {"flop_per_second": 1.996e11}}, machine)
    assert "| >= 50% | 49.9% | **not met** |" in table


def test_the_peer_has_our_settings_of_allocator_and_kernels(monkeypatch):
    for name in allocator.CAPACITIES:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    allocator.forget_kernels()  # as our side does
    ours, its = (driver.environment(side, Case("dpo"), 0, 1) for side in ("rlhf", "trl"))
    assert all(its[name] == ours[name] for name in (allocator.PRIMITIVES, allocator.WRAPPED))
    assert its["MALLOC_TRIM_THRESHOLD_"] == str(allocator.MOST_FREE)
    assert its["MALLOC_MMAP_THRESHOLD_"] == str(allocator.LARGEST_KEPT)


def test_a_goal_that_is_missed_by_little_is_seen_to_be_missed(tmp_path: Path):
    text = written(tmp_path, {**MEASURED, "ratio": 13.98, "memory_ratio": 0.151, "ratio_one_epoch": 13.96})
    line = next(line for line in text.splitlines() if line.startswith("| DPO |"))
    assert ">= 14x | 13.98x (" in line
    assert "| 13.96x |" in line
    assert "| 0.151x (" in line


def test_a_row_that_failed_has_no_ratio_in_the_report(tmp_path: Path):
    line = next(x for x in written(tmp_path, {"error": "the losses differ"}).splitlines() if x.startswith("| DPO |"))
    assert "failed: the losses differ" in line
    assert "x (" not in line


def test_a_curve_shows_the_points_that_were_measured(tmp_path: Path):
    rows = Rows(tmp_path / "rows")
    step = {"seconds": 2.0, "wall_seconds": 2.0, "peak_mib": 300.0, "completion_tokens": None}
    one_side = {"warm_up": [step], "steps": [step]}
    for place, point in enumerate(CURVES["length"]):
        sides = {"rlhf": one_side} | ({"trl": one_side} if place == 0 else {})
        told = {"error": "failed"} if place == 1 else {"sides": sides}
        rows.keep(point, {"case": point.to_json(), "name": point.name, "code": "now", "date": "2026-01-01", **told})
    text = written(tmp_path, MEASURED)
    assert "| 80 | 2.000 | 300 | 242 | 2.000 | 300 |" in text  # 21.1M weights x 12 bytes
    assert "| 160 |" not in text
    assert "| 320 | 2.000 | 300 | 242 | not run |" in text
    assert (tmp_path / "growth_length.svg").read_text().startswith("<?xml")


def test_the_command_line_picks_rows_and_curves():
    picked = command.chosen(command.arguments(["--rows", "dpo", "--model", "A", "--dtype", "fp32", "--threads", "2"]))
    assert [case.name for case in picked] == ["dpo-A-fp32-2t-4"]
    assert len(command.chosen(command.arguments([]))) == 4 * len(GOALS)
    assert command.chosen(command.arguments(["--curves", "vocabulary"])) == list(CURVES["vocabulary"])
    assert {case.dtype for case in command.chosen(command.arguments(["--quick"]))} == {"bf16"}


def test_rows_are_kept_when_what_changes_runs_in_no_step(tmp_path: Path):
    for name in (
        "src/rlhf/losses/dpo.py",
        "src/rlhf/native/decode.c",
        "src/rlhf/cli/generate.py",
        *(f"benchmarks/peer/{n}" for n in MEASURING),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    before = code_hash(tmp_path)
    (tmp_path / "src/rlhf/cli/generate.py").write_text("after")
    assert code_hash(tmp_path) == before
    for name in ("src/rlhf/losses/dpo.py", "src/rlhf/native/decode.c"):
        (tmp_path / name).write_text("after")
        assert code_hash(tmp_path) != before
        before = code_hash(tmp_path)


def test_rooms_that_no_step_runs_through_are_not_imported_by_those_that_do():
    loaded = {
        path.split("/")[0] for path in code_of_modules(("rlhf.training.ppo", "rlhf.training.grpo", "rlhf.training.kto"))
    }
    assert not loaded & set(NOT_MEASURED)
    assert set(NOT_MEASURED) <= {path.name for path in (Path(rlhf.__file__).parent).iterdir()}


def test_collecting_nothing_leaves_the_page_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "BENCH", tmp_path)
    monkeypatch.setattr(command.report, "write", lambda *args, **how: pytest.fail("it was written"))
    with pytest.raises(SystemExit, match=r"RESULTS\.md"):
        command.main(["--collect"])
