"""Which prompts are asked, by how often the policy has solved them: shares by hand, nothing dropped, the same bits after a resume."""

from __future__ import annotations

import json
import math

import pytest

from rlhf.config.curriculum import CurriculumConfig
from rlhf.config.grpo_settings import GRPOConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import CheckpointError, ConfigError
from rlhf.training.curriculum import Curriculum
from rlhf.training.metrics import Metrics
from tests.fixtures import toy


def built(count: int, **settings: float) -> Curriculum:
    prompts = [Prompt(f"p{place}", [1], "") for place in range(count)]
    return Curriculum(prompts, CurriculumConfig.of(settings), seed=3)


def visit(curriculum: Curriculum, **scores: list[float]) -> None:
    curriculum.record([Prompt(name, [1], "") for name in scores], scores)


def run(curriculum: Curriculum, rollouts: int, count: int, rate_of: list[float], *, start: int = 0) -> list[list[int]]:
    """What is asked where each prompt passes with its own rate, of ten completions."""
    asked = []
    for number in range(start, start + rollouts):
        taken = curriculum.take(number * count, count)
        asked.append(taken)
        visit(curriculum, **{f"p{i}": [float(k < round(10 * rate_of[i])) for k in range(10)] for i in taken})
    return asked


def test_bands_by_hand() -> None:
    curriculum = built(5)
    visit(curriculum, p0=[0.0] * 8, p1=[1.0] + [0.0] * 7, p2=[1.0] * 8, p3=[0.5, 0.99, 1.0, 7.0])
    # rates 0, 1/8, 1 and 1/2: a score of at least 1 has passed
    assert [curriculum.band(place) for place in range(5)] == ["below", "inside", "above", "inside", "new"]
    metrics = Metrics()
    curriculum.measure(metrics)
    expected = {
        "curriculum/new_frac": 0.2, "curriculum/below_frac": 0.2, "curriculum/inside_frac": 0.4, "curriculum/above_frac": 0.2,
        "curriculum/pass_rate": (0 + 0.125 + 1 + 0.5) / 4,
    }  # fmt: skip
    assert metrics.result() == expected


def test_the_one_success_of_a_group_keeps_its_prompt_inside() -> None:
    # what a filter on each completion's siblings without itself would take for a group that teaches nothing
    curriculum = built(2)
    visit(curriculum, p0=[1.0, *[0.0] * 7], p1=[0.0, *[1.0] * 7])
    assert [curriculum.band(place) for place in (0, 1)] == ["inside", "inside"]


def test_bounds_belong_to_the_band() -> None:
    curriculum = built(3, floor=0.25, ceiling=0.75)
    visit(curriculum, p0=[1.0, 0.0, 0.0, 0.0], p1=[1.0, 1.0, 1.0, 0.0], p2=[1.0])
    assert [curriculum.band(place) for place in range(3)] == ["inside", "inside", "above"]


def test_the_window_forgets() -> None:
    curriculum = built(1, window=2)
    for score in (0.0, 0.0, 1.0):
        visit(curriculum, p0=[score])
    assert curriculum.pass_rate(0) == 0.5
    visit(curriculum, p0=[1.0])
    assert curriculum.pass_rate(0) == 1.0


def test_shares_are_exact_and_no_prompt_is_dropped() -> None:
    rates = [0.0] * 10 + [0.5] * 10 + [1.0] * 10
    curriculum = built(30, outside_share=0.25, new_share=0.5)
    run(curriculum, 30, 3, rates)  # until all were asked
    assert "new" not in {curriculum.band(place) for place in range(30)}
    asked = run(curriculum, 80, 3, rates, start=30)
    flat = [place for rollout in asked for place in rollout]
    outside = [place for place in flat if rates[place] != 0.5]
    assert len(outside) == 60  # a quarter of 240, though a rollout has 3
    assert {flat.count(place) for place in range(30) if rates[place] != 0.5} == {3}  # 20 prompts share 60 visits
    assert {flat.count(place) for place in range(10, 20)} <= {17, 18, 19}  # ten share 180, whoever waited longest first
    assert all(len(set(rollout)) == 3 for rollout in asked)


