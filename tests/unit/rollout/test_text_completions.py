"""Generation and log-probabilities from texts, against the engine and the packed path."""

from __future__ import annotations

import json

import pytest
import torch

from rlhf import PolicyModel, SamplingConfig, SFTDataset
from rlhf.data.pack import pack
from rlhf.errors import ConfigError, DataError

PROMPTS = ["Question: What does the cow eat?\n", "Question: Where does the fox live?\n"]


@pytest.fixture
def policy(tiny_llama, tiny_tokenizer):
    return PolicyModel(tiny_llama, tiny_tokenizer)


def test_texts_are_sampled_by_seed_whatever_is_asked_beside_them(policy):
    both = policy.generate(PROMPTS, num_samples=2, max_new_tokens=6, seed=3)
    assert [len(group) for group in both] == [2, 2]
    assert all(len(c.tokens) <= 6 for group in both for c in group)
    [alone] = policy.generate(PROMPTS[1], num_samples=2, max_new_tokens=6, seed=3)
    assert [c.tokens for c in alone] == [c.tokens for c in both[1]]
    [other] = policy.generate(PROMPTS[1], num_samples=2, max_new_tokens=6, seed=4)
    assert [c.tokens for c in other] != [c.tokens for c in alone]
    assert policy.generate([]) == []


def test_the_command_line_gives_the_same(policy, tmp_path, tiny_model_folder, call):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS), encoding="utf-8")
    code, out, _ = call("generate", tiny_model_folder, path, "--max-new-tokens", 5, "--seed", 7)
    assert code == 0
    texts = [json.loads(line)["completion"] for line in out.splitlines()]
    assert texts == [group[0].text for group in policy.generate(PROMPTS, max_new_tokens=5, seed=7)]


def test_messages_go_through_the_chat_template(policy):
    [[completion]] = policy.generate([{"role": "user", "content": "What?"}], max_new_tokens=2)
    [[same]] = policy.generate([[{"role": "user", "content": "What?"}]], max_new_tokens=2)
    assert completion.tokens == same.tokens


def test_settings_change_the_given_sampling_and_are_checked(policy):
    sampling = SamplingConfig(max_new_tokens=3, temperature=0)
    [[greedy]] = policy.generate(PROMPTS[0], sampling=sampling)
    [[longer]] = policy.generate(PROMPTS[0], sampling=sampling, max_new_tokens=5)
    assert longer.tokens[: len(greedy.tokens)] == greedy.tokens
    with pytest.raises(ConfigError, match="temperature"):
        policy.generate(PROMPTS[0], temperature=-1)
    with pytest.raises(ConfigError, match="max_new_token"):
        policy.generate(PROMPTS[0], max_new_token=3)


def test_logprobs_of_texts_are_those_of_the_packed_path(policy, tiny_tokenizer):
    completions = [" grass", " in a den, as far as I know"]
    rows = [{"prompt": p, "completion": c} for p, c in zip(PROMPTS, completions, strict=True)]
    batch = pack(list(SFTDataset(rows, tiny_tokenizer)))
    parts = policy.logprobs(PROMPTS, completions)
    assert torch.equal(torch.cat(parts), policy.logprobs(batch))
    assert [len(part) for part in parts] == [len(tiny_tokenizer(c).input_ids) + 1 for c in completions], "EOS included"
    torch.testing.assert_close(policy.logprobs(PROMPTS[:1], completions[:1])[0], parts[0], rtol=0, atol=1e-5)
    assert policy.logprobs([], []) == []


def test_logprobs_of_a_sample_are_the_engines(policy):
    sampled = policy.generate(PROMPTS, max_new_tokens=8, seed=1)
    for prompt, [completion] in zip(PROMPTS, sampled, strict=True):
        [actual] = policy.logprobs([prompt], [completion.text])
        if policy.tokenizer(completion.text).input_ids == completion.tokens[: len(actual) - 1]:
            torch.testing.assert_close(
                actual[:-1], torch.tensor(completion.logprobs[: len(actual) - 1]), rtol=0, atol=1e-4
            )


@pytest.mark.parametrize("texts", [(PROMPTS, [" a"]), (PROMPTS[0], " a"), (PROMPTS,)])
def test_what_is_no_list_of_texts_is_refused(policy, texts):
    with pytest.raises(DataError, match="prompts"):
        policy.logprobs(*texts)
