"""Settings of the reward `judge`: what is refused, what a resumed run may change, and what is counted before anything is asked."""

from __future__ import annotations

import pytest

from rlhf.config.judge_requests import judge_requests
from rlhf.config.judge_reward import JudgeRewardConfig
from rlhf.config.stages import BY_KIND
from rlhf.config.training import FREE_TO_CHANGE
from rlhf.errors import ConfigError

JUDGE = {"type": "endpoint", "url": "http://127.0.0.1:9/v1", "model": "m"}
PRICED = {**JUDGE, "input_price": 1.0, "output_price": 10.0, "max_tokens": 100}
LIMITS = {
    "max_cost": 3,
    "input_price": 1,
    "output_price": 2,
    "retries": 9,
    "requests_per_minute": 5,
    "cache": "v.jsonl",
}


def stage(kind="grpo", **settings):
    reward = settings.pop("reward", {})
    reward = reward if "principles" in reward else {"kind": "judge", "judge": JUDGE, **reward}
    base = {"kind": kind, "model": {"path": "embedded"}, "prompts": "p.jsonl", "reward": reward}
    sizes = {"group_size": 4, "prompts_per_rollout": 16, "rollouts": 10, "minibatch_size": 64}
    return BY_KIND[kind].of({**base, **({} if kind == "best_of_n" else sizes), **settings})


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"orders": 2}, "orders"),
        ({"opponents": 4}, "opponents"),
        ({"mode": "pairwise", "opponents": 3}, "even"),
        ({"mode": "pairwise", "orders": 3}, "orders"),
        ({"mode": "group_ranks", "column": "answer"}, "column"),
        ({"mode": "pairwise", "column": "answer", "opponents": 4}, "opponents"),
        ({"score_range": [1, 0]}, "score_range"),
        ({"rubric": []}, "rubric"),
        ({"rubric": [{"name": "a", "text": "?"}, {"name": "a", "text": "!"}]}, "own"),
        ({"rubric": [{"name": "unparsed", "text": "?"}]}, "unparsed"),
        ({"rubric": [{"name": "a", "text": "?", "scale": [5, 1]}]}, "scale"),
        ({"rubric": [{"name": "a", "text": "?", "weight": 0}]}, "weight"),
        ({"judge": {**JUDGE, "grade_template": "mine.txt"}, "rubric": [{"name": "a", "text": "?"}]}, "grade_template"),
        ({"judge": "longer", "rubric": [{"name": "a", "text": "?"}]}, "rubric"),
        ({"judge": {"type": "jury", "members": [JUDGE, "longer"]}, "mode": "group_ranks"}, "function"),
        ({"max_requests": 0}, "max_requests"),
        ({"rubric": [{"name": "a", "text": "  "}]}, "text"),
        ({"rubric": [{"name": "a", "text": "?", "scale": [0, 1e12]}]}, "scale"),
        (
            {"rubric": [{"name": "a", "text": "?", "weight": 1e308}, {"name": "b", "text": "?", "weight": 1e308}]},
            "weights",
        ),
        ({"score_range": [-1e308, 1e308]}, "score_range"),
    ],
)
def test_what_can_t_be_is_refused_by_name(settings, key):
    with pytest.raises(ConfigError, match=key):
        JudgeRewardConfig(**{"judge": JUDGE, **settings})


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"eval_prompts": "e.jsonl"}, "evaluation.samples"),
        ({"eval_prompts": "e.jsonl", "evaluation": {"samples": 2}, "judge": "rules"}, "held-out judge"),
        ({"curriculum": {}}, "curriculum"),
    ],
)
def test_a_reward_that_compares_siblings_needs_them(settings, key):
    with pytest.raises(ConfigError, match=key):
        stage(reward={"mode": "group_ranks"}, **settings)
    stage(reward={"mode": "points"}, **settings)
    stage(reward={"mode": "pairwise", "column": "answer"}, **settings)
    with pytest.raises(ConfigError, match="group_size"):
        stage("ppo", reward={"mode": "group_ranks"}, group_size=1, minibatch_size=16)
    with pytest.raises(ConfigError, match="num_samples"):
        stage("best_of_n", reward={"mode": "pairwise"}, num_samples=1)


def test_an_evaluation_takes_no_judge_that_compares_siblings():
    judge = {"kind": "judge", "judge": JUDGE, "mode": "group_ranks"}
    tree = {"kind": "evaluate", "policy": {"path": "a"}, "baseline": {"path": "b"}, "prompts": "p.jsonl"}
    with pytest.raises(ConfigError, match="group_ranks"):
        BY_KIND["evaluate"].of({**tree, "judge": judge})
    BY_KIND["evaluate"].of({**tree, "judge": {**judge, "mode": "points"}})


