from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import SFTDataset
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import RewardError
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.lengths import LengthRule, cuts_told
from rlhf.rewards.model_reward import same_ids, usable_ids
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.stopping import completion_texts
from tests.fixtures import tiny


@pytest.fixture
def policy(tiny_llama, tiny_tokenizer) -> PolicyModel:
    return PolicyModel(tiny_llama, tiny_tokenizer)


@pytest.fixture
def reward_model(policy) -> RewardModel:
    model = RewardModel.from_policy(policy, seed=1)
    with torch.no_grad():  # a fresh head may be all zeros
        for member in model.members:
            for name, parameter in member.named_parameters():
                if "score" in name:
                    parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    return model


@pytest.fixture
def rollout(policy):
    """Six prompts and two samples each: (prompts repeated, completions)."""
    texts = ["Question: What?", "Question: Where?\nAnswer:", "The", "The quick brown fox", "a", "Question"]
    prompts = [Prompt(f"p{n}", policy.tokenizer(t)["input_ids"], t) for n, t in enumerate(texts)]
    groups = LocalEngine(policy).generate(
        prompts, num_samples=2, sampling=SamplingConfig(max_new_tokens=12), seed=0, rollout_index=0
    )
    return [p for p in prompts for _ in range(2)], [c for group in groups for c in group]


def alone(model: RewardModel, ids: list[int], tokens: list[int]) -> float:
    with torch.no_grad():
        return float(model.scores(pack([Group(ids, [Branch(tokens)])])))


def test_ids_are_scored_as_they_were_sampled(reward_model, rollout, tiny_tokenizer):
    prompts, completions = rollout
    scorer = LearnedReward(reward_model, tokenizer=tiny_tokenizer)
    expected = [alone(reward_model, p.ids, c.tokens) for p, c in zip(prompts, completions, strict=True)]
    result = scorer.score(prompts, completions)
    assert result.scores == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 6, "the model says the same of everything: the test shows nothing"
    assert result.per_component == {"learned": result.scores}


def test_scores_do_not_hang_on_how_the_batch_is_cut(reward_model, rollout, tiny_tokenizer):
    whole = LearnedReward(reward_model, tokenizer=tiny_tokenizer).score(*rollout).scores
    for max_tokens in (1, 40):
        cut = LearnedReward(reward_model, tokenizer=tiny_tokenizer, max_tokens=max_tokens)
        assert cut.score(*rollout).scores == pytest.approx(whole, abs=1e-5)
    order = [5, 0, 11, 3, 2, 1, 10, 4, 9, 6, 8, 7]  # neighbors of one prompt come apart
    shuffled = LearnedReward(reward_model, tokenizer=tiny_tokenizer).score(
        *([part[i] for i in order] for part in rollout)
    )
    assert shuffled.scores == pytest.approx([whole[i] for i in order], abs=1e-5)


def test_a_shared_prompt_is_computed_once(reward_model, rollout, tiny_tokenizer, monkeypatch):
    batches = []
    scores = RewardModel.member_scores
    monkeypatch.setattr(
        RewardModel, "member_scores", lambda model, batch: batches.append(batch) or scores(model, batch)
    )
    prompts, completions = rollout
    LearnedReward(reward_model, tokenizer=tiny_tokenizer).score(prompts, completions)
    (batch,) = batches
    assert batch.num_groups == 6
    distinct = sum(len(p.ids) for p in prompts[::2]) + sum(len(c.tokens) for c in completions)
    assert batch.num_tokens == distinct


def test_another_tokenizer_means_that_texts_are_scored_with_an_end_where_they_ended(
    reward_model, rollout, tiny_tokenizer
):
    other = tiny.build_tokenizer(("completely different words here",), vocab_size=270)
    assert not same_ids(other, tiny_tokenizer)
    prompts, completions = rollout
    completions = [
        replace(c, text=f" text {n}", finish_reason="eos" if n % 3 else "length") for n, c in enumerate(completions)
    ]
    scorer = LearnedReward(reward_model, tokenizer=other)  # the policy's tokenizer is another one
    expected = []
    for prompt, completion in zip(prompts, completions, strict=True):
        row = {"prompt": prompt.text, "completion": completion.text}
        (group,) = SFTDataset([row], tiny_tokenizer, add_eos=not completion.truncated)
        ended = group.branches[0].tokens[-1] == tiny_tokenizer.eos_token_id
        assert ended != completion.truncated
        expected.append(alone(reward_model, list(group.prefix), list(group.branches[0].tokens)))
    assert scorer.score(prompts, completions).scores == pytest.approx(expected, abs=1e-5)


def test_without_a_tokenizer_ids_are_used_only_if_they_say_the_texts(
    reward_model, rollout, tiny_tokenizer, monkeypatch
):
    prompts, completions = rollout
    completions = [
        replace(c, text=completion_texts(tiny_tokenizer, p.ids, [c.tokens])[0])
        for p, c in zip(prompts, completions, strict=True)
    ]
    scorer = LearnedReward(reward_model)
    by_ids = LearnedReward(reward_model, tokenizer=tiny_tokenizer).score(prompts, completions).scores
    assert scorer.score(prompts, completions).scores == by_ids
    lying = [replace(c, text=" Yes") for c in completions]
    by_text = scorer.score(prompts, lying).scores
    assert by_text != by_ids
    # another end of text: the ids read the same, but the reward model would not see the end
    moved = copy.deepcopy(tiny_tokenizer)
    moved.eos_token = "<pad>"
    monkeypatch.setattr(reward_model, "tokenizer", moved)
    ended = [i for i, c in enumerate(completions) if not c.truncated] or [0]
    wanted = [replace(completions[ended[0]], finish_reason="eos", tokens=[*completions[ended[0]].tokens[:-1], 1])]
    wanted = [replace(w, text=completion_texts(tiny_tokenizer, prompts[ended[0]].ids, [w.tokens])[0]) for w in wanted]
    (score,) = LearnedReward(reward_model).score([prompts[ended[0]]], wanted).scores
    text_ids = tiny_tokenizer(wanted[0].text)["input_ids"]
    assert score == pytest.approx(alone(reward_model, prompts[ended[0]].ids, [*text_ids, 2]), abs=1e-5)


