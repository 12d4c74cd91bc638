"""Models and texts of several families: their own token ids, bytes where tokens do not compare, and words of all scripts."""

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
from tests.fixtures.metric_inputs import inputs_of, measured

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

    evaluation = evaluate_model(
        policy, ["the cat", "a dog"], metrics=["length", "kl_divergence"], baseline=other, sampling=SAMPLING,
        build_engine=Engine,
    )  # fmt: skip
    assert [(theirs, [text.replace("<bos>", "").strip() for text in texts]) for theirs, texts in asked] == [
        (False, ["the cat", "a dog"]),
        (True, ["the cat", "a dog"]),
    ]
    assert math.isfinite(evaluation["length"])
    assert "token ids" in evaluation.missing("kl_divergence"), "and the rest is measured all the same"


def test_trap_21_perplexity_does_not_compare_families_and_bits_per_byte_do(policy):
    """Both models give every next token the same chance: per byte, the one with longer tokens needs fewer bits, and its perplexity is
    higher."""
    other = of_another_family()
    actual = {}
    for name, model in (("pieces", policy), ("bytes", other)):
        with torch.no_grad():
            for weight in model.model.get_output_embeddings().parameters():
                weight.zero_()
        actual[name] = evaluate_model(model, TEXTS, metrics=["perplexity", "bits_per_byte"])
        tokens = sum(len(model.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in TEXTS)
        size = len(model.tokenizer)
        assert actual[name]["perplexity"] == pytest.approx(size, rel=1e-5), "even over the vocabulary"
        num_bytes = sum(len(text.encode("utf-8")) for text in TEXTS)
        assert actual[name]["bits_per_byte"] == pytest.approx(math.log2(size) * tokens / num_bytes, rel=1e-5)
        letters = sum(map(len, TEXTS))
        assert actual[name]["bits_per_byte"] != pytest.approx(math.log2(size) * tokens / letters, rel=0.05)


def test_policies_of_two_families_are_not_sampled_from_the_same_ids(policy):
    from rlhf.data.datasets import GRPODataset

    prompts = list(GRPODataset(["the cat"], policy.tokenizer))
    with pytest.raises(ModelError, match="The baseline"):
        evaluate_policies(
            policy, of_another_family(), prompts, lambda prompts, completions: [1.0 for _ in completions],
            sampling=SamplingConfig(temperature=0.0, max_new_tokens=2), seed=0,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tokenizer"),
    [("Привет мир", "words of all scripts"), ("你好 世界", "words of all scripts"), ("the cat", "rouge-score")],
)
def test_trap_21_the_metric_chooses_words_that_see_the_texts(policy, text, tokenizer):
    measurement = measured(inputs_of(policy, [{"prompt": "x", "reference": text}], [[text]]), "rouge")
    assert measurement["rouge"] == 1.0
    assert measurement.to_dict()["about"]["rouge"]["tokenizer"] == tokenizer


def test_rouge_of_the_nearest_reference_by_hand(policy):
    # "a b c d" against "a c e": longest common subsequence 2, precision 2/4, recall 2/3; unigrams 2; bigrams none
    rows = [{"prompt": "x", "references": ["a c e", "v w"]}, {"prompt": "y"}]
    measurement = measured(inputs_of(policy, rows, [["a b c d"], ["z"]]), "rouge")
    f1 = 2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3)
    assert (measurement["rouge"], measurement.parts("rouge")["rouge1"].value) == pytest.approx((f1, f1))
    assert (measurement.parts("rouge")["rouge2"].value, measurement.interval("rouge").n) == (0.0, 1), (
        "a prompt without one is left out"
    )


def test_self_bleu_and_corpus_bleu_are_sacrebleus(policy):
    """The oracle is the library's own call on the whole, whose counts are summed here by prompt."""
    sacrebleu = pytest.importorskip("sacrebleu")
    rows = [
        {"prompt": "x", "reference": "the cat sat on the mat"},
        {"prompt": "y", "reference": "a dog ran to the old house"},
    ]
    texts = [["the cat sat on a mat", "one cat sat on the mat"], ["a dog ran home", "the dog ran to the house"]]
    measurement = measured(inputs_of(policy, rows, texts), "bleu", "self_bleu")
    flat = [text for group in texts for text in group]
    references = [row["reference"] for row in rows for _ in range(2)]
    assert measurement["bleu"] == pytest.approx(sacrebleu.corpus_bleu(flat, [references]).score)
    pairs = [(group[i], group[1 - i]) for group in texts for i in (0, 1)]
    wanted = sum(sacrebleu.sentence_bleu(one, [other]).score for one, other in pairs) / 400
    assert measurement["self_bleu"] == pytest.approx(wanted)
