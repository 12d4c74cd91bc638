"""Every scorer, through the same checks that a user's own scorer goes through."""

from __future__ import annotations

import contextlib

import pytest

from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.lexicon import LexiconReward
from rlhf.rewards.rules import RuleBasedReward
from rlhf.rewards.service import ServiceReward
from rlhf.rewards.types import Scorer, ScoreResult
from rlhf.testing import SCORER_CHECKS
from tests.unit.rewards.helpers import HERE, prompt
from tests.unit.rewards.servers import lengths, serving

pytestmark = pytest.mark.numeric

TEXTS = ["Good.", "so bad and so long, my friends", "", "x"]


@pytest.fixture
def build(tmp_path, tiny_llama, tiny_tokenizer):
    path = tmp_path / "lexicon.txt"
    path.write_text("good\t2\nbad\t-2\n")

    stack = contextlib.ExitStack()

    def named(kind: str) -> Scorer:
        if kind == "learned":
            model = RewardModel.from_policy(PolicyModel(tiny_llama, tiny_tokenizer), seed=1)
            return LearnedReward(model, tokenizer=tiny_tokenizer)
        if kind == "function":
            return stack.enter_context(FunctionReward(f"{HERE}:length"))
        if kind == "service":
            return ServiceReward(stack.enter_context(serving(lengths)).url, request_size=3)
        if kind == "rules":
            return RuleBasedReward()
        if kind == "lexicon":
            return LexiconReward(path)
        return CompositeReward([Component(scorer=named("rules"), weight=0.5), Component(scorer=named("lexicon"))])

    with stack:
        yield named


@pytest.mark.parametrize("check", SCORER_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["learned", "function", "service", "rules", "lexicon", "composite"])
def test_a_scorer_keeps_the_contract(kind, check, build):
    prompts = [prompt(n, ids=[5, 6, 7 + n], answer="x") for n in range(len(TEXTS))]
    check(build(kind), prompts, TEXTS)


class Grudging:
    """Judges by place, not by completion, and takes the prompts' columns away."""

    name = "grudging"

    def score(self, prompts, completions):
        for p in prompts:
            p.columns.clear()
        return ScoreResult([float(n) for n in range(len(completions))], {})


@pytest.mark.parametrize("check", [check for check in SCORER_CHECKS if "nothing_is_judged" not in check.__name__])
def test_the_checks_can_fail(check):
    with pytest.raises(AssertionError):
        check(Grudging(), [prompt(n, answer="x") for n in range(len(TEXTS))], TEXTS)
