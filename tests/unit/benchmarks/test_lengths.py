"""Sampled completions end by themselves, or a row is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.peer.agreement import Disagreement, check_lengths
from benchmarks.peer.cases import Case
from benchmarks.peer.models import SPIKE, build
from benchmarks.peer.work import draw_rows
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine

CASE = Case("generate", model="tiny", rows=8, group=8)


def test_completions_end_as_the_weights_were_made_for(tmp_path: Path):
    build(tmp_path, CASE.shape, ends_after=CASE.ends_after, with_judge=False)
    policy = PolicyModel.from_pretrained(str(tmp_path))
    prompts = [Prompt(str(n), row["prompt"], "") for n, row in enumerate(draw_rows(CASE, count=8))]
    sampling = SamplingConfig(max_new_tokens=CASE.max_new_tokens)
    groups = LocalEngine(policy).generate(prompts, num_samples=8, sampling=sampling, seed=0, rollout_index=0)
    lengths = [len(completion.tokens) for group in groups for completion in group]
    check_lengths(CASE, "rlhf", lengths)
    assert min(lengths) < 20


@pytest.mark.parametrize("lengths", [[128] * 20, [5] * 20, [60] * 9 + [128] * 11])
def test_completions_that_do_not_are_no_row(lengths: list[int]):
    with pytest.raises(Disagreement, match=r"trl.*58"):
        check_lengths(CASE, "trl", lengths)


def test_completions_that_do_pass():
    check_lengths(CASE, "trl", [40, 20, 128, 64, 100, 50, 30, 128])


def test_no_layer_adds_to_the_unit_that_says_when_to_end(tmp_path: Path):
    build(tmp_path, CASE.shape, ends_after=CASE.ends_after, with_judge=False)
    model = PolicyModel.from_pretrained(str(tmp_path)).model
    actual = []
    model.model.norm.register_forward_hook(lambda module, given, output: actual.append(given[0]))
    with torch.no_grad():
        model(input_ids=torch.arange(3, 60)[None])
    assert (actual[0][..., 0] == torch.tensor(SPIKE)).all()
