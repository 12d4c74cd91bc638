"""Metrics of a model: numbers by hand, missing where there is nothing, and the traps of research/evaluation.md, section 8."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rlhf.config.metric_table import METRICS
from rlhf.config.policy import SamplingConfig
from rlhf.data.datasets import GRPODataset
from rlhf.errors import ConfigError, DataError, ModelError, UnknownNameError
from rlhf.evaluation.evaluate_model import evaluate_model, load_metrics
from rlhf.evaluation.metrics.ead import expectation_adjusted_distinct
from rlhf.evaluation.metrics.rouge import rouge_scorer, rouge_scores
from rlhf.evaluation.metrics.vendi import vendi_score
from rlhf.models.policy import PolicyModel
from tests.fixtures import tiny
from tests.fixtures.metric_inputs import completion, inputs_of, is_right, length_judge, measured, pairs


@pytest.fixture(scope="module")
def policy():
    tokenizer = tiny.build_tokenizer()
    return PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=0), tokenizer)


@pytest.fixture(scope="module")
def other():
    tokenizer = tiny.build_tokenizer()
    return PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=1), tokenizer)


# --- Formulas ---


def test_distinct_tokens_corrected_for_how_many_were_written():
    assert expectation_adjusted_distinct(300, 500, 1000) == pytest.approx(0.7622, abs=5e-5)  # research page, section 5
    assert math.isnan(expectation_adjusted_distinct(0, 0, 10))
    with pytest.raises(ConfigError, match="vocabulary"):
        expectation_adjusted_distinct(5, 4, 10)


def test_vendi_counts_what_differs():
    assert vendi_score(np.eye(4)) == pytest.approx(4)
    assert vendi_score(np.ones((4, 4))) == pytest.approx(1)
    assert vendi_score(np.kron(np.eye(2), np.ones((2, 2)))) == pytest.approx(2)
    with pytest.raises(ConfigError, match="symmetric"):
        vendi_score([[1.0, 0.5], [0.2, 1.0]])


def test_trap_21_rouge_of_equal_texts_is_one_in_every_script():
    text = "Привет мир. Как дела?"
    library, ours = rouge_scorer(unicode_words=False), rouge_scorer(unicode_words=True)
    assert library.score(text, text)["rougeL"].fmeasure == 0.0, "what a naive caller gets"
    assert rouge_scores(ours, text, [text])["rougeL"] == 1.0


def test_trap_21_sentences_are_told_apart_for_rouge_lsum():
    one, swapped = "The cat sat. The dog ran.", "The dog ran. The cat sat."
    scorer = rouge_scorer(unicode_words=False)
    assert scorer.score(one, swapped)["rougeLsum"].fmeasure < 1, "what a naive caller gets"
    assert rouge_scores(scorer, swapped, [one])["rougeLsum"] == 1.0


def test_trap_21_bleu_of_a_corpus_of_short_equal_texts_is_not_zero(policy):
    rows = [{"prompt": f"p{i}", "reference": "a b c"} for i in range(3)]
    rows[2]["reference"] = "one two three four five"
    measurement = measured(inputs_of(policy, rows, [["a b c"], ["a b c"], ["one two three four five"]]), "bleu")
    assert measurement["bleu"] == pytest.approx(100)
    assert "version:" in measurement.to_dict()["about"]["bleu"]["signature"]


# --- Numbers of completions ---


def test_the_number_of_a_prompt_is_the_mean_of_its_samples(policy):
    """Two prompts of four samples are two units, not eight."""
    texts = [["a"] * 4, ["a b c"] * 4]
    measurement = measured(inputs_of(policy, ["x", "y"], texts, judge=length_judge), "judge_score")
    assert measurement["judge_score"] == 2.0
    assert measurement.interval("judge_score").n == 2


def test_lengths_are_counted_with_what_was_cut(policy):
    texts = [[completion("0", 0, "a", num_tokens=2)], [completion("1", 0, "a", num_tokens=4, truncated=True)]]
    measurement = measured(inputs_of(policy, ["x", "y"], texts), "length")
    assert (measurement["length"], measurement.parts("length")["mean"].value) == (3.0, 3.0)
    assert measurement.parts("length")["truncated_frac"].value == 0.5


def test_distinct_words_and_their_limits(policy):
    measurement = measured(
        inputs_of(policy, ["x", "y"], [["a b a b"], ["c d"]]), "distinct_n", "compression_ratio", "ead"
    )
    assert measurement["distinct_n"] == pytest.approx(3 / 4), "ab, ba, ab; cd"
    assert measurement.parts("distinct_n")["1"].value == pytest.approx(4 / 6)
    assert measurement.interval("distinct_n").high <= 1
    assert measurement.interval("compression_ratio").low >= 0


def test_what_was_never_written_is_missing_and_no_zero(policy):
    measurement = measured(inputs_of(policy, ["x", "y"], [[""], [""]]), "distinct_n", "compression_ratio")
    for name in measurement:
        assert math.isnan(measurement[name])
        assert measurement.missing(name)
        assert measurement.to_dict()["changes"][name]["after"]["value"] is None


def test_self_bleu_is_of_the_samples_of_one_prompt(policy):
    same = ["one two three four five"] * 2
    measurement = measured(inputs_of(policy, ["x", "y"], [same, ["a b c d e", "v w x y z"]]), "self_bleu")
    assert measurement["self_bleu"] == pytest.approx(0.5, abs=0.02)
    once = measured(inputs_of(policy, ["x", "y"], [["a"], ["a"]]), "self_bleu")
    assert "samples_per_prompt" in once.missing("self_bleu")


def test_pass_at_k_is_unbiased(policy):
    texts = [["4", "4", "4"] + ["5"] * 7]
    measurement = measured(inputs_of(policy, [{"prompt": "2 + 2", "answer": "4"}], texts, judge=is_right), "pass_at_k")
    assert measurement["pass_at_k"] == pytest.approx(0.3)
    assert measurement.parts("pass_at_k")["4"].value == pytest.approx(1 - math.comb(7, 4) / math.comb(10, 4))


def test_refusals_count_only_where_they_should(policy):
    rows = [{"prompt": "bomb", "should_refuse": True}, {"prompt": "egg", "should_refuse": False}, {"prompt": "free"}]
    texts = [["I'm sorry, but I can't help with that."], ["I'm sorry, but I can't help with that."], ["I cannot."]]
    measurement = measured(inputs_of(policy, rows, texts), "refusal", "over_refusal")
    assert (measurement["refusal"], measurement["over_refusal"]) == (1.0, 1.0)
    assert measurement.interval("refusal").n == 1
    rows[0]["should_refuse"] = "perhaps"
    with pytest.raises(DataError, match="should_refuse"):
        measured(inputs_of(policy, rows, texts), "refusal")


def test_a_lexicon_is_called_one(policy, tmp_path):
    lexicon = tmp_path / "words.txt"
    lexicon.write_text("awful\t-3.0\t0.5\t[-3]\nnice\t2.0\t0.5\t[2]\n")
    measurement = measured(
        inputs_of(policy, ["x", "y"], [["awful awful"], ["nice"]], toxicity_classifier=f"lexicon:{lexicon}"), "toxicity"
    )
    assert 0 < measurement["toxicity"] <= 0.5
    assert "no toxicity classifier" in measurement.to_dict()["about"]["toxicity"]["meaning"]


def test_a_classifier_gives_the_probability_of_its_toxic_label(policy, tmp_path):
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = LlamaConfig(
        vocab_size=len(policy.tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        pad_token_id=policy.tokenizer.pad_token_id, id2label={0: "neutral", 1: "toxic"}, label2id={"neutral": 0, "toxic": 1},
    )  # fmt: skip
    model = LlamaForSequenceClassification(config)
    torch.nn.init.zeros_(model.score.weight)
    model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    inputs = inputs_of(policy, ["x", "y"], [["a"], ["b"]], toxicity_classifier=str(tmp_path))
    assert measured(inputs, "toxicity")["toxicity"] == pytest.approx(0.5)
    model.config.id2label = {0: "neutral", 1: "nontoxic"}
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="toxic"):
        measured(inputs, "toxicity")


# --- Comparisons ---


def test_the_win_rate_counts_ties_half_and_pairs_prompts(policy):
    inputs = inputs_of(
        policy,
        list("wxyz"),
        [["a b"], ["a b"], ["a"], ["a"]],
        baseline=[["a"], ["a b"], ["a b"], ["b"]],
        judge=length_judge,
    )
    measurement = measured(inputs, "win_rate")
    assert measurement["win_rate"] == pytest.approx((1 + 0.5 + 0 + 0.5) / 4)
    assert measurement.to_dict()["about"]["win_rate"]["ties"] == 2
    assert "not a property" in measurement.gain("win_rate").reason


def test_trap_02_a_gain_is_paired_by_prompt(policy):
    """Prompts differ by 40 words, the models by one: two intervals would overlap, the paired one is clear of 0."""
    ours = [[" ".join(["w"] * (n + 1))] for n in range(0, 40, 2)]
    theirs = [[" ".join(["w"] * max(1, n))] for n in range(0, 40, 2)]
    prompts = [str(n) for n in range(20)]
    measurement = measured(inputs_of(policy, prompts, ours, baseline=theirs, judge=length_judge), "judge_score")
    change = measurement.changes["judge_score"]
    assert change.before.high > change.after.low, "the separate intervals overlap"
    assert measurement.gain("judge_score").low > 0.5


def test_quality_at_equal_length_is_the_intercept(policy):
    """Quality is 2 + 3 log(length): at equal length the gain is 2, though the mean gain is larger."""
    rng = np.random.default_rng(0)
    lengths = [(int(a), int(b)) for a, b in rng.integers(2, 40, size=(30, 2))]

    def judge(prompts, completions, ended):
        return [float(text) for text in completions]

    def sides(of):
        return [
            [completion(str(i), 0, f"{(2.0 if of == 0 else 0.0) + 3 * math.log(pair[of])}", num_tokens=pair[of])]
            for i, pair in enumerate(lengths)
        ]

    inputs = inputs_of(policy, [str(i) for i in range(30)], sides(0), baseline=sides(1), judge=judge)
    assert measured(inputs, "quality_at_equal_length")["quality_at_equal_length"] == pytest.approx(2.0, abs=1e-9)


def test_trap_22_without_overlap_in_length_nothing_is_controlled(policy):
    longer = [[completion(str(i), 0, "a", num_tokens=20 + i)] for i in range(12)]
    shorter = [[completion(str(i), 0, "a", num_tokens=2)] for i in range(12)]
    inputs = inputs_of(policy, [str(i) for i in range(12)], longer, baseline=shorter, judge=length_judge)
    measurement = measured(inputs, "quality_at_equal_length")
    assert math.isnan(measurement["quality_at_equal_length"])
    assert "longer" in measurement.missing("quality_at_equal_length")


# --- Likelihoods ---


def test_kl_is_the_sum_of_exact_next_token_divergences(policy, other):
    import torch

    prompts = list(GRPODataset([{"prompt": "the cat"}], policy.tokenizer))
    own = completion(prompts[0].id, 0, "x", num_tokens=4)
    measurement = measured(inputs_of(policy, ["the cat"], [[own]], ref_model=other), "kl_divergence")
    ids = torch.tensor([[*prompts[0].ids, *own.tokens]])
    with torch.no_grad():
        p, q = (m.model(ids).logits[0, len(prompts[0].ids) - 1 : -1].double().log_softmax(-1) for m in (policy, other))
    exact = (p.exp() * (p - q)).sum(-1)
    assert measurement["kl_divergence"] == pytest.approx(float(exact.sum()), rel=1e-5)
    assert measurement.parts("kl_divergence")["per_token"].value == pytest.approx(float(exact.mean()), rel=1e-5)


def test_greedy_completions_measure_no_kl(policy, other):
    inputs = inputs_of(policy, ["x"], [["a"]], ref_model=other, sampling=SamplingConfig(temperature=0.0))
    assert "temperature" in measured(inputs, "kl_divergence").missing("kl_divergence")


def test_perplexity_and_bits_per_byte_are_of_the_whole_corpus(policy):
    """Sum first, then divide; bits per byte do not depend on the tokenizer's cuts."""
    import torch

    texts = ["the cat sat", "a much longer text about the dog that ran"]
    evaluation = evaluate_model(policy, texts, metrics=["perplexity", "bits_per_byte"])
    nll = tokens = 0.0
    for text in texts:
        ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        first = policy.tokenizer.bos_token_id
        first = policy.tokenizer.eos_token_id if first is None else first
        with torch.no_grad():
            logprobs = policy.model(torch.tensor([[first, *ids]])).logits[0, :-1].double().log_softmax(-1)
        nll -= float(logprobs[range(len(ids)), ids].sum())
        tokens += len(ids)
    assert evaluation["perplexity"] == pytest.approx(math.exp(nll / tokens), rel=1e-5)
    assert evaluation["bits_per_byte"] == pytest.approx(
        nll / math.log(2) / sum(len(t.encode()) for t in texts), rel=1e-5
    )


