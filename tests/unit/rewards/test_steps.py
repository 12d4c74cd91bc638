"""A process reward model as a judge of completions."""

from __future__ import annotations

import pytest
import torch

from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group
from rlhf.errors import ConfigError, RewardError, UnknownNameError
from rlhf.models.policy import PolicyModel
from rlhf.models.process import ProcessRewardModel
from rlhf.rewards.factory import build_reward
from rlhf.rewards.steps import ProcessReward
from rlhf.rewards.types import TextCompletion


@pytest.fixture
def model(tiny_llama, tiny_tokenizer) -> ProcessRewardModel:
    return ProcessRewardModel.from_policy(PolicyModel(tiny_llama, tiny_tokenizer), seed=1)


def asked(tokenizer, prompt, *texts):
    ids = tokenizer(prompt)["input_ids"]
    tokens = [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in texts]
    said = [TextCompletion(text, tokens=own) for text, own in zip(texts, tokens, strict=True)]
    return [Prompt("p", ids, prompt)] * len(texts), said


def probabilities(model, prompt, text, ends):
    tokenizer = model.tokenizer
    prefix, tokens = (list(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in (prompt, text))
    (found,) = model.step_probabilities([Group(prefix, [Branch(tokens)], {"step_ends": [ends]})])
    return torch.tensor(found)


TEXT = "2*3=6\n1+6=8\nso 8"


@pytest.mark.parametrize(
    ("how", "combine"),
    [("product", torch.prod), ("min", torch.min), ("mean", torch.mean), ("last", lambda p: p[-1])],
)
def test_a_completion_is_worth_what_its_steps_are_together(model, tiny_tokenizer, how, combine):
    prompts, completions = asked(tiny_tokenizer, "Question: 1+2*3\n", TEXT, "8\n")
    result = ProcessReward(model, tokenizer=tiny_tokenizer, aggregate=how).score(prompts, completions)
    whole = TEXT + "\n"
    tokens = tiny_tokenizer(whole, add_special_tokens=False)["input_ids"]
    ends = [place for place, token in enumerate(tokens) if "\n" in tiny_tokenizer.decode([token])]
    steps = probabilities(model, prompts[0].text, whole, ends)
    assert len(steps) == 3
    assert result.scores[0] == pytest.approx(float(combine(steps)), abs=1e-5)
    assert result.per_component["process_steps"] == [3.0, 1.0]
    assert all(0 < score < 1 for score in result.scores)


def test_ids_and_texts_are_judged_alike(model, tiny_tokenizer):
    prompts, completions = asked(tiny_tokenizer, "Question: 1+2*3\n", TEXT, "8\n", "")
    by_ids = ProcessReward(model, tokenizer=tiny_tokenizer)
    by_texts = ProcessReward(model)
    by_texts._same_ids = False
    assert by_texts.score(prompts, completions).scores == pytest.approx(
        by_ids.score(prompts, completions).scores, abs=1e-5
    )


def test_a_sample_that_is_too_long_is_named(model, tiny_tokenizer):
    prompts, completions = asked(tiny_tokenizer, "Question\n", "1\n" * 300)
    with pytest.raises(RewardError, match=r"Sample 'p' .completion 0. has \d+ tokens, but the process reward model"):
        ProcessReward(model, tokenizer=tiny_tokenizer).score(prompts, completions)


def test_scores_that_are_not_finite_are_named_or_reported(model, tiny_tokenizer):
    with torch.no_grad():
        model.member.score.out.bias.fill_(float("nan"))
    asked_for = asked(tiny_tokenizer, "Question\n", "1\n")
    with pytest.raises(RewardError, match="The process reward model process failed on sample 'p'"):
        ProcessReward(model, tokenizer=tiny_tokenizer).score(*asked_for)
    reported = ProcessReward(model, tokenizer=tiny_tokenizer, on_error="report").score(*asked_for)
    assert list(reported.errors) == [0]


def test_a_recipe_names_it(model, tiny_tokenizer, tmp_path):
    folder = str(model.save_pretrained(tmp_path / "prm"))
    scorer = build_reward({"kind": "process", "source": folder, "aggregate": "min"}, tokenizer=tiny_tokenizer)
    assert isinstance(scorer, ProcessReward)
    assert scorer.aggregate == "min"
    assert ProcessReward(model).aggregate == "product", "the model's own"
    with pytest.raises(ConfigError, match="names a stage"):
        build_reward({"kind": "process", "source": "stage:prm"})
    with pytest.raises(UnknownNameError, match="aggregation of steps"):
        ProcessReward(model, aggregate="sum")
