"""How much work a step is, in counts that no clock can blur: forward passes, tokens that pass the model, bytes of tensors.

The peer benchmark says how fast a step is; this says that it did not become another amount of work. Ratios are stated where they are
checked: a token that is processed is one that goes through the embedding, a useful one stands in a packed row (a shared prompt once).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rlhf.config.preference import DPOConfig
from rlhf.config.sft import SFTConfig
from rlhf.data.pack import Branch, Group
from rlhf.models.policy import PolicyModel
from rlhf.training.dpo import DPOTrainer
from rlhf.training.sft import SFTTrainer
from tests.fixtures import tiny, toy


class Passes:
    """Forward passes of a model and the tokens of each."""

    def __init__(self, model: nn.Module) -> None:
        self.tokens: list[int] = []
        self._hook = model.get_input_embeddings().register_forward_pre_hook(self._count)

    def _count(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.tokens.append(inputs[0].numel())

    @property
    def total(self) -> int:
        return sum(self.tokens)


def counted(name: str, rows: list[Group], **settings: Any) -> tuple[Any, Passes]:
    """A toy trainer that ran to its end, and what its model did; the search for the path its batches take comes before."""
    trainer = toy.build_trainer(name, **settings)
    model = trainer.model if name == "reward" else trainer.policy
    if name == "reward":
        model.raw_scores(trainer.pack(rows[:2]))
    else:
        model.choose_path(rows[:2])
    passes = Passes(model.members[0] if name == "reward" else model.model)
    trainer.train()
    return trainer, passes


EPOCHS = 2
ALL_ROWS: dict[str, Callable[[int], list[Group]]] = {"sft": toy.rows, "kto": toy.verdicts}


def num_tokens(rows: list[Group]) -> int:
    return sum(group.num_tokens for group in rows)


@pytest.mark.parametrize("name", ["sft", "simpo", "cpo", "orpo"])
def test_a_step_is_one_forward_of_its_distinct_tokens(name: str):
    rows = ALL_ROWS.get(name, toy.pairs)(10)
    trainer, passes = counted(name, rows, epochs=EPOCHS)
    assert len(passes.tokens) == trainer.num_phases == 6
    assert passes.total / (EPOCHS * num_tokens(rows)) == 1.0


def test_the_reference_of_dpo_costs_one_pass_over_the_rows_however_many_epochs():
    rows = toy.pairs(10)
    for epochs in (1, 3):
        _, passes = counted("dpo", rows, epochs=epochs)
        assert passes.total / num_tokens(rows) == 1 + epochs


def test_a_step_of_the_reward_model_is_one_forward_of_its_distinct_tokens():
    rows = toy.pairs(10)
    _, passes = counted("reward", rows, epochs=EPOCHS, normalize=False)
    assert passes.total / (EPOCHS * num_tokens(rows)) == 1.0


def test_kto_asks_the_policy_twice_a_step():
    """Once for its own rows, once, without gradient, for the completions of other prompts that z0 is measured on."""
    rows = toy.verdicts(10)
    trainer, passes = counted("kto", rows, epochs=1)
    assert len(passes.tokens) == 2 * trainer.num_phases
    assert (
        passes.total / num_tokens(rows) <= 2.4
    )  # a mismatched row shares no prompt, and may be longer than what it replaces


@pytest.mark.parametrize(("name", "epochs"), [("grpo", 1), ("grpo", 2), ("ppo", 2)])
def test_a_rollout_passes_the_policy_once_to_be_sampled_and_once_for_each_epoch(name: str, epochs: int):
    trainer = toy.build_trainer(name, epochs_per_rollout=epochs, rollouts=3)
    trainer.policy.choose_path(toy.rows(2))
    passes = Passes(trainer.policy.model)
    seen = distinct_tokens_of(trainer)
    trainer.train()
    # the first rollout is scored once more, to see that sampler and trainer are one model
    limit = epochs + 1 + 1 / 3
    assert passes.total / sum(seen) <= 1.1 * limit
    assert passes.total / sum(seen) > epochs


def distinct_tokens_of(trainer: Any) -> list[int]:
    """Filled as the trainer samples: the distinct tokens of each rollout."""
    counts: list[int] = []
    generate = trainer.collector.engine.generate

    def remembered(prompts: Any, **how: Any) -> Any:
        said = generate(prompts, **how)
        counts.append(sum(len(p.ids) for p in prompts) + sum(len(c.tokens) for group in said for c in group))
        return said

    trainer.collector.engine.generate = remembered
    return counts


# --- memory -----------------------------------------------------------------------------------------------------------

VOCABULARY, HIDDEN, PROMPT, COMPLETION = 16_000, 16, 40, 60


class PeakBytes(TorchDispatchMode):
    """Most bytes of tensors made inside that were alive at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.largest = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self._see(tensor.untyped_storage())
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive or not size:
            return
        self._alive.add(key)
        self.now += size
        self.largest = max(self.largest, size)
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size


@contextmanager
def peak_bytes() -> Iterator[PeakBytes]:
    mode = PeakBytes()
    with mode:
        yield mode


def peak_of_a_run(kind: str, batch_size: int) -> tuple[int, int, int]:
    """Peak and largest tensor of two steps beyond weights, and the bytes of the step's logits in float32."""
    model = tiny.build_llama(vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=32)
    policy = PolicyModel(model, toy.TOKENIZER)
    ids = torch.randint(3, VOCABULARY, (2 * batch_size, PROMPT + 2 * COMPLETION)).tolist()
    branches = 1 if kind == "sft" else 2
    rows = [
        Group(
            row[:PROMPT], [Branch(row[PROMPT + n * COMPLETION :][:COMPLETION]) for n in range(branches)], {"id": str(i)}
        )
        for i, row in enumerate(ids)
    ]
    policy.choose_path(rows[:1])
    settings = {"batch_size": batch_size, "epochs": 1, "learning_rate": 1e-4}
    trainer = (
        SFTTrainer(policy, SFTConfig.of(settings), rows)
        if kind == "sft"
        else DPOTrainer(policy, DPOConfig.of(settings), rows)
    )
    with peak_bytes() as seen:
        trainer.train()
    return seen.peak, seen.largest, batch_size * branches * COMPLETION * VOCABULARY * 4


@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_memory_grows_by_a_fraction_of_what_logits_would(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "rlhf.models.vocabulary_tiles.KEPT_BYTES", 1 << 16
    )  # a constant that both runs fill, as real ones do
    small, _, logits = peak_of_a_run(kind, 8 if kind == "sft" else 4)
    large, largest, more_logits = peak_of_a_run(kind, 24 if kind == "sft" else 12)
    assert (large - small) / (more_logits - logits) < 0.10
    assert largest / more_logits < 0.25, (
        "a tensor with a column for each word of the vocabulary and a row for each token"
    )


def test_the_measure_sees_logits_where_they_are_made():
    with peak_bytes() as seen:
        hidden = torch.ones(100, HIDDEN, requires_grad=True)
        (hidden @ torch.ones(HIDDEN, VOCABULARY)).log_softmax(-1).sum().backward()
    assert seen.largest == 100 * VOCABULARY * 4
    assert seen.peak > 2 * seen.largest
    del hidden
    assert seen.now < seen.peak / 10, "what is gone is not counted"
