"""How much work sampling is, in counts that no clock can blur: passes of the model and the tokens of each.

Useful are the tokens of a prompt, once however many completions it has, and those of a completion, all but the last: nothing is drawn
after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from torch import Tensor, nn

from rlhf.config.policy import SamplingConfig
from rlhf.models.paths import PathChoice
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.sampling_attention import PrefillLayout
from tests.fixtures import tiny
from tests.unit.rollout.helpers import VOCABULARY, build_prompts

ENDS = list(range(5, VOCABULARY, 20))
"""Six tokens of 120, so that a completion of an untrained model has 20 tokens, most of them fewer and some 100."""


@dataclass
class Work:
    prefill: list[int] = field(default_factory=list)
    """Prompt tokens of each pass over prompts."""
    padded_pairs: int = 0
    """Queries times keys of attention to prompts, padding included, in one head of one layer."""
    decode: list[int] = field(default_factory=list)
    """Rows of each pass that decodes."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of each completion."""

    @property
    def fed(self) -> int:
        """Tokens of completions that another was drawn after."""
        return sum(self.lengths) - len(self.lengths)


@pytest.fixture
def sample(word_tokenizer, monkeypatch):
    """Samples from an untrained model in its own code, and tells what passed it."""
    model = tiny.build_llama(vocab_size=VOCABULARY, num_hidden_layers=1, max_position_embeddings=1024)
    model.generation_config.eos_token_id = ENDS
    policy = PolicyModel(model, word_tokenizer, choice=PathChoice("packed", 0.0, "given"))
    work = Work()
    attend = PrefillLayout.attend

    def count_rows(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        work.decode.append(inputs[0].numel())

    def count_pairs(layout: PrefillLayout, *args: Any) -> Tensor:
        work.prefill.append(work.decode.pop())  # this pass reads prompts
        work.padded_pairs += layout.size[0] * layout.size[1] ** 2
        return attend(layout, *args)

    model.get_input_embeddings().register_forward_pre_hook(count_rows)
    monkeypatch.setattr(PrefillLayout, "attend", count_pairs)

    def run(lengths: list[int], *, num_samples: int, max_new_tokens: int = 100, **limits: int) -> Work:
        groups = LocalEngine(policy, fused=False, **limits).generate(
            build_prompts(tuple(lengths)), num_samples=num_samples, sampling=SamplingConfig(max_new_tokens=max_new_tokens),
            seed=3, rollout_index=1,
        )  # fmt: skip
        work.lengths = [len(completion.tokens) for group in groups for completion in group]
        return work

    return run


@pytest.mark.parametrize("num_samples", [1, 8])
def test_a_prompt_passes_the_model_once_however_many_completions_it_has(sample, num_samples):
    lengths = [11, 30, 17, 24]
    work = sample(lengths, num_samples=num_samples)
    assert work.prefill == [sum(lengths)]


def test_a_decoding_pass_gives_every_row_a_token_and_few_rows_are_idle(sample):
    work = sample([10] * 8, num_samples=8)
    assert len(work.decode) == max(work.lengths) - 1
    assert sum(work.decode) >= work.fed
    assert sum(work.decode) / work.fed < 1.1
    assert len(work.decode) * len(work.lengths) > 3 * work.fed, "all are of like length: the test shows too little"


def test_rows_that_end_make_room_for_those_that_wait(sample):
    most = 16
    work = sample([10] * 64, num_samples=2, max_rows=most)
    assert max(work.decode) <= most
    assert sum(work.decode) / work.fed < 1.15
    # as many rows a pass as there may be, but for the last ones, which nobody replaces
    assert len(work.decode) < 1.25 * work.fed / most + max(work.lengths)
    assert sum(work.prefill) == 64 * 10


def test_short_prompts_are_not_padded_to_the_longest_and_share_passes(sample):
    lengths = [20] * 64 + [600] * 6
    work = sample(lengths, num_samples=1, max_new_tokens=2)
    assert sum(work.prefill) == sum(lengths)
    assert len(work.prefill) <= 3
    assert work.padded_pairs / sum(n * n for n in lengths) < 1.3  # 11.6 in one pass
