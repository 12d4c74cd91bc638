"""Guessing changes how many passes are made, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf.config.engines import PromptLookupConfig
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ModelError
from rlhf.models.paths import PathChoice
from rlhf.models.policy import PolicyModel
from rlhf.rollout.cache import Buffer, KVCache
from rlhf.rollout.draft_decoder import DraftingDecoder, DraftLayout
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.lookup import GroupLookup
from rlhf.rollout.types import Completion
from tests.unit.rollout.helpers import EOS_IDS, build_family, build_prompts

pytestmark = pytest.mark.numeric

GUESSING = PromptLookupConfig(ngram_tokens=1, draft_tokens=3, max_rows=100)
REPEATING = SamplingConfig(max_new_tokens=80, temperature=0.3)
"""So cold that random weights say the same again; longer than a block of the cache, so that it grows."""
PACKED = PathChoice("packed", 0.0, "given")


@pytest.fixture
def prompts() -> list[Prompt]:
    return build_prompts((11, 3, 1, 17, 8, 8))


def ask(engine: LocalEngine, prompts: list[Prompt], sampling: SamplingConfig, *, num_samples: int = 3):
    return engine.generate(prompts, num_samples=num_samples, sampling=sampling, seed=3, rollout_index=1)


def differences(first: list[list[Completion]], second: list[list[Completion]]) -> float:
    """Largest difference of log-probabilities, of completions that are equal in everything else."""
    worst = 0.0
    for one, other in zip((c for g in first for c in g), (c for g in second for c in g), strict=True):
        bare = {"logprobs": [], "sampling_logprobs": None}
        assert replace(one, **bare) == replace(other, **bare)
        for name in ("logprobs", "sampling_logprobs"):
            numbers = getattr(one, name) or [], getattr(other, name) or []
            worst = max([worst, *(abs(a - b) for a, b in zip(*numbers, strict=True))])
    return worst


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("limits", [{}, {"max_rows": 4}])
def test_samples_and_log_probabilities_are_those_without_guesses(double, limits, word_tokenizer, prompts):
    model = build_family("llama")
    policy = PolicyModel(model.double() if double else model, word_tokenizer, choice=PACKED)
    engine = LocalEngine(policy, speculate=GUESSING, **limits)
    reply = ask(engine, prompts, REPEATING)
    assert differences(ask(LocalEngine(policy, **limits), prompts, REPEATING), reply) < (1e-12 if double else 2e-5)
    assert engine.figures["rollout/tokens_per_forward"] > 1.02, "no guess came true: the test shows too little"
    assert engine.figures["rollout/draft_accept_frac"] < 0.9, "no guess was wrong: the test shows too little"


class Oracle(GroupLookup):
    """Knows what will be said, one place in three excepted."""

    said: dict[int, list[int]]
    misled = False

    def guess(self, row: int, most: int) -> list[int]:
        known, done = self.said[row], len(self._texts[row]) - min(len(self._prompt), self.ngram_tokens)
        guesses = known[done : done + most] + [11] * max(0, most - len(known[done:]))
        if self.misled:
            guesses = [token if (done + place) % 3 else (token + 1) % 120 for place, token in enumerate(guesses)]
        return guesses


def guess_by(expected: list[list[Completion]], monkeypatch, *, misled: bool) -> None:
    """Let guesses be what was said before, or nearly."""
    monkeypatch.setattr(Oracle, "said", dict(enumerate(c.tokens for group in expected for c in group)), raising=False)
    monkeypatch.setattr(Oracle, "misled", misled)
    monkeypatch.setattr("rlhf.rollout.lookup.GroupLookup", Oracle)


@pytest.mark.parametrize(
    ("family", "double"),
    [("mistral", True), ("qwen3", True), ("gemma2", True), ("gpt_oss", False), ("gpt2", True), ("granite", False)],
)
def test_windows_caps_sinks_and_grouped_heads_are_kept(family, double, word_tokenizer, prompts, monkeypatch):
    model = build_family(family)
    policy = PolicyModel(model.double() if double else model, word_tokenizer, choice=PACKED)
    sampling = SamplingConfig(max_new_tokens=70)
    expected = ask(LocalEngine(policy, max_rows=4), prompts, sampling)
    guess_by(expected, monkeypatch, misled=True)
    engine = LocalEngine(policy, speculate=GUESSING, max_rows=4)
    assert differences(expected, ask(engine, prompts, sampling)) < (1e-12 if double else 2e-5)
    assert engine.figures["rollout/tokens_per_forward"] > 1.3


@pytest.mark.parametrize(
    "changes",
    [
        {"stop": ["w7", "w44"]},
        {"temperature": 0.0},
        {"repetition_penalty": 1.1, "top_k": 10},
        {"top_p": 0.9},
        {"max_new_tokens": 1},
        {"max_new_tokens": 2},
    ],
)
def test_ends_filters_and_penalties_are_kept(changes, word_tokenizer, prompts):
    policy = PolicyModel(build_family("llama").double(), word_tokenizer, choice=PACKED)
    sampling = REPEATING.updated(**changes)
    expected = ask(LocalEngine(policy), prompts, sampling)
    assert differences(expected, ask(LocalEngine(policy, speculate=GUESSING), prompts, sampling)) < 1e-12
    if "stop" in changes:
        assert any(c.finish_reason == "stop" for group in expected for c in group)


@pytest.mark.parametrize("misled", [False, True])
@pytest.mark.parametrize("fused", [True, False])
def test_right_guesses_save_passes_also_past_ends_and_beside_wrong_ones(misled, fused, word_tokenizer, monkeypatch):
    """Guesses go on after the EOS here, and rows end in the middle of what was right."""
    policy = PolicyModel(build_family("llama").double(), word_tokenizer, choice=PACKED)
    prompts = build_prompts((11, 3, 8))
    sampling = SamplingConfig(max_new_tokens=70)
    expected = ask(LocalEngine(policy, fused=fused), prompts, sampling)
    guess_by(expected, monkeypatch, misled=misled)
    settings = PromptLookupConfig(ngram_tokens=1, draft_tokens=6, max_rows=5)
    engine = LocalEngine(policy, fused=fused, speculate=settings, max_rows=5)
    assert differences(expected, ask(engine, prompts, sampling)) < 1e-12
    longest = max(len(c.tokens) for group in expected for c in group)
    assert any(c.tokens[-1] in EOS_IDS for group in expected for c in group)
    assert engine._drafts.forwards < (0.75 if misled else 0.5) * 2 * longest
    assert engine.figures["rollout/tokens_per_forward"] > (1.5 if misled else 3)


@pytest.mark.parametrize("samples", [1, 2])
def test_rows_with_equally_many_guesses_and_a_single_row_agree_too(samples, word_tokenizer, monkeypatch):
    policy = PolicyModel(build_family("llama").double(), word_tokenizer, choice=PACKED)
    prompts, sampling = build_prompts((7,)), SamplingConfig(max_new_tokens=30, temperature=0.5)
    expected = ask(LocalEngine(policy), prompts, sampling, num_samples=samples)
    guess_by(expected, monkeypatch, misled=True)
    assert (
        differences(expected, ask(LocalEngine(policy, speculate=GUESSING), prompts, sampling, num_samples=samples))
        < 1e-12
    )


def test_what_was_guessed_wrongly_is_not_seen_later(word_tokenizer):
    """The same tokens, fed with wrong guesses behind them or without, are followed by the same logits."""
    decoder = DraftingDecoder(build_family("mistral").double(), KVCache(), max_prefill_tokens=100)
    prompts, group = [[20, 21, 22], [30, 31]], torch.tensor([0, 1]).numpy()

    def logits(guesses: list[int]) -> torch.Tensor:
        decoder.prefill(prompts, group, 40)
        for held in range(8):
            wrong = [token for row in range(2) for token in (40 + held + row, *guesses)]
            counts = torch.tensor([1 + len(guesses)] * 2).numpy()
            out = decoder.step_drafted(torch.tensor(wrong), counts, torch.tensor([held] * 2).numpy())
        return out[:: 1 + len(guesses)]

    with torch.no_grad():
        assert torch.allclose(logits([]), logits([99, 98, 97]), atol=1e-12)
    assert isinstance(decoder.layout, DraftLayout)


def test_a_row_that_is_far_behind_does_not_see_the_room_that_another_needs(monkeypatch):
    """Memory as it is found may hold NaN, and the tables grow in the middle."""
    view = Buffer.view
    monkeypatch.setattr(Buffer, "view", lambda *args: view(*args).fill_(float("nan")))
    model = build_family("llama")
    decoder = DraftingDecoder(model, KVCache(), max_prefill_tokens=100)
    alone = DraftingDecoder(model, KVCache(), max_prefill_tokens=100)
    with torch.no_grad():
        decoder.prefill([[20, 21], [30, 31]], np.array([0, 1]), 90)
        alone.prefill([[30, 31]], np.array([0]), 90)
        for held in range(80):
            slow = held // 8
            actual = decoder.step_drafted(torch.tensor([40, 40 + slow]), np.array([1, 1]), np.array([held, slow]))
            if held % 8 == 0:
                expected = alone.step_drafted(torch.tensor([40 + slow]), np.array([1]), np.array([slow]))
            assert torch.allclose(actual[1:], expected, atol=1e-4)


def test_guesses_begin_when_few_rows_are_left(word_tokenizer, monkeypatch):
    policy = PolicyModel(build_family("llama").double(), word_tokenizer, choice=PACKED)
    prompts, sampling = build_prompts((11, 3, 8)), SamplingConfig(max_new_tokens=70)
    expected = ask(LocalEngine(policy), prompts, sampling)
    guess_by(expected, monkeypatch, misled=False)
    fed = []
    step = DraftingDecoder.step_drafted
    noted = lambda decoder, tokens, counts, held: fed.append(counts) or step(decoder, tokens, counts, held)  # noqa: E731
    monkeypatch.setattr(DraftingDecoder, "step_drafted", noted)
    few = PromptLookupConfig(ngram_tokens=1, draft_tokens=3, max_rows=4)
    assert differences(expected, ask(LocalEngine(policy, speculate=few), prompts, sampling)) < 1e-12
    assert all((counts == 1).all() for counts in fed if len(counts) > 4)
    assert any((counts > 1).all() for counts in fed if len(counts) <= 4)
    assert max(map(len, fed)) > 4


def test_a_model_that_keeps_its_own_cache_can_not_be_asked_to_guess(word_tokenizer, prompts):
    policy = PolicyModel(build_family("mamba"), word_tokenizer)
    with pytest.raises(ModelError, match=r"engine\.speculate.* Mamba"):
        ask(LocalEngine(policy, speculate=GUESSING), prompts, REPEATING)


def test_the_same_request_is_guessed_at_in_the_same_way_again(word_tokenizer, prompts):
    """A resumed run makes the same passes, so that its numbers are equal to the last bit."""
    policy = PolicyModel(build_family("llama"), word_tokenizer)
    engine = LocalEngine(policy, speculate=GUESSING)
    first, counts = ask(engine, prompts, REPEATING), engine._drafts
    assert ask(engine, prompts, REPEATING) == first == ask(LocalEngine(policy, speculate=GUESSING), prompts, REPEATING)
    assert engine._drafts == counts
