"""Tokenizers that lack something, and rows longer than the context: one sentence that names the row and what to do."""

from __future__ import annotations

import pytest

from rlhf.config.model import ModelConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.chat import chat_format, check_has_template
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import SFTDataset
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import DataError
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.models.tokens import load_tokenizer
from rlhf.models.value import ValueModel
from rlhf.rollout.local import LocalEngine
from tests.fixtures import toy
from tests.fixtures.refusal import refusal
from tests.fixtures.spoiled_folder import edit


def test_padding_that_equals_end_of_text_is_accepted_and_the_end_is_still_learned(tiny_model_folder):
    """Nothing here is padded, so nothing that looks like padding is left out of the loss."""
    edit("tokenizer_config.json", pad_token="<eos>")(tiny_model_folder)
    edit("config.json", pad_token_id=1)(tiny_model_folder)
    policy = PolicyModel.from_pretrained(str(tiny_model_folder))
    assert policy.tokenizer.pad_token_id == policy.tokenizer.eos_token_id == 1
    (row,) = SFTDataset([{"prompt": "Where does the fox live?", "completion": " In a den."}], policy.tokenizer)
    batch = pack([row])
    assert batch.score_token[-1] == 1
    policy.score(batch).logprobs[-1].backward()
    gradient = policy.model.lm_head.weight.grad
    assert gradient[1].abs().max() > 0
    (sampled,) = LocalEngine(policy).generate(
        [Prompt(id="p", ids=list(row.prefix), text="")], num_samples=8, sampling=SamplingConfig(max_new_tokens=60), seed=0, rollout_index=0
    )  # fmt: skip
    ended = [completion for completion in sampled if not completion.truncated]
    assert all(completion.tokens[-1] == 1 for completion in ended)


def test_a_dialogue_without_a_chat_template_names_the_ways_out(tiny_model_folder):
    (tiny_model_folder / "chat_template.jinja").unlink()
    tokenizer = load_tokenizer(str(tiny_model_folder))
    message = refusal(lambda: check_has_template(chat_format(tokenizer), "rows.jsonl line 3"))
    assert message.startswith("rows.jsonl line 3 is a dialogue, and the tokenizer has no chat template")
    assert "plain" in message
    assert "Jinja file" in message


@pytest.mark.parametrize(
    ("template", "phrases"),
    [
        ("{% for message in %}", ("chat_template: line 1 is not valid Jinja", "{% for message in %}")),
        ("{{ messages", ("chat_template: line 1 is not valid Jinja",)),
    ],
)
def test_a_chat_template_that_is_no_jinja_is_refused_before_any_row(template, phrases, tiny_model_folder):
    config = ModelConfig.of({"path": str(tiny_model_folder), "chat_template": template})
    message = refusal(lambda: load_tokenizer(config))
    assert all(phrase in message for phrase in phrases), message


def test_a_chat_template_file_of_bytes_is_refused(tiny_model_folder, tmp_path):
    (tmp_path / "chat.jinja").write_bytes(b"\xff\xfe\x00")
    config = ModelConfig.of({"path": str(tiny_model_folder), "chat_template": str(tmp_path / "chat.jinja")})
    assert "chat.jinja' can't be read as text" in refusal(lambda: load_tokenizer(config))


def test_a_chat_template_that_raises_is_reported_with_the_row(tiny_model_folder):
    config = ModelConfig.of(
        {"path": str(tiny_model_folder), "chat_template": "{{ raise_exception('users must speak first') }}"}
    )
    rows = [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}]
    message = refusal(lambda: list(SFTDataset(rows, load_tokenizer(config))), DataError)
    assert "the chat template refuses this dialogue" in message
    assert "users must speak first" in message


# ---- longer than the context


def test_a_prompt_longer_than_the_context_is_named_by_its_id():
    policy = toy.build_policy()  # made for 64 tokens
    prompt = Prompt(id="essay-7", ids=[5] * 60, text="...")
    sampling = SamplingConfig(max_new_tokens=10)
    message = refusal(
        lambda: LocalEngine(policy).generate([prompt], num_samples=1, sampling=sampling, seed=0, rollout_index=0),
        DataError,
    )
    assert "'essay-7' has 60 tokens and may grow by 10" in message
    assert "made for 64" in message
    assert "shorten the prompt or lower max_new_tokens" in message


@pytest.mark.parametrize("build", [lambda p: p, RewardModel.from_policy, ValueModel.from_policy])
def test_a_row_longer_than_the_context_is_refused_before_it_is_read(build):
    model = build(toy.build_policy())
    row = Group([5] * 50, [Branch([6] * 15)], {"id": "essay-7"})
    score = {PolicyModel: "score", RewardModel: "scores", ValueModel: "values"}[type(model)]
    message = refusal(lambda: model.choose_path([row]), DataError)
    assert "'essay-7' has 65 tokens, 50 of them prompt" in message
    assert "Set max_length: 64" in message
    model.choose_path([Group([5] * 5, [Branch([6])])])
    message = refusal(lambda: getattr(model, score)(pack([Group([5], [Branch([6])]), row])), DataError)
    assert "Row 'essay-7' has 65 tokens, but the model was made for 64" in message
    assert "made for 64" in message


def test_a_token_that_the_model_does_not_have_is_named():
    policy = toy.build_policy()
    batch = pack([Group([5], [Branch([toy.VOCABULARY])])])
    policy.choose_path([Group([5], [Branch([6])])])
    message = refusal(lambda: policy.score(batch), DataError)
    assert f"holds the token {toy.VOCABULARY}, but the model's vocabulary has {toy.VOCABULARY}" in message
