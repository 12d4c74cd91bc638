from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rlhf.config.policy import SamplingConfig
from rlhf.rollout.sampling import BLOCK, draw, invert_cdf, penalize, threshold, uniforms


def logits_of(probs: list[float]) -> torch.Tensor:
    return torch.tensor([probs], dtype=torch.float64).log()


def even(count: int) -> torch.Tensor:
    """float64 [count] numbers spread evenly over [0, 1)."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def test_the_counter_gives_the_published_numbers():
    # SplitMix64's reference implementation, seed 1234567: its first five outputs
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    seeds = np.array([1234567], dtype=np.uint64)
    actual = [uniforms(seeds, step)[0] for step in range(5)]
    assert actual == [(number >> 11) * 2.0**-53 for number in published]


def test_uniform_numbers_are_uniform_along_a_sample_and_across_samples():
    along = np.array([uniforms(np.array([7], dtype=np.uint64), step)[0] for step in range(4000)])
    across = uniforms(np.arange(4000, dtype=np.uint64), 3)
    for numbers in (along, across):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert kstest(numbers, "uniform").pvalue > 0.001
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.06


def test_a_number_of_a_sample_does_not_hang_on_the_others():
    seeds = np.array([3, 2**63 - 1, 12], dtype=np.uint64)
    assert uniforms(seeds, 9)[1] == uniforms(seeds[1:2], 9)[0]


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 1), (0.2499, 1), (0.25, 2), (0.7499, 2), (0.75, 4), (1 - 2**-53, 4)]
)
def test_the_cumulative_distribution_is_inverted_by_hand(uniform, token):
    # cumulative: 0, 0.25, 0.75, 0.75, 1, 1
    probs = torch.tensor([[0.0, 0.25, 0.5, 0.0, 0.25, 0.0]])
    assert invert_cdf(probs, torch.tensor([uniform], dtype=torch.float64)).tolist() == [token]


@pytest.mark.parametrize("vocabulary", [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 1000])
def test_a_two_level_search_finds_what_a_plain_one_finds(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    probs = torch.softmax(3 * torch.randn(64, vocabulary, generator=generator, dtype=torch.float64), -1)
    uniform = torch.rand(64, generator=generator, dtype=torch.float64)
    plain = torch.searchsorted(probs.cumsum(-1), uniform[:, None], right=True).squeeze(1)
    assert torch.equal(invert_cdf(probs, uniform), plain)


@pytest.mark.parametrize("place", [0, 1, 127, 128, 300])
def test_a_token_of_probability_zero_is_never_drawn(place):
    # float32 sums of the rest round up and down; the last uniform number below 1 must still find the one token
    probs = torch.zeros(1, 301)
    probs[0, place] = 1 / 3
    for uniform in (0.0, 0.5, 1 - 2**-53):
        assert invert_cdf(probs, torch.tensor([uniform], dtype=torch.float64)).tolist() == [place]


def test_drawn_tokens_follow_the_softmax():
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.0, 1.1]])
    count = 20_000
    uniform = torch.from_numpy(uniforms(np.arange(count, dtype=np.uint64), 0))
    drawn = draw(logits.repeat(count, 1), uniform, SamplingConfig())
    expected = torch.softmax(logits[0].double(), -1) * count
    observed = torch.bincount(drawn.tokens, minlength=5)
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic < chi2.ppf(0.999, df=4)


def test_log_probabilities_by_hand():
    # p = 1/2, 1/4, 1/4; the lower half draws token 0, the upper quarter token 2
    drawn = draw(logits_of([0.5, 0.25, 0.25]).repeat(2, 1), torch.tensor([0.1, 0.9]).double(), SamplingConfig())
    assert drawn.tokens.tolist() == [0, 2]
    assert drawn.logprobs.tolist() == pytest.approx([-math.log(2), -math.log(4)], abs=1e-12)
    assert drawn.sampling_logprobs is None


def test_temperature_divides_logits_and_enters_the_log_probability():
    # logits log 4 and 0 at temperature 2: log 2 and 0, so p = 2/3 and 1/3
    logits = torch.tensor([[math.log(4), 0.0]], dtype=torch.float64)
    drawn = draw(logits, torch.tensor([0.7]).double(), SamplingConfig(temperature=2.0))
    assert drawn.tokens.tolist() == [1]
    assert drawn.logprobs.tolist() == pytest.approx([-math.log(3)], abs=1e-12)


def test_greedy_takes_the_likeliest_and_tells_its_probability_at_temperature_one():
    drawn = draw(logits_of([0.25, 0.5, 0.25]), torch.tensor([0.99]).double(), SamplingConfig(temperature=0.0))
    assert drawn.tokens.tolist() == [1]
    assert drawn.logprobs.tolist() == pytest.approx([-math.log(2)], abs=1e-12)
    assert drawn.sampling_logprobs is None


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.7}, [0, 1]),  # 0.5 is too little, 0.5 + 0.25 is enough
        ({"top_p": 0.76}, [0, 1, 2]),
        ({"top_p": 0.01}, [0]),
        ({"min_p": 0.45}, [0, 1]),  # 0.45 * 0.5 = 0.225
        ({"min_p": 0.55}, [0]),
        ({"top_k": 2, "top_p": 0.66}, [0]),  # of the two left, the first holds 2/3
        ({"top_k": 3, "top_p": 0.9, "min_p": 0.29}, [0, 1, 2]),  # of 0.9, the first two hold 0.83; 0.15 > 0.29 * 0.5
        ({"top_k": 3, "top_p": 0.9, "min_p": 0.31}, [0, 1]),
    ],
)
def test_filters_keep_what_a_hand_keeps(settings, kept):
    logits = logits_of([0.5, 0.25, 0.15, 0.1])
    bound = threshold(logits, SamplingConfig(**settings)) - 1e-12
    assert (logits[0] >= bound).nonzero().flatten().tolist() == kept


def test_the_sampling_distribution_is_told_where_it_is_not_the_models():
    # top-k 2 of p = 0.5, 0.25, 0.25 keeps all (equal logits share a fate); of 0.5, 0.3, 0.2 it leaves 5/8 and 3/8
    drawn = draw(logits_of([0.5, 0.3, 0.2]), torch.tensor([0.7]).double(), SamplingConfig(top_k=2))
    assert drawn.tokens.tolist() == [1]
    assert drawn.logprobs.tolist() == pytest.approx([math.log(0.3)], abs=1e-12)
    assert drawn.sampling_logprobs is not None
    assert drawn.sampling_logprobs.tolist() == pytest.approx([math.log(3 / 8)], abs=1e-12)


def test_equal_logits_share_a_fate():
    logits = logits_of([0.4, 0.2, 0.2, 0.2])
    for settings in (SamplingConfig(top_k=2), SamplingConfig(top_p=0.5)):
        assert (logits[0] >= threshold(logits, settings)).all()


def test_a_penalty_pushes_seen_tokens_down_whatever_their_sign():
    # 2 / 2 = 1 and -1 * 2 = -2; the unseen ones stay
    seen = torch.tensor([[True, True, False, False]])
    assert penalize(torch.tensor([[2.0, -1.0, 2.0, -1.0]]), seen, 2.0).tolist() == [[1.0, -2.0, 2.0, -1.0]]


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 0.7},
        {"top_k": 5},
        {"top_p": 0.8},
        {"top_p": 0.3, "temperature": 1.5},
        {"min_p": 0.2},
        {"repetition_penalty": 1.3},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_the_distribution_is_transformers_own(settings):
    generator = torch.Generator().manual_seed(0)
    rows, vocabulary = 8, 700  # more than a nucleus is first looked for in
    logits = 2 * torch.randn(rows, vocabulary, generator=generator)
    history = torch.randint(0, vocabulary, (rows, 30), generator=generator)
    sampling = SamplingConfig(**settings)
    warpers = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        warpers.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k is not None:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    expected = torch.softmax(warpers(history, logits.clone()).double(), -1)
    seen = torch.zeros(rows, vocabulary, dtype=torch.bool).scatter_(1, history, True)

    count = 500
    zeros = torch.zeros(rows, vocabulary)
    for uniform in even(count):
        drawn = draw(logits.clone(), uniform.repeat(rows), sampling, seen=seen)
        picked = expected.gather(1, drawn.tokens[:, None]).squeeze(1)
        told = drawn.sampling_logprobs if drawn.sampling_logprobs is not None else drawn.logprobs
        assert torch.allclose(told.double().exp(), picked, atol=1e-6)
        zeros.scatter_add_(1, drawn.tokens[:, None], torch.ones(rows, 1))
    # evenly spread uniform numbers hit a token as often as its probability says, give or take one
    assert ((zeros - expected * count).abs() <= 1.01).all()


def test_a_large_nucleus_is_found_beyond_the_first_look():
    logits = torch.zeros(1, 3000)
    logits[0, :1500] = 0.001 * torch.arange(1500)
    bound = threshold(logits, SamplingConfig(top_p=0.5))
    probs = torch.softmax(logits.double(), -1)[0]
    kept = logits[0] >= bound
    assert probs[kept].sum() >= 0.5
    assert probs[kept].sum() - probs[kept].min() < 0.5
