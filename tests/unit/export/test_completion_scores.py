"""The win rate of an exported model over its original."""

from __future__ import annotations

import pytest

from rlhf.errors import ConfigError
from rlhf.export.completion_scores import compare_completions
from rlhf.export.export_model import export_model
from rlhf.export.source_model import source_model
from rlhf.models.reward import RewardModel
from rlhf.rewards.learned import LearnedReward
from tests.fixtures.exported import FAMILIES, tiny_policy

TEXTS = [{"prompt": text, "completion": " x"} for text in ("Once upon", "There was a dog", "The cat", "A time")]


def test_the_same_weights_tie_on_every_prompt(tmp_path):
    policy = tiny_policy(FAMILIES["llama"])
    RewardModel.from_policy(policy, seed=1).save_pretrained(tmp_path / "reward")
    report = export_model(policy, output_path=tmp_path / "out", texts=TEXTS, reward=tmp_path / "reward", num_rows=4)
    told = report.completions
    assert told is not None
    assert (told.prompts, told.same, told.win_rate) == (4, 4, 0.5)
    assert told.before == told.after
    assert any(line.startswith("win rate") for line in report.lines())
    assert report.to_dict()["completions"]["win_rate"] == 0.5


def test_a_model_that_says_other_things_wins_as_often_as_it_scores_higher(tmp_path, monkeypatch):
    policy, other = tiny_policy(FAMILIES["llama"]), tiny_policy(FAMILIES["qwen2"])
    RewardModel.from_policy(policy, seed=1).save_pretrained(tmp_path / "reward")
    source, written = source_model(policy), source_model(other)

    def better_once(self, prompts, completions):
        from rlhf.rewards.types import ScoreResult

        better_once.calls += 1
        scores = [0.0, 0.0, 0.0, 0.0] if better_once.calls == 1 else [1.0, -1.0, -1.0, 0.0]
        return ScoreResult(scores=scores)

    better_once.calls = 0
    monkeypatch.setattr(LearnedReward, "score", better_once)
    told = compare_completions(source, _opened(written), TEXTS, tmp_path / "reward", num_rows=4)
    assert told.win_rate == pytest.approx((1 + 0.5) / 4)
    assert told.low < told.win_rate < told.high
    assert (told.before, told.after) == (0.0, -0.25)
    assert told.same < 4


def _opened(source):
    from rlhf.export.completion_scores import _Original

    return _Original(source)


def test_without_texts_there_are_no_prompts(tmp_path):
    with pytest.raises(ConfigError, match="--texts"):
        export_model(tiny_policy(FAMILIES["llama"]), output_path=tmp_path / "out", reward=tmp_path)