def test_a_prompt_comes_back_as_soon_as_it_is_solved_now_and_then() -> None:
    rates = [0.5] * 9 + [0.0]
    curriculum = built(10, window=1)
    run(curriculum, 10, 4, rates)
    assert curriculum.band(9) == "below"
    rates[9] = 0.5
    run(curriculum, 3, 4, rates, start=10)  # a quarter of 12 is 3: it is asked at the latest in the first of them
    assert curriculum.band(9) == "inside"


def test_slots_that_a_band_cannot_fill_go_to_the_others() -> None:
    everything_known = built(6)
    assert {len(set(rollout)) for rollout in run(everything_known, 20, 4, [1.0] * 6)} == {4}
    all_inside = built(6)
    assert {len(set(rollout)) for rollout in run(all_inside, 20, 4, [0.5] * 6)} == {4}
    few = built(3)
    assert sorted(few.take(0, 7)) == [0, 0, 0, 1, 1, 2, 2] or all(few.take(0, 7).count(i) >= 2 for i in range(3))


def test_new_prompts_come_first_until_there_are_none() -> None:
    curriculum = built(8, new_share=0.5)
    asked = run(curriculum, 6, 4, [0.5] * 8)
    assert len(set(asked[0])) == 4  # nothing is inside the band yet
    assert [len(set(asked[n]) - {i for before in asked[:n] for i in before}) for n in range(1, 4)] == [2, 2, 0]


def test_a_prompt_without_scores_was_asked_and_stays_new() -> None:
    curriculum = built(4)
    curriculum.record([Prompt("p0", [1], "")], {})
    assert (curriculum.band(0), math.isnan(curriculum.pass_rate(0))) == ("new", True)
    assert 0 not in curriculum.take(0, 3)  # the others have waited longer
    assert 0 in curriculum.take(0, 4)


def test_what_comes_next_depends_only_on_what_was_measured() -> None:
    rates = [0.0, 0.2, 0.5, 0.9, 1.0, 0.1, 0.0]
    whole = built(7)
    expected = run(whole, 12, 3, rates)
    first = built(7)
    assert run(first, 5, 3, rates) == expected[:5]
    first.take(99, 5)  # asking changes nothing
    resumed = built(7)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert run(resumed, 7, 3, rates, start=5) == expected[5:]
    assert run(built(7), 12, 3, rates) == expected
    with pytest.raises(CheckpointError, match="7 prompts"):
        built(8).load_state_dict(first.state_dict())


@pytest.mark.parametrize(
    ("settings", "key"),
    [({"floor": 0.9, "ceiling": 0.1}, "floor"), ({"outside_share": 0.0}, "outside_share"), ({"new_share": 0.9}, "outside_share"),
     ({"window": 0}, "window"), ({"floot": 0.1}, "floot")],
)  # fmt: skip
def test_settings_that_would_drop_prompts_or_say_nothing_are_refused(settings: dict[str, float], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        GRPOConfig.of({"curriculum": settings})


def test_a_trainer_asks_by_it_and_says_so() -> None:
    trainer = toy.build_trainer("grpo", rollouts=4, curriculum={"success_score": 0.5})
    trainer.train()
    assert trainer.curriculum.num_visits == 4
    metrics = Metrics()
    trainer.collect(4, metrics)
    shares = [metrics.result()[f"curriculum/{name}_frac"] for name in ("new", "below", "inside", "above")]
    assert sum(shares) == pytest.approx(1.0)


def test_the_shaped_score_decides_nothing() -> None:
    # every completion scores 1 and is cut, which the penalty makes 0: it has passed all the same
    trainer = toy.build_trainer("grpo", scorer=toy.Constant(1.0), missing_eos_penalty=1.0, rollouts=1, curriculum={})
    trainer.train()
    assert {trainer.curriculum.band(place) for place in range(8)} == {"new", "above"}


def test_prompts_under_way_wait_behind_the_others() -> None:
    curriculum = Curriculum(toy.prompts(8), CurriculumConfig(), seed=0)
    first = curriculum.take(0, 4)
    second = curriculum.take(4, 4, under_way=first)
    assert sorted(first + second) == list(range(8)), "all are new, and none comes twice before all came"
    assert curriculum.take(8, 1, under_way=set(range(8)) - {6}) == [6]


def test_without_it_a_checkpoint_holds_nothing_of_it() -> None:
    assert "curriculum" not in toy.build_trainer("grpo").state_dict()
    with pytest.raises(ConfigError, match="curriculum"):
        toy.build_trainer("distill", curriculum={})
