from __future__ import annotations

import pytest

from rlhf.allocator import KERNELS, PRIMITIVES
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.rollout.continuous_batching import SamplingRun
from rlhf.scale import warm
from rlhf.scale.machine import Machine
from rlhf.scale.sampling_costs import Rollouts, SamplingProbe, row_counts
from tests.unit.scale.test_probe import HERE, shape

PROMPTS = [Prompt(str(i), list(range(8)), "") for i in range(4)]


def probe(machine: Machine = HERE) -> SamplingProbe:
    return SamplingProbe(shape(), PROMPTS, 2, machine, autocast="none", sampling=SamplingConfig(max_new_tokens=16))


def asked(monkeypatch):
    """Rows of each step that the engine decodes."""
    sizes: list[int] = []
    step = SamplingRun._step

    def noted(run, tokens):
        sizes.append(len(run.rows))
        return step(run, tokens)

    monkeypatch.setattr(SamplingRun, "_step", noted)
    return sizes


def test_a_probe_decodes_in_as_many_rows_as_completions_go_on(monkeypatch):
    rows = asked(monkeypatch)
    sampler = probe()
    lengths = [1, 2, 2, 3, 5, 5, 9, 12]
    engine = sampler._engine(sampler._policy(1), lengths)
    sampler._ask(engine, len(lengths), max(lengths))
    assert rows == row_counts(lengths) == [7, 5, 4, 4, 2, 2, 2, 2, 1, 1, 1]


def test_rows_that_ended_stay_until_they_are_a_sixteenth():
    assert row_counts([2] + [4] * 31) == [32, 32, 32]  # 1 of 32 does not pay
    assert row_counts([2, 2] + [4] * 30) == [32, 30, 30]


def test_a_rollout_that_takes_long_is_tried_in_part_and_counted_whole(monkeypatch):
    rows = asked(monkeypatch)
    slow = probe(
        Machine(**{**{f: getattr(HERE, f) for f in HERE.__dataclass_fields__}, "matmul_flops": {"float32": 1e6}})
    )
    slow.inner.layers = [1]
    monkeypatch.setattr(slow, "_timed", lambda engine, lengths, number: (0.5, 0.001 * sum(lengths)))
    prefill, decode = slow.decode(32, 4, [40] * 8)
    assert prefill == 0.5
    assert decode == pytest.approx(0.001 * 8 * 40)  # by the token, whatever part of them was sampled
    assert slow._share(1, [40] * 8) < 0.2
    assert not rows


def test_each_rollout_of_a_probe_has_other_prompts(monkeypatch):
    sampler = probe()
    engine = sampler._engine(sampler._policy(1), [1] * 4)
    seen = []
    monkeypatch.setattr(engine, "generate", lambda prompts, **_: seen.append([list(p.ids) for p in prompts]))
    sampler.prompts = [Prompt(str(i), [i + 3], "") for i in range(5)]
    for number in range(3):
        sampler._ask(engine, 4, 1, number)
    assert seen == [[[3], [4]], [[5], [6]], [[7], [3]]]


def test_sampling_for_longer_takes_as_many_more_steps(monkeypatch):
    rows, sampler = asked(monkeypatch), probe()
    timed = sampler._timed

    def counted(engine, lengths, number):  # a step takes a second
        before = len(rows)
        timed(engine, lengths, number)
        return 0.0, float(len(rows) - before)

    monkeypatch.setattr(sampler, "_timed", counted)
    actual = [sampler.decode(32, 4, [length] * 8)[1] for length in (2, 40)]
    assert actual == pytest.approx([1.0, 39.0]), "the first token comes with the prompt"


def test_every_number_of_rows_has_kernels_of_its_own_until_the_oldest_leave(monkeypatch):
    sampler = probe()
    monkeypatch.setenv(PRIMITIVES, str(KERNELS))
    monkeypatch.setattr(sampler, "_rollouts", lambda lengths: [Rollouts(1, 0.0, 0.0, 100.0)])
    lengths = list(range(1, 65))
    once, often = sampler.kernel_bytes(lengths, 1), sampler.kernel_bytes(lengths, 50)
    assert 500 < once < often <= 100 * 64
    most = 100.0 * (KERNELS // shape().num_products)
    assert sampler.kernel_bytes(list(range(1, 600)) * 2, 64) == most


def test_freed_memory_is_kept_as_in_a_run_before_anything_is_measured(monkeypatch):
    done = []
    monkeypatch.setattr(warm, "keep_freed_memory", lambda: done.append("kept"))
    monkeypatch.setattr(warm, "forget_kernels", lambda: done.append("forgotten"))
    monkeypatch.setattr(warm, "score", lambda *a, **k: (_ for _ in ()).throw(RuntimeError("measured")))
    with pytest.raises(RuntimeError, match="measured"):
        warm.warm_up()
    assert done == ["kept", "forgotten"]


def test_a_stage_that_samples_is_warmed_up_with_sampling(monkeypatch):
    rows = asked(monkeypatch)
    warm.warm_up()
    assert not rows
    warm.warm_up(samples=True)
    assert rows
