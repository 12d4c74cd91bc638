from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from rlhf.config.base import BaseConfig
from rlhf.config.rewards import RewardSpecs
from rlhf.errors import ConfigError


class Stage(BaseConfig):
    """What a recipe's stage looks like to these tests."""

    reward: RewardSpecs


def kinds(reward: object) -> list[str]:
    return [spec.kind for spec in Stage.of({"reward": reward}).reward]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("stage:reward", "learned"),
        ("models/rm", "learned"),
        ("/abs/models/rm", "learned"),
        ("org/name", "learned"),
        ("rules", "rules"),
        ("math", "math"),
        ("mine:judge", "function"),
        ("pkg.sub.mod:judge", "function"),
        ("scripts/mine.py:judge", "function"),
        ("/abs/my scripts/mine.py:judge", "function"),
    ],
)
def test_a_text_stands_for_the_commonest_settings(text, kind):
    assert kinds(text) == [kind]


def test_one_judge_is_a_list_of_one_and_many_keep_their_order():
    assert kinds({"kind": "lexicon", "path": "x"}) == ["lexicon"]
    assert kinds(["rules", {"kind": "lexicon", "path": "x", "weight": -1}, "a/b"]) == ["rules", "lexicon", "learned"]


def test_the_text_is_kept_as_the_source_or_the_function():
    stage = Stage.of({"reward": ["stage:rm", "a.b:c"]})
    assert (stage.reward[0].source, stage.reward[1].function) == ("stage:rm", "a.b:c")


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"kind": "lexicn", "path": "x"}, r"reward.kind: unknown kind 'lexicn'. Did you mean 'lexicon'\?"),
        (
            {"kind": "rules", "target_word": 3},
            r"reward.target_word: unknown key. Did you mean 'target_words'\?",
        ),
        ({"weight": 2}, r"reward.kind: missing `kind`"),
        (["rules", {"kind": "lexicon"}], r"reward.1.path: this key is required"),
        ({"kind": "rules", "weight": ".inf"}, r"reward.weight: "),
        ({"kind": "function", "function": "nameless"}, r"reward.function: a function is named package.module:function"),
        ([], r"reward: should have at least 1 item, and has 0"),
    ],
)
def test_a_wrong_judge_is_told_by_place_and_key(reward, message):
    with pytest.raises(ConfigError, match=message):
        Stage.of({"reward": reward})


def test_there_is_a_schema():
    schema = TypeAdapter(RewardSpecs).json_schema()
    assert "lexicon" in str(schema)
