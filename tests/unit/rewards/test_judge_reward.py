"""The reward `judge` against a loopback endpoint: what it gives, keeps, counts and refuses."""

from __future__ import annotations

import json
import math

import pytest

from rlhf.config.judge_reward import JudgeRewardConfig
from rlhf.config.rewards import RewardSpecs
from rlhf.data.contracts import Prompt
from rlhf.errors import BudgetError, ConfigError, InterruptedRun, RewardError
from rlhf.rewards.factory import build_reward
from rlhf.rewards.judge_reward import RECORD, JudgeReward
from rlhf.rewards.types import TextCompletion, ask_scorer
from tests.unit.rewards.pairwise.endpoint import chat, judging, longer
from tests.unit.rewards.servers import says, serving

PRICES = {"input_price": 1_000.0, "output_price": 10_000.0}  # an answer costs 100 / 1,000 + 10 / 100 = 0.2 dollars


def settings_at(url, **settings):
    judge = {"type": "endpoint", "url": url, "model": "m", "retries": 0, "concurrency": 1, **settings.pop("judge", {})}
    return JudgeRewardConfig(judge=judge, **settings)


def asked(*texts, groups=1):
    prompts = [Prompt(f"p{number}", [], f"q{number}") for number in range(groups) for _ in texts]
    said = [TextCompletion(text, sample=place) for _ in range(groups) for place, text in enumerate(texts)]
    return prompts, said


def test_grades_by_criteria_become_a_reward_in_its_range_and_metrics():
    answer = says(chat("Fine.\nright: [[3]]\nkind: [[10]]"))
    rubric = [{"name": "right", "text": "Is it?", "scale": [0, 4], "weight": 3}, {"name": "kind", "text": "Is it?"}]
    with serving(answer, path="/v1") as service:
        scorer = JudgeReward(settings_at(service.url, rubric=rubric, score_range=[-1, 1]))
        actual = ask_scorer(scorer, *asked("x", "y"))
    share = (3 * 0.75 + 1.0) / 4
    assert actual.scores == pytest.approx([2 * share - 1] * 2)
    assert actual.per_component["judge/right"] == [3.0, 3.0]
    assert actual.per_component["judge/kind"] == [10.0, 10.0]
    assert "right (from 0 to 4): Is it?" in service.asked[0]["messages"][0]["content"]


def test_an_answer_that_can_t_be_read_is_no_score_and_never_0(tmp_path):
    acts = [says(chat("[[5]]")), says(chat("I can't say.")), says(chat("[[10]]"))]
    with serving(*acts, path="/v1") as service:
        scorer = JudgeReward(settings_at(service.url), folder=tmp_path, on_error="report")
        actual = ask_scorer(scorer, *asked("a", "b", "c"))
        assert actual.scores[0] == pytest.approx(4 / 9)
        assert math.isnan(actual.scores[1])
        assert "no grade" in actual.errors[1]
        assert actual.per_component["judge/unparsed"] == [0.0, 1.0, 0.0]
        with pytest.raises(RewardError, match="no grade"):
            ask_scorer(JudgeReward(settings_at(service.url), folder=tmp_path), *asked("a", "b", "c"))
        assert len(service.asked) == 3, "the second one asked nothing again"
    (record,) = json.loads((tmp_path / RECORD).read_text()).values()
    assert (record["questions"], record["unparsed"], record["cost"]) == (3, 1, None)
    assert "certificate" in record["certificate_problem"]


def test_a_limit_on_questions_ends_a_run_with_its_verdicts_kept_and_a_higher_one_goes_on(tmp_path):
    with serving(judging(longer), path="/v1") as service:

        def scorer(most):
            return JudgeReward(settings_at(service.url, mode="pairwise", max_requests=most), folder=tmp_path)

        with pytest.raises(InterruptedRun, match="max_requests"):
            ask_scorer(scorer(5), *asked("a", "bb", groups=4))
        assert len(service.asked) == 5
        assert ask_scorer(scorer(8), *asked("a", "bb", groups=4)).scores == [0.0, 1.0] * 4
        assert len(service.asked) == 8
        assert ask_scorer(scorer(1), *asked("a", "bb", groups=4)).scores == [0.0, 1.0] * 4, (
            "what is known costs nothing"
        )


def test_a_limit_on_cost_does_so_too_and_outside_of_a_run_it_is_an_error(tmp_path):
    with serving(judging(longer), path="/v1") as service:
        settings = settings_at(service.url, mode="pairwise", judge={**PRICES, "max_tokens": 10, "max_cost": 2.5})
        with pytest.raises(InterruptedRun, match="max_cost"):
            ask_scorer(JudgeReward(settings, folder=tmp_path), *asked("a", "bb", groups=20))
        (record,) = json.loads((tmp_path / RECORD).read_text()).values()
        assert record["cost"] == pytest.approx(0.2 * record["questions"])
        assert record["cost"] <= 2.5
        with pytest.raises(BudgetError):
            ask_scorer(JudgeReward(settings), *asked("a", "bb", groups=20))


def test_what_the_endpoint_declines_is_not_asked_again_by_a_resumed_run(tmp_path):
    with serving(says({"error": "context length exceeded"}, 400), path="/v1") as service:
        for _ in range(2):
            scorer = JudgeReward(settings_at(service.url), folder=tmp_path, on_error="report")
            assert "too long" in ask_scorer(scorer, *asked("a")).errors[0]
        assert len(service.asked) == 1


def test_a_function_that_compares_and_a_reward_model_s_like_are_asked_in_pairs(tmp_path):
    scored = ask_scorer(
        build_reward({"kind": "judge", "judge": "longer", "mode": "pairwise"}), *asked("a", "bb", "ccc")
    )
    assert scored.scores == [0.0, 0.5, 1.0]
    with pytest.raises(ConfigError, match="group_ranks"):
        build_reward({"kind": "judge", "judge": "longer", "mode": "group_ranks"})
    with pytest.raises(ConfigError, match="kind: learned"):
        build_reward({"kind": "judge", "judge": "models/rm"})
    with pytest.raises(ConfigError, match="human"):
        build_reward({"kind": "judge", "judge": {"type": "human", "labels": "x.jsonl"}, "mode": "pairwise"})


def test_a_jury_s_grades_are_averaged_by_criterion():
    rubric = [{"name": "right", "text": "?"}, {"name": "kind", "text": "?"}]

    def act(handler, body):
        handler.send(chat("right: [[10]]\nkind: [[1]]" if body["model"] == "one" else "right: [[1]]\nkind: [[1]]"))

    with serving(act, path="/v1") as service:
        members = [{"type": "endpoint", "url": service.url, "model": model} for model in ("one", "two")]
        spec = {"kind": "judge", "judge": {"type": "jury", "members": members}, "rubric": rubric}
        scored = ask_scorer(build_reward(spec), *asked("x"))
    assert scored.scores == pytest.approx([0.25])
    assert scored.per_component["judge/right"] == [5.5]


def test_a_yaml_file_as_a_reward_is_a_judge(tmp_path):
    from pydantic import TypeAdapter

    (tmp_path / "judge.yaml").write_text("type: endpoint\nurl: http://127.0.0.1:9/v1\nmodel: m\n")
    (spec,) = TypeAdapter(RewardSpecs).validate_python(str(tmp_path / "judge.yaml"))
    assert (spec.kind, spec.judge.model, spec.mode) == ("judge", "m", "points")
