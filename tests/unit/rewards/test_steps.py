"""A process reward model as a judge of completions."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group
from rlhf.errors import ConfigError, RewardError, UnknownNameError
from rlhf.models.policy import PolicyModel
from rlhf.models.process_reward import ProcessRewardModel
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
    (of_steps,) = model.step_probabilities([Group(prefix, [Branch(tokens)], {"step_ends": [ends]})])
    return torch.tensor(of_steps)


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
    with pytest.raises(RewardError, match=r"'p' .completion 0. has \d+ tokens"):
        ProcessReward(model, tokenizer=tiny_tokenizer).score(prompts, completions)


def test_scores_that_are_not_finite_are_named_or_reported(model, tiny_tokenizer):
    with torch.no_grad():
        model.member.score.out.bias.fill_(float("nan"))
    asked_for = asked(tiny_tokenizer, "Question\n", "1\n")
    with pytest.raises(RewardError, match=r"process .*sample 'p'"):
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


@dataclass(frozen=True)
class Episode(TextCompletion):
    scored: list[bool] | None = None


def episode(tokenizer, *turns: tuple[str, bool]) -> Episode:
    """Words in turns; True: the policy's own."""
    tokens: list[int] = []
    scored: list[bool] = []
    for text, own in turns:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens += ids
        scored += [own] * len(ids)
    return Episode("".join(text for text, _ in turns), tokens=tokens, scored=scored)


def test_what_an_environment_says_is_read_and_is_no_step(model, tiny_tokenizer):
    asks, answers, ends = ("2*3\n", True), ("It is 6\nGo on\n", False), ("so 7\n", True)
    talk = episode(tiny_tokenizer, asks, answers, ends)
    prompts, _ = asked(tiny_tokenizer, "Question: 1+2*3\n", "")
    scores = ProcessReward(model, tokenizer=tiny_tokenizer).score(prompts, [talk])
    assert scores.per_component["process_steps"] == [2.0]
    lengths = [len(tiny_tokenizer(text, add_special_tokens=False)["input_ids"]) for text, _ in (asks, answers, ends)]
    places = [lengths[0] - 1, sum(lengths) - 1]
    prefix = list(prompts[0].ids)
    (expected,) = model.step_probabilities([Group(prefix, [Branch(talk.tokens)], {"step_ends": [places]})])
    assert scores.scores[0] == pytest.approx(float(torch.tensor(expected).prod()), abs=1e-5)


def test_a_turn_without_a_separator_is_a_step_and_a_blank_one_is_none(model, tiny_tokenizer):
    def steps(*turns: tuple[str, bool]) -> float | None:
        prompts, _ = asked(tiny_tokenizer, "Question: 1+2*3\n", "")
        reward = ProcessReward(model, tokenizer=tiny_tokenizer)
        return reward.score(prompts, [episode(tiny_tokenizer, *turns)]).per_component["process_steps"][0]

    assert steps(("2*3", True), ("6\n", False), ("so 7", True)) == 2
    assert steps(("2*3", True), ("6\n", False), ("\n", True)) == 1
    assert steps((" ", True), ("6\n", False)) == 1, "nothing was said: one empty step, as of an empty completion"
    assert steps(("2*3\n4", True)) == 2


def test_a_model_with_another_tokenizer_can_not_tell_whose_words_an_episode_has(model, tiny_tokenizer):
    reward = ProcessReward(model)
    reward._same_ids = False
    prompts, _ = asked(tiny_tokenizer, "Question: 1+2*3\n", "")
    with pytest.raises(RewardError, match="another tokenizer"):
        reward.score(prompts, [episode(tiny_tokenizer, ("2*3\n", True), ("6\n", False))])