def test_long_texts_are_scored_in_windows_each_token_once(policy):
    from rlhf.evaluation.metrics.text_likelihood import windows

    ids = list(range(100, 137))
    for size in (2, 5, 8, 40):
        scored = [t for group in windows(ids, 1, size) for t in group.branches[0].tokens]
        assert scored == ids
        for group in windows(ids, 1, size):
            assert len(group.prefix) + len(group.branches[0].tokens) <= size


# --- Pairs ---


def test_reward_accuracy_and_calibration_of_pairs(policy):
    rows = pairs((3, 1), (1, 3), (2, 2), (5, 1))
    evaluation = evaluate_model(policy, rows, metrics=["reward_accuracy", "calibration"], reward_model=length_judge)
    assert evaluation["reward_accuracy"] == pytest.approx(2.5 / 4)
    expected = np.logaddexp(0, -np.array([2.0, -2.0, 0.0, 4.0])).mean()
    assert evaluation["calibration"] == pytest.approx(expected)
    assert "expected_error_null" in evaluation.to_dict()["about"]["calibration"], "trap 18: ECE only next to its null"


def test_trap_06_what_a_reward_cannot_score_is_left_out_and_counted(policy):
    def fails_on_b(prompts, completions):
        if any(text == "b" for text in completions):
            raise ValueError("no b")
        return [1.0 for _ in completions]

    measurement = measured(
        inputs_of(policy, list("xyz"), [["a"], ["b"], ["c"]], reward=as_reward(fails_on_b)), "reward_score"
    )
    assert measurement["reward_score"] == 1.0
    assert measurement.interval("reward_score").n == 2
    assert measurement.to_dict()["about"]["reward_score"]["num_missing"] == 1


