from __future__ import annotations

import gzip
import json
import time

import pytest
import torch

from rlhf import activity
from rlhf.training.profile import PROFILE_FILE, TRACE_FILE, Profile, profile_table, profiled
from tests.fixtures import toy
from tests.fixtures.overlap import in_turn


def weights_after(kind, *, folder=None, listen=True):
    """Weights of a finished run, and its profile."""
    trainer = toy.build_trainer(kind)
    if not listen:
        trainer.train()
        return weights(trainer), None
    with profiled(folder) as profile:
        trainer.train()
    return weights(trainer), profile


def weights(trainer):
    return [p.detach().clone() for module in trainer.modules() for p in module.module.parameters()]


@pytest.mark.parametrize("kind", ["sft", "dpo", "ppo"])
def test_a_run_that_is_measured_and_traced_ends_with_the_same_bits(kind, tmp_path):
    plain, _ = weights_after(kind, listen=False)
    measured, _ = weights_after(kind, folder=tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(plain, measured, strict=True))


@pytest.mark.parametrize("kind", ["sft", "ppo"])
def test_activities_add_up_to_the_time_of_the_loop(kind, monkeypatch):
    trainer = toy.build_trainer(kind)
    looks = []

    def ticking(profile):  # a second of each clock passes from look to look, so that no busy machine can make this fail
        looks.append(float(len(looks)))
        return looks[-1], 2 * looks[-1]

    monkeypatch.setattr(Profile, "_clocks", ticking)
    with profiled(None) as profile:
        trainer.train()
    assert sum(spent.cpu_seconds for spent in profile.spent.values()) == looks[-1] - looks[0] > 0
    assert sum(spent.wall_seconds for spent in profile.spent.values()) == 2 * (looks[-1] - looks[0])
    document = profile.as_dict()
    assert document["cpu_seconds"] == sum(part["cpu_seconds"] for part in document["activities"].values())


def test_a_policy_run_shows_what_it_samples_judges_compares_and_learns():
    _, profile = weights_after("ppo")
    wanted = {"rollout prefill", "rollout decode", "reward", "reference", "scoring", "forward", "backward", "optimizer"}
    assert wanted <= set(profile.spent)
    steps = profile.steps
    assert profile.spent["optimizer"].count == steps
    assert profile.spent["forward"].tokens == profile.spent["backward"].tokens > 0
    assert profile.spent["reference"].tokens > profile.spent["rollout decode"].tokens > 0


def test_what_goes_into_a_sampler_beside_is_an_activity_of_its_own_and_has_no_rate():
    trainer = in_turn(toy.build_trainer("grpo", async_rollouts={"max_staleness": 1}, rollouts=3))
    with profiled(None) as profile:
        trainer.train()
    document = profile.as_dict()
    activities = document["activities"]
    assert activities["sampler wait"]["count"] == 2 * 3, "each rollout is begun and waited for"
    assert activities["sampler wait"]["tokens_per_second"] is None
    assert "rollout decode" not in activities, "nothing was drawn here"
    remark = "(sampled in another process, whose processor seconds are in no line)"
    assert remark in profile_table(document)
    assert remark not in profile_table(weights_after("grpo")[1].as_dict())


def test_an_activity_inside_another_interrupts_it():
    profile = Profile()
    with activity.heard_by(profile), activity.training_loop("toy"):
        with activity.doing("data"):
            burn(0.02)
            with activity.doing("reward", tokens=3):
                burn(0.05)
        burn(0.02)
    spent = profile.spent
    assert spent["reward"].cpu_seconds >= 0.05
    assert spent["data"].cpu_seconds < spent["reward"].cpu_seconds
    assert spent["other"].cpu_seconds >= 0.02
    assert spent["reward"].tokens == 3


def test_nothing_interrupts_an_evaluation():
    profile = Profile()
    with activity.heard_by(profile), activity.training_loop("toy"), activity.doing("evaluation"):
        with activity.doing("reward", tokens=3):
            burn(0.03)
        activity.count_tokens("reward", 5)
    assert profile.spent["evaluation"].cpu_seconds >= 0.03
    assert "reward" not in profile.spent


def test_what_is_made_one_by_one_belongs_to_its_activity_and_what_is_done_with_it_does_not():
    def slowly():
        for item in range(3):
            burn(0.02)
            yield item

    profile = Profile()
    with activity.heard_by(profile), activity.training_loop("toy"):
        actual = []
        for item in activity.doing_each("data", slowly()):
            burn(0.01)
            actual.append(item)
    assert actual == [0, 1, 2]
    assert profile.spent["data"].cpu_seconds >= 0.06
    assert profile.spent["other"].cpu_seconds >= 0.03


def test_without_a_listener_nothing_is_wrapped():
    items = iter([1, 2])
    assert activity.doing_each("data", items) is items
    assert activity.doing("forward") is activity.doing("backward")


def test_figures_and_a_trace_are_written_beside_the_model(tmp_path):
    _, profile = weights_after("sft", folder=tmp_path)
    written = json.loads((tmp_path / PROFILE_FILE).read_text())
    assert written == json.loads(json.dumps(profile.as_dict()))
    with gzip.open(tmp_path / TRACE_FILE, "rt") as file:
        events = json.load(file)["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"forward", "backward", "optimizer"} <= names
    assert written["traced"]["wall_seconds"] > 0
    # what was traced is in no activity: its steps are not counted either
    assert written["steps"] < toy.build_trainer("sft").num_phases


def test_the_table_names_every_activity_and_its_share():
    _, profile = weights_after("sft")
    lines = profile_table(profile.as_dict())
    text = "\n".join(lines)
    assert "backward" in text
    assert "tokens/s" in lines[0]
    assert "100.0\u202f%" in lines[-1]


def test_a_loop_that_fails_still_says_where_its_time_went(tmp_path):
    def fail():
        with activity.heard_by(Profile(tmp_path)), activity.training_loop("toy"), activity.doing("forward"):
            burn(0.01)
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    assert json.loads((tmp_path / PROFILE_FILE).read_text())["activities"]["forward"]["cpu_seconds"] >= 0.01
    with activity.heard_by(Profile()):
        pass


def burn(seconds):
    """Keep the processor busy."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
