"""Models of two families: each reads the prompts in its own token ids, and bytes compare where tokens do not."""

from __future__ import annotations

import math

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlhf.config.policy import SamplingConfig
from rlhf.errors import ModelError
from rlhf.evaluation.evaluate_model import evaluate_model
from rlhf.evaluation.evaluator import evaluate_policies
from rlhf.models.policy import PolicyModel
from tests.fixtures import tiny

SAMPLING = SamplingConfig(max_new_tokens=4)
TEXTS = ["Привет, мир 🙂", "naïve café", "the cat sat"]


@pytest.fixture(scope="module")
def policy():
    tokenizer = tiny.build_tokenizer()
    return PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=0), tokenizer)


def of_another_family():
    """Every byte is a token, and its number stands for another token of the policy's."""
    pieces = ["<eos>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)]
    inner = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    from tokenizers.decoders import ByteLevel

    inner.decoder = ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<pad>")
    return PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=1), tokenizer)


def test_a_baseline_of_another_family_is_asked_in_its_own_token_ids(policy):
    other, asked = of_another_family(), []
    from rlhf.rollout.local import LocalEngine

    class Engine(LocalEngine):
        def generate(self, prompts, **how):
            asked.append((self.policy is other, [self.policy.tokenizer.decode(prompt.ids) for prompt in prompts]))
            return super().generate(prompts, **how)

    found = evaluate_model(
        policy, ["the cat", "a dog"], metrics=["length", "kl_divergence"], baseline=other, sampling=SAMPLING,
        build_engine=Engine,
    )  # fmt: skip
    assert [(theirs, [text.replace("<bos>", "").strip() for text in texts]) for theirs, texts in asked] == [
        (False, ["the cat", "a dog"]),
        (True, ["the cat", "a dog"]),
    ]
    assert math.isfinite(found["length"])
    assert "token ids" in found.missing("kl_divergence"), "and the rest is measured all the same"


def test_trap_21_perplexity_does_not_compare_families_and_bits_per_byte_do(policy):
    """Both models give every next token the same chance: per byte, the one with longer tokens needs fewer bits, and its perplexity is
    higher."""
    other = of_another_family()
    found = {}
    for name, model in (("pieces", policy), ("bytes", other)):
        with torch.no_grad():
            for weight in model.model.get_output_embeddings().parameters():
                weight.zero_()
        found[name] = evaluate_model(model, TEXTS, metrics=["perplexity", "bits_per_byte"])
        tokens = sum(len(model.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in TEXTS)
        size = len(model.tokenizer)
        assert found[name]["perplexity"] == pytest.approx(size, rel=1e-5), "even over the vocabulary"
        num_bytes = sum(len(text.encode("utf-8")) for text in TEXTS)
        assert found[name]["bits_per_byte"] == pytest.approx(math.log2(size) * tokens / num_bytes, rel=1e-5)
        letters = sum(map(len, TEXTS))
        assert found[name]["bits_per_byte"] != pytest.approx(math.log2(size) * tokens / letters, rel=0.05)


def test_policies_of_two_families_are_not_sampled_from_the_same_ids(policy):
    from rlhf.data.datasets import GRPODataset

    prompts = list(GRPODataset(["the cat"], policy.tokenizer))
    with pytest.raises(ModelError, match="The baseline"):
        evaluate_policies(
            policy, of_another_family(), prompts, lambda prompts, completions: [1.0 for _ in completions],
            sampling=SamplingConfig(temperature=0.0, max_new_tokens=2), seed=0,
        )  # fmt: skip