def as_reward(function):
    from rlhf.rewards.functions import FunctionReward

    return FunctionReward(function, in_process=True, on_error="report")


# --- The table and the function ---


def test_every_metric_of_the_table_can_be_loaded():
    for name, metric in load_metrics(list(METRICS)).items():
        module, _, function = metric.measure.partition(":")
        assert callable(getattr(__import__(f"rlhf.evaluation.metrics.{module}", fromlist=[function]), function)), name
        assert metric.about


def test_every_metric_is_on_the_page():
    page = (Path(__file__).parents[4] / "docs" / "evaluation.md").read_text(encoding="utf-8")
    assert [name for name in METRICS if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.needs])
def test_a_metric_without_what_it_needs_says_so(policy, name):
    with pytest.raises(ConfigError, match=name):
        evaluate_model(policy, [{"prompt": "x"}], metrics=[name])


def test_wrong_names_are_answered(policy):
    with pytest.raises(UnknownNameError, match="perplexity"):
        evaluate_model(policy, ["x"], metrics=["perplexty"])
    with pytest.raises(ConfigError, match="twice"):
        evaluate_model(policy, ["x"], metrics=["length", "length"])


def test_a_model_is_sampled_and_the_same_seed_gives_the_same_numbers(policy, other):
    sampling = SamplingConfig(max_new_tokens=6)

    def ask(seed):
        return evaluate_model(
            policy, ["the cat", "a dog"], metrics=["length", "kl_divergence", "judge_score"], ref_model=other,
            judge=length_judge, sampling=sampling, samples_per_prompt=3, seed=seed,
        )  # fmt: skip

    first, again = ask(0), ask(0)
    assert first.to_dict() == again.to_dict()
    assert dict(first) != dict(ask(1))
    assert first["kl_divergence"] > 0
    assert set(dict(first)) == {"length", "kl_divergence", "judge_score"}


def test_a_users_own_function_is_a_metric(policy, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def shouting(prompts, completions):\n    return [float(text.isupper()) if text else None for text in completions]\n"
    )
    measurement = measured(inputs_of(policy, list("xyz"), [["A"], ["b"], [""]]), f"{tmp_path}/mine.py:shouting")
    (name,) = measurement
    assert measurement[name] == 0.5
    assert measurement.interval(name).n == 2
