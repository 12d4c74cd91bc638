"""What makes the two sides' work the same: one tokenizer, completions that end, rows in one order."""

from __future__ import annotations

import random

import pytest
import torch

from benchmarks.peer.cases import EOS, FIRST_WORD, Case
from benchmarks.peer.models import build_tokenizer, make_completions_end
from benchmarks.peer.side_generate import no_end, sample
from benchmarks.peer.side_rlhf import SEED, offline, placed
from benchmarks.peer.work import draw_rows, text_of
from rlhf.config.sft import SFTConfig
from rlhf.data.pack import Branch, Group
from rlhf.training.row_order import Cycle, ShuffledRows
from tests.fixtures import tiny


def test_the_tokenizer_gives_back_the_ids_that_a_text_names():
    tokenizer = build_tokenizer(500)
    rng = random.Random(0)
    ids = [*(rng.randrange(FIRST_WORD, 500) for _ in range(100)), EOS]
    assert tokenizer(text_of(ids))["input_ids"] == ids
    assert tokenizer(text_of(ids[:60]) + " " + text_of(ids[60:]))["input_ids"] == ids


def test_every_sampled_token_ends_a_completion_with_about_the_probability_asked_for():
    model = tiny.build_llama(vocab_size=500, seed=3)
    make_completions_end(model, one_in=20)
    ids = torch.randint(FIRST_WORD, 500, (8, 64), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        probability = model(input_ids=ids).logits.softmax(-1)[..., EOS]
    assert probability.mean().item() == pytest.approx(1 / 20, rel=0.3)
    assert probability.max().item() < 0.5


def test_greedy_completions_go_on_where_they_are_compared():
    model = tiny.build_llama(vocab_size=500, seed=3)
    make_completions_end(model, one_in=20)
    before = model.lm_head.weight.detach().clone()
    with no_end(model):
        actual = sample(model, [[5, 6, 7], [8]], 2, max_new_tokens=6, do_sample=False)
    assert [len(row) for row in actual] == [6] * 4
    assert actual[0] == actual[1] != actual[2]
    assert torch.equal(model.lm_head.weight, before)


def test_our_trainers_take_the_rows_in_the_order_of_the_file():
    case = Case("sft", rows=3)
    rows = draw_rows(case, count=9)
    groups = placed([Group(r["prompt"], [Branch(r["completions"][0])], {"id": str(n)}) for n, r in enumerate(rows)])
    settings = offline({"learning_rate": 1e-4}, case)
    taken = ShuffledRows(groups, SFTConfig.of(settings))
    assert [[group.columns["id"] for group in taken.take(step)] for step in range(3)] == [
        ["0", "1", "2"], ["3", "4", "5"], ["6", "7", "8"],
    ]  # fmt: skip


def test_our_trainers_ask_the_prompts_in_the_order_of_the_file():
    prompts = placed(list(range(8)), name="prompts")
    order = Cycle(8, seed=SEED, name="prompts")
    assert [prompts[n] for n in order.take(0, 8)] == list(range(8))
