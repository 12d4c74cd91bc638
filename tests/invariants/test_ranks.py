"""Two ranks and one process are the same run: parameters, metrics, checkpoints, and steps that are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fixtures import trained_over_ranks as cases
from tests.fixtures.two_ranks import run_over_ranks


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    """A folder of checkpoints, and what each of two ranks found."""
    folder = tmp_path_factory.mktemp("ranks")
    for name in ("sft", "ppo"):
        assert cases.train_with_checkpoints(folder / f"{name}-of-one", name=name, killed_at=7) is None
    found = run_over_ranks(cases.everything, folder, folder=folder)
    assert not isinstance(found[0], BaseException), found[0]
    return folder, found


def furthest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """Largest difference between two sets of parameters, relative to the largest value of each parameter."""
    assert one.keys() == other.keys()
    return max(
        float((value - other[name]).nan_to_num().abs().max() / value.nan_to_num(posinf=0).abs().max().clamp(min=1e-3))
        for name, value in one.items()
    )


@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")
@pytest.mark.parametrize(
    "name", [name for name in cases.QUICK if name != "sft-float32" and not name.endswith("-mixed")]
)
def test_two_ranks_and_one_process_give_the_same_parameters_and_metrics(name, both):
    check_same(cases.train_case(name), *(found[name] for found in both[1]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")
def test_other_trainers_and_settings_are_the_same_over_two_ranks(tmp_path):
    others = [name for name in cases.CASES if name not in cases.QUICK]
    found = run_over_ranks(cases.train_cases, others, folder=tmp_path)
    for name in others:
        check_same(cases.train_case(name), *(of_rank[name] for of_rank in found))


POOLED = ["grpo", "ppo-lora", "trpo", "grpo-moving"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")
def test_engines_outside_that_rank_0_asks_for_all_give_the_same_run(tmp_path):
    found = run_over_ranks(cases.train_with_pool, POOLED, folder=tmp_path)
    for result in found:
        assert not isinstance(result, BaseException), result
    for name in POOLED:
        check_same(cases.train_case(name), *(of_rank[name] for of_rank in found))


def check_same(one: Any, main: Any, other: Any) -> None:
    """Weights and events of one process, of rank 0 and of rank 1."""
    weights, events = one
    assert furthest(weights, main[0]) < 1e-9
    assert furthest(main[0], other[0]) == 0, "ranks hold different weights"
    assert other[1] == [], "rank 1 logged something"
    assert [(event["event"], event.get("step")) for event in events] == [(e["event"], e.get("step")) for e in main[1]]
    for mine, theirs in zip(events, main[1], strict=True):
        if "metrics" in mine:
            assert numbers(theirs["metrics"]) == pytest.approx(
                numbers(mine["metrics"]), rel=1e-8, abs=1e-10, nan_ok=True
            )


def numbers(metrics: dict[str, float | None]) -> dict[str, float]:
    """Metrics with NaN where the log has null."""
    return {name: float("nan") if value is None else value for name, value in metrics.items()}


def test_the_first_step_in_float32_has_the_same_loss_and_gradient(both):
    (_, events), (_, logged) = cases.train_case("sft-float32"), both[1][0]["sft-float32"]
    for name in ("loss/train", "grad_norm"):
        assert logged[0]["metrics"][name] == pytest.approx(events[0]["metrics"][name], rel=1e-5)


@pytest.mark.parametrize("name", ["sft-mixed", "sft-vocab-mixed"])
def test_weights_gathered_in_bfloat16_are_kept_in_float32(name, both):
    (_, events), (weights, logged) = cases.train_case("sft-float32"), both[1][0][name]
    assert {value.dtype for value in weights.values()} == {torch.float32}
    mine, theirs = (each[0]["metrics"]["loss/train"] for each in (events, logged))
    assert theirs != mine
    assert theirs == pytest.approx(mine, rel=1e-2)


def test_a_step_that_is_not_finite_is_left_out_by_all_ranks(both):
    alarms = [event for event in both[1][0]["sft-not-finite"][1] if event["event"] == "alarm"]
    assert alarms


@pytest.mark.parametrize("name", ["sft", "ppo"])
def test_a_killed_run_goes_on_with_the_same_bits(name, both):
    found = both[1][0]
    resumed = found[f"{name} resumed"]
    assert all(torch.equal(value, resumed[key]) for key, value in found[f"{name} uninterrupted"].items())


@pytest.mark.parametrize("name", ["sft", "ppo"])
def test_checkpoints_of_one_and_of_two_ranks_are_interchangeable(name, both, tmp_path):
    folder, (found, _) = both
    uninterrupted = cases.train_with_checkpoints(tmp_path, name=name)
    assert furthest(uninterrupted, found[f"{name} from one"]) < 1e-9
    assert furthest(uninterrupted, cases.train_with_checkpoints(folder / f"{name}-of-two", name=name)) < 1e-9


@pytest.mark.slow
def test_a_guard_brings_the_last_good_state_back_on_all_ranks(tmp_path):
    mine = cases.train_restoring(tmp_path / "one")
    theirs, others = run_over_ranks(cases.train_restoring, tmp_path / "two", folder=tmp_path)
    assert others == [], "rank 1 logged something"
    assert [alarm["action"] for alarm in mine] == [alarm["action"] for alarm in theirs] == ["restore", "stop"]
    for key in ("step", "raised_at", "value"):
        assert [alarm[key] for alarm in theirs] == pytest.approx([alarm[key] for alarm in mine], rel=1e-5)


@pytest.mark.slow
def test_checkpoints_are_cut_anew_for_any_number_of_ranks(tmp_path):
    uninterrupted = cases.train_with_checkpoints(tmp_path / "whole", name="ppo")
    assert run_over_ranks(cases.train_ppo, tmp_path / "run", 5, folder=tmp_path, size=4) == [None] * 4
    names = [sorted(path.name for path in checkpoint.glob("shard-*")) for checkpoint in (tmp_path / "run").iterdir()]
    assert all(len(shards) == 4 for shards in names)
    assert run_over_ranks(cases.train_ppo, tmp_path / "run", 8, folder=tmp_path, size=2) == [None] * 2
    found = run_over_ranks(cases.train_ppo, tmp_path / "run", None, folder=tmp_path, size=4)
    assert all(furthest(uninterrupted, weights) < 1e-9 for weights in found)


@pytest.mark.slow
@pytest.mark.parametrize("names", [list(cases.HYBRID)[::2], list(cases.HYBRID)[1::2]], ids=" ".join)
def test_replicas_in_shards_give_the_same_parameters_and_go_on_from_a_checkpoint(names, tmp_path):
    found = run_over_ranks(cases.train_hybrid, tmp_path / "hybrid", names, folder=tmp_path, size=4)
    for name in names:
        uninterrupted = cases.train_with_checkpoints(tmp_path / name, name=name, **cases.HYBRID[name])
        assert all(furthest(uninterrupted, of_rank[name]) < 1e-9 for of_rank in found)