def in_constitution(reward):
    return {"kind": "constitution", "principles": [{"name": "a", "judge": reward}]}


@pytest.mark.parametrize("wrap", [lambda reward: reward, in_constitution])
def test_limits_prices_and_retries_are_free_to_change_and_nothing_else_is(wrap):
    def key_of(**reward):
        actual = stage(reward=wrap({"kind": "judge", "judge": JUDGE, **reward}))
        return actual.model_dump(mode="json", exclude=FREE_TO_CHANGE)["reward"]

    assert key_of(max_requests=5) == key_of()
    assert key_of(judge={**JUDGE, **LIMITS}) == key_of()
    assert key_of(judge={**JUDGE, "model": "n"}) != key_of()
    assert key_of(rubric=[{"name": "a", "text": "?"}]) != key_of()
    assert key_of(score_range=[0, 2]) != key_of()


def test_a_settings_file_that_a_run_wrote_is_read_again():
    actual = stage(reward={"mode": "pairwise", "opponents": "all", "orders": 1, "rubric": [{"name": "a", "text": "?"}]})
    assert BY_KIND["grpo"].of(actual.model_dump(mode="json")) == actual


@pytest.mark.parametrize(
    ("reward", "of_rollout"),
    [
        ({}, 64),  # 16 prompts of 4
        ({"mode": "group_ranks"}, 16),
        ({"mode": "group_ranks", "orders": 3}, 48),
        ({"mode": "pairwise"}, 128),  # a ring of 4 pairs in 2 orders
        ({"mode": "pairwise", "opponents": "all", "orders": 1}, 96),  # 6 pairs in one
        ({"mode": "pairwise", "column": "answer"}, 128),
        ({"judge": {"type": "jury", "members": [JUDGE, JUDGE]}}, 64),
    ],
)
def test_requests_are_counted_by_mode(reward, of_rollout):
    (actual,) = judge_requests(stage(reward=reward))
    judges = 2 if "judge" in reward else 1
    assert (actual.of_rollout, actual.judges, actual.total) == (of_rollout, judges, judges * of_rollout * 10)
    assert actual.cost is None


def test_held_out_prompts_and_best_of_n_are_counted_too():
    (actual,) = judge_requests(stage(eval_prompts="e.jsonl", evaluation={"limit": 20}, eval_every=5), num_held_out=100)
    assert (actual.of_evaluation, actual.evaluations, actual.total) == (20, 2, 640 + 40)
    (actual,) = judge_requests(stage(eval_prompts="e.jsonl"))
    assert actual.of_evaluation is None
    (actual,) = judge_requests(
        stage("best_of_n", num_samples=8, limit=30, reward={"mode": "group_ranks"}), num_prompts=50
    )
    assert actual.total == 30
    (actual,) = judge_requests(stage("best_of_n", num_samples=8))
    assert actual.total is None


def test_the_price_is_that_of_the_longest_answers_and_a_limit_below_the_need_is_told():
    (actual,) = judge_requests(
        stage(reward={"judge": PRICED, "max_requests": 200}, sampling={"max_new_tokens": 50}), prompt_tokens=100
    )
    # 250 of the prompt's own, 100, and one completion of 50 at a dollar a million; 100 answered at 10
    assert actual.price == pytest.approx((400 * 1 + 100 * 10) / 1e6)
    assert actual.cost == pytest.approx(640 * 1400 / 1e6)
    assert actual.affordable_rollouts == 3
    assert "200" in actual.limit_sentence()
    (actual,) = judge_requests(stage(reward={"judge": PRICED, "max_requests": 640}))
    assert actual.limit_sentence() == ""


def test_a_function_that_compares_is_asked_without_requests():
    (actual,) = judge_requests(stage(reward={"judge": "longer", "mode": "pairwise"}))
    assert (actual.judges, actual.total) == (0, 0)
    assert "without requests" in actual.sentence()


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        ("judge", "{type: endpoint, url: 'http://127.0.0.1:9/v1', model: m, max_cots: 1}", "max_cots.*max_cost"),
        ("judge", "{type: endpoint, url: 'http://127.0.0.1:9/v1', model: m, retries: many}", "retries"),
        ("rubric", "criteria: [{name: a, text: why, wieght: 2}]", r"criteria\.0\.wieght.*weight"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_the_file_and_its_key(key, text, wanted, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"{key}: .*mine\.yaml.*{wanted}"):
        JudgeRewardConfig.of({"judge": JUDGE, key: str(file)})
