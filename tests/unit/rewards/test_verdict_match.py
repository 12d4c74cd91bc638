from __future__ import annotations

import pytest

from rlhf.data.contracts import Prompt
from rlhf.errors import RewardError
from rlhf.rewards.factory import build_reward
from rlhf.rewards.types import TextCompletion


def scores(*said, verdicts, **settings):
    prompts = [Prompt(f"p{i}", [1], "?", columns={"verdict": v}) for i, v in enumerate(verdicts)]
    completions = [TextCompletion(*(one if isinstance(one, tuple) else (one, False))) for one in said]
    return build_reward({"kind": "verdict", **settings}).score(prompts, completions).scores


def test_the_right_verdict_earns_1_and_everything_else_0():
    assert scores(
        "A is right.\n[[A]]", "[[B]]", "[[C]]", "[[A]]", "[[A]] or [[B]]", "A", "[[A]]\nI am sure.", ("[[A]]", True), "",
        verdicts="AACBAAAAA",
    ) == [1, 0, 1, 0, 0, 0, 0, 0, 0]  # fmt: skip


def test_messages_are_read_as_texts_are():
    prompt = Prompt("p", [1], "?", messages=[{"role": "user", "content": "?"}], columns={"verdict": "B"})
    assert build_reward("verdict").score([prompt], [TextCompletion("Hm.\n[[B]]")]).scores == [1]


def test_a_label_that_is_none_is_an_error_that_names_the_column():
    with pytest.raises(RewardError, match="'verdict' holds 'a'"):
        scores("[[A]]", verdicts="a")
    with pytest.raises(RewardError, match="'label'"):
        scores("[[A]]", verdicts="A", column="label")