def test_conversations_are_rendered_with_the_reward_models_own_template(reward_model, tiny_tokenizer):
    messages = [{"role": "user", "content": "Where?"}]
    prompt = Prompt("p", [1, 2], "the policy's rendering", {}, messages)
    other = tiny.build_tokenizer(("different words",), vocab_size=270)
    scorer = LearnedReward(reward_model, tokenizer=other)
    from tests.unit.rewards.helpers import completion

    row = {"prompt": messages, "completion": [{"role": "assistant", "content": "Here."}]}
    (group,) = SFTDataset([row], tiny_tokenizer)
    expected = alone(reward_model, list(group.prefix), list(group.branches[0].tokens))
    assert scorer.score([prompt], [completion("Here.")]).scores == pytest.approx([expected], abs=1e-5)


def test_judging_leaves_the_model_as_it_was(reward_model, rollout, tiny_tokenizer):
    reward_model.train()
    modes = [module.training for module in reward_model.modules()]
    LearnedReward(reward_model, tokenizer=tiny_tokenizer).score(*rollout)
    assert [module.training for module in reward_model.modules()] == modes
    assert all(parameter.grad is None for parameter in reward_model.parameters())


def test_a_sample_too_long_for_the_model_is_named(reward_model, rollout, tiny_tokenizer):
    prompts, completions = rollout
    long = replace(completions[3], tokens=[5] * 520)
    with pytest.raises(RewardError, match=r"'p1' \(completion 1\) has \d+ tokens.* 512"):
        LearnedReward(reward_model, tokenizer=tiny_tokenizer).score(prompts, [*completions[:3], long, *completions[4:]])


def test_a_sample_too_long_for_a_judge_loses_the_beginning_of_its_prompt_and_is_counted(
    reward_model, rollout, tiny_tokenizer
):
    prompts, completions = rollout
    scorer = LearnedReward(reward_model, tokenizer=tiny_tokenizer)
    scorer.lengths.cuts = True
    long = replace(prompts[3], ids=[1, *range(5, 250)] * 3)
    endless = replace(completions[4], tokens=[7] * 600)
    asked = [*prompts[:3], long, *prompts[4:]]
    said = [*completions[:4], endless, *completions[5:]]
    scores = scorer.score(asked, said).scores
    plain = LearnedReward(reward_model, tokenizer=tiny_tokenizer).score(prompts, completions).scores
    others = [n for n in range(12) if n not in (3, 4)]
    assert [scores[n] for n in others] == pytest.approx([plain[n] for n in others], abs=1e-5)
    kept = 512 - len(said[3].tokens)
    bos = tiny_tokenizer.bos_token_id
    assert scores[3] == pytest.approx(alone(reward_model, long.ids[-kept:], said[3].tokens), abs=1e-5)
    assert scores[4] == pytest.approx(alone(reward_model, asked[4].ids[-1:], [7] * 511), abs=1e-5)
    (told,) = cuts_told(scorer, whom="the judge")
    assert told.startswith("2 of 12 samples are longer than the 512 tokens that the judge")
    first = LengthRule(8, cuts=True).applied(
        [Group([bos, *range(20)], [Branch([3, 4])])], [long], [said[3]], who="", bos=bos
    )
    assert (first[0].prefix, first[0].branches[0].tokens) == ([bos, 15, 16, 17, 18, 19], [3, 4])


def test_a_sample_of_which_only_the_text_is_known_does_not_turn_the_others_into_texts(reward_model, rollout):
    prompts, completions = rollout
    scorer = LearnedReward(reward_model)
    known = scorer.score(prompts, completions).scores
    old = [replace(c, tokens=[]) if n == 3 else c for n, c in enumerate(completions)]
    scores = scorer.score(prompts, old).scores
    assert [s for n, s in enumerate(scores) if n != 3] == pytest.approx(
        [s for n, s in enumerate(known) if n != 3], abs=1e-5
    )
    other = tiny.build_tokenizer(("different words",), vocab_size=270)
    assert usable_ids(other, prompts, completions) == [False] * 12


def test_a_score_that_is_no_number_is_named(reward_model, rollout, tiny_tokenizer):
    reward_model.std.fill_(float("nan"))
    with pytest.raises(RewardError, match=r"learned .*'p0' \(completion 0\).*score nan"):
        LearnedReward(reward_model, tokenizer=tiny_tokenizer).score(*rollout)


def test_a_folder_is_loaded(reward_model, rollout, tiny_tokenizer, tmp_path):
    reward_model.save_pretrained(tmp_path / "model")
    for source in (tmp_path / "model", str(tmp_path / "model")):
        scores = LearnedReward(source, tokenizer=tiny_tokenizer).score(*rollout)
        assert scores.scores == pytest.approx(
            LearnedReward(reward_model, tokenizer=tiny_tokenizer).score(*rollout).scores
        )
