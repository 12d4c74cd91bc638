"""Exactly what is meant to learn changes, and nothing else by a single bit: references, teachers and judges stay what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlhf.models.reward import RewardModel
from rlhf.rewards.learned import LearnedReward
from rlhf.training.loop import Loop
from rlhf.training.metrics import Metrics
from tests.fixtures import toy

pytestmark = pytest.mark.numeric

ignore_conv1d = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # GPT-2's layers lie the other way
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in toy.NAMES},
    "reward ensemble": ("reward", {"num_models": 2}),
    "ppo, critic on the policy": ("ppo", {"shared_value": True}),
}
MEASURED_AT_THE_END = {"reward": {"model.mean", "model.std"}}
"""Buffers that a run sets from its rows after the last step."""
FIRST_STEP_LEARNS = {"vapo": ("value",), "trpo": ("policy",)}
"""Modules, where it is not all of them: VAPO's critic learns first by itself, TRPO's two take turns."""


def build(name: str, **settings: Any) -> Any:
    """With a learned reward as the judge, where a method asks for one."""
    judge = LearnedReward(RewardModel.from_policy(toy.build_policy(seed=7), seed=7))
    return toy.build_trainer(name, scorer=judge, **settings)


def tensors_within(thing: Any, place: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Tensor]]:
    """Every parameter and buffer that an object can reach through attributes, lists and tables, by where it was found."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | bytes | int | float | type(None)):
        return
    seen.add(id(thing))
    if isinstance(thing, nn.Module):
        for name, tensor in [*thing.named_parameters(), *thing.named_buffers()]:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield f"{place}.{name}", tensor
    if isinstance(thing, dict):
        parts = [(str(key), value) for key, value in thing.items()]
    elif isinstance(thing, list | tuple):
        parts = [(str(number), value) for number, value in enumerate(thing)]
    else:
        ours = type(thing).__module__.startswith("rlhf.")
        parts = list(vars(thing).items()) if ours and hasattr(thing, "__dict__") else []
    for name, value in parts:
        yield from tensors_within(value, f"{place}.{name}" if place else name, seen)


def parted(trainer: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What a trainer says that it trains, and whatever else it holds, by name."""
    trained = {
        f"{name}.{key}": p
        for name, module in toy.modules_of(trainer).items()
        for key, p in module.named_parameters()
        if p.requires_grad
    }
    ids = {id(p) for p in trained.values()}
    held = {place: tensor for place, tensor in tensors_within(trainer) if id(tensor) not in ids}
    return trained, held


def copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def take_one_step(trainer: Any) -> None:
    loop = Loop(trainer, trainer.config)
    experience = trainer.collect(0, Metrics())
    loop._step(next(iter(trainer.steps(0, experience))))


def changed(tensors: dict[str, Tensor], before: dict[str, Tensor]) -> set[str]:
    return {name for name, tensor in tensors.items() if not torch.equal(tensor, before[name])}


@pytest.mark.parametrize("variant", [*VARIANTS, *toy.GROUPS])
def test_a_step_changes_all_that_learns_and_nothing_else(variant):
    name, settings = VARIANTS.get(variant, (variant, {}))
    trainer = build(name, **settings)
    trained, held = parted(trainer)
    weights, others = copies(trained), copies(held)
    take_one_step(trainer)
    learns = FIRST_STEP_LEARNS.get(name, tuple(toy.modules_of(trainer)))
    assert changed(trained, weights) == {key for key in trained if key.startswith(tuple(f"{part}." for part in learns))}
    assert changed(held, others) == set()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_whole_run_changes_all_that_learns_and_leaves_references_and_judges_as_they_were(variant):
    name, settings = VARIANTS[variant]
    trainer = build(name, held_out=True, **settings)
    trained, held = parted(trainer)
    weights, others = copies(trained), copies(held)
    for part in ("reference", "teacher", "scorer"):
        actual = getattr(trainer, part, None)
        if isinstance(actual, nn.Module | LearnedReward) and actual is not getattr(trainer, "policy", None):
            assert any(place.startswith(f"{part}.") for place in held), f"the {part} is among what is looked at"
    trainer.train()
    assert changed(trained, weights) == trained.keys()
    assert changed(held, others) == MEASURED_AT_THE_END.get(name, set())
    assert [place for place, tensor in held.items() if tensor.grad is not None] == [], (
        "no gradient piles up there either"
    )


@ignore_conv1d
@pytest.mark.parametrize("name", [name for name in toy.NAMES if name in toy.TAKES_LORA])
def test_with_an_adapter_only_the_adapter_learns(name):
    trainer = build(name, lora=True)
    trained, held = parted(trainer)
    policy = trainer.policy.model
    adapter = {f"policy.{key}" for key, _ in policy.named_parameters() if "lora_" in key}
    assert {key for key in trained if key.startswith("policy.")} == adapter
    weights, others = copies(trained), copies(held)
    trainer.train()
    assert changed(trained, weights) >= adapter
    assert changed(held, others) == set(), "the base's weights above all"


def test_the_look_finds_what_is_hidden_inside_others():
    trainer = build("ppo")
    places = [place for place, _ in tensors_within(trainer)]
    assert {"policy", "value_model", "reference"} <= {place.split(".")[0] for place in places}
    assert any(place.startswith("collector.scorer") for place in places)
