"""The trainer of context compressors."""

from __future__ import annotations

import pytest
import torch

from rlhf.config.context_compression import CompressorConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, DataError
from rlhf.losses import exact_kl
from rlhf.models.context_compressor import ContextCompressor
from rlhf.models.divergence import distributions
from rlhf.training.algorithm import Totals
from rlhf.training.compressor import CompressorTrainer, contexts_of, nested_sizes
from rlhf.training.metrics import Metrics
from tests.fixtures import toy

pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")  # GPT-2's layers lie the other way


def build(**settings):
    return toy.build_compressor_trainer(**{"dtype": torch.float64, **settings})


def first_batch(trainer):
    (batches,) = list(trainer.steps(0, trainer.collect(0, Metrics())))
    return batches


@pytest.mark.parametrize("frac", [0.0, 0.3, 1.0])
def test_the_loss_is_likelihood_and_divergence_from_the_whole_context(frac):
    trainer = build(distill_frac=frac, nested=False)
    (batch,) = first_batch(trainer)
    compressor = trainer.model
    scores = compressor.score(compressor.encode(contexts_of(batch, compressor.bos)), batch, with_hidden=True)
    whole = distributions(compressor.reader, batch)
    own, theirs = whole.logits(scores.hidden), whole.logits(whole.rows)
    expected = (1 - frac) * -scores.logprobs.mean() + frac * exact_kl(theirs, own).mean()
    loss = trainer.loss(batch, Totals.of([batch]), Metrics())
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_nested_rows_are_answered_from_their_first_vectors_whatever_the_micro_batches():
    drawn = []
    for limit in (10_000, 12):
        trainer = build(microbatch_tokens=limit)
        drawn.append([count for batch in first_batch(trainer) for count in batch.columns["num_vectors"].tolist()])
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == {1, 2}
    (batch,) = first_batch(build())
    trainer = build()
    compressor = trainer.model
    vectors = compressor.encode(contexts_of(batch, compressor.bos))
    parts = [own[:count] for own, count in zip(vectors, batch.columns["num_vectors"].tolist(), strict=True)]
    expected = compressor.score(parts, batch).logprobs.detach()
    torch.testing.assert_close(trainer._answered(batch).logprobs.detach(), expected, atol=1e-12, rtol=0)


def test_vectors_do_not_depend_on_those_behind_them():
    compressor = build().model
    fewer = ContextCompressor(compressor.reader, num_vectors=1)
    with torch.no_grad():
        fewer.queries.copy_(compressor.queries[:1])
        fewer.projection.copy_(compressor.projection)
    both = compressor.compress_prompts(["a b a"]).vectors
    torch.testing.assert_close(both[:, :1], fewer.compress_prompts(["a b a"]).vectors, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("k", "sizes"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_sizes_are_powers_of_two_and_all(k, sizes):
    assert nested_sizes(k) == sizes


def test_two_microbatches_have_the_gradient_of_one():
    gradients = []
    for limit in (10_000, 12):
        trainer = build(microbatch_tokens=limit)
        batches = first_batch(trainer)
        totals = Totals.of(batches)
        for batch in batches:
            trainer.loss(batch, totals, Metrics()).backward()
        gradients.append([p.grad.clone() for p in trainer.model.trainable_parameters().values()])
        assert (len(batches) > 1) == (limit == 12)
    for one, several in zip(*gradients, strict=True):
        torch.testing.assert_close(one, several, atol=1e-8, rtol=1e-6)


def test_training_changes_the_compressor_and_no_weight_of_the_model():
    trainer = build(dtype=torch.float32, held_out=toy.context_rows(8))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    learned = trainer.model.trainable_parameters().keys()
    first = trainer.evaluate()
    result = trainer.train()
    assert result.evaluation["eval/loss"] < first["eval/loss"] - 0.02
    assert result.evaluation["eval/full_loss"] == pytest.approx(first["eval/full_loss"], abs=1e-6)
    changed = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == learned


class KilledError(BaseException):
    """Not an Exception: nothing in the library may catch it."""


def test_a_run_that_is_killed_goes_on_to_the_same_bits(tmp_path):
    settings = {"dtype": torch.float32, "max_steps": 6, "save_every": 2, "save_in_background": False}
    whole = build(**settings, checkpoint_dir=tmp_path / "whole")
    whole.train()
    killed = build(**settings, checkpoint_dir=tmp_path / "killed")
    loss, calls = killed.loss, []

    def dies(*given):
        calls.append(1)
        if len(calls) == 5:
            raise KilledError
        return loss(*given)

    killed.loss = dies
    with pytest.raises(KilledError):
        killed.train()
    resumed = build(**settings, checkpoint_dir=tmp_path / "killed")
    resumed.train()
    for name, parameter in whole.model.trainable_parameters().items():
        assert torch.equal(resumed.model.trainable_parameters()[name], parameter), name


def test_a_row_without_context_is_named():
    with pytest.raises(DataError, match="'lost'"):
        build(train=[*toy.context_rows(2), Group([5], [Branch([6])], {"id": "lost"})])


def test_a_context_that_is_too_long_is_named():
    with pytest.raises(DataError, match="max_context_length"):
        build(max_context_length=1)


def test_a_policy_is_no_compressor():
    with pytest.raises(ConfigError, match="ContextCompressor"):
        CompressorTrainer(toy.build_policy(), CompressorConfig(), toy.context_rows(2))


def test_contexts_are_read_back_from_a_batch():
    trainer = build()
    groups = trainer.train_data
    batch = trainer.pack(groups)
    batch.check()
    assert contexts_of(batch, trainer.model.bos) == trainer.model.ids([g.columns["context"] for g in groups])
    assert pack(groups).num_scored == batch.num_scored
