from __future__ import annotations

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rlhf.config.preference import KTOConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, DataError
from rlhf.losses import mismatched_rows
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import AdapterOffReference, ReferenceModel
from rlhf.training.algorithm import Totals
from rlhf.training.kto import KTOTrainer
from rlhf.training.log import TrainingLogger
from rlhf.training.loop import Loop
from rlhf.training.metrics import Metrics
from tests.fixtures import toy


def summed(policy, groups) -> list[float]:
    """Nats of each row's completion, each row scored by itself."""
    with torch.no_grad():
        return [float(policy.score(pack([group])).logprobs.sum()) for group in groups]


def step(trainer) -> tuple[float, dict[str, float]]:
    """Loss and metrics of the first step's rows, without changing anything."""
    metrics = Metrics()
    batches = next(trainer.steps(0, trainer.collect(0, metrics)))
    with torch.no_grad():
        trainer.before_step(batches, metrics)
        loss = sum(trainer.loss(batch, Totals.of(batches), metrics) for batch in batches)
    return float(loss), metrics.result()


def moved(trainer) -> list[float]:
    """Change the policy; the log-ratios of the first step's rows, by hand."""
    trainer.collect(0, Metrics())
    groups = trainer.rows.take(0)
    before = summed(trainer.policy, groups)
    toy.change_weights(trainer.policy.model, by=0.1, seed=6)
    return [after - ref for after, ref in zip(summed(trainer.policy, groups), before, strict=True)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({}, 0.5),  # 1 - sigmoid(0), of good and bad rows alike
        ({"reference_point": "zero"}, 0.5),
        ({"loss": "bco"}, math.log(2)),
    ],
    ids=["kto", "zero", "bco"],
)
def test_the_first_loss_is_that_of_a_policy_that_is_its_reference(settings, first):
    loss, metrics = step(toy.build_trainer("kto", **settings))
    assert loss == pytest.approx(first, abs=1e-5)
    assert metrics["kto/reference_point"] == pytest.approx(0, abs=1e-5)


def test_z0_is_how_likely_completions_of_other_prompts_have_become(monkeypatch):
    trainer = toy.build_trainer("kto", batch_size=6, beta=0.5, desirable_weight=1.3, undesirable_weight=0.7)
    asked = []

    def listening(prompts, *, seed):
        asked.append((list(prompts), mismatched_rows(prompts, seed=seed)))
        return asked[-1][1]

    monkeypatch.setattr("rlhf.training.kto.mismatched_rows", listening)
    ratios = moved(trainer)
    loss, metrics = step(trainer)
    ((prompts, match),) = asked
    assert all(prompts[row] != prompts[donor] for row, donor in enumerate(match)), "never a completion of its own"
    rows = sorted(trainer.rows.take(0), key=lambda g: (tuple(g.prefix), tuple(g.branches[0].tokens)))
    mixed = [Group(row.prefix, rows[donor].branches) for row, donor in zip(rows, match, strict=True)]
    differences = zip(summed(trainer.policy, mixed), summed(toy.build_policy(), mixed), strict=True)
    z0 = sum(now - then for now, then in differences) / 6
    assert z0 > 0.1
    assert metrics["kto/reference_point"] == pytest.approx(z0, rel=1e-4)
    expected = [
        1.3 * (1 - sigmoid(0.5 * (ratio - z0))) if row.columns["label"] else 0.7 * (1 - sigmoid(0.5 * (z0 - ratio)))
        for row, ratio in zip(trainer.rows.take(0), ratios, strict=True)
    ]
    assert loss == pytest.approx(sum(expected) / 6, rel=1e-4)
    good = [0.5 * ratio for row, ratio in zip(trainer.rows.take(0), ratios, strict=True) if row.columns["label"]]
    assert metrics["kto/desirable_reward"] == pytest.approx(sum(good) / len(good), rel=1e-3)
    assert (metrics["kto/num_desirable"], metrics["kto/num_undesirable"]) == (len(good), 6 - len(good))


def test_every_step_has_its_own_pairing():
    trainer = toy.build_trainer("kto", batch_size=6)
    moved(trainer)
    groups = trainer.rows.take(0)
    points = {round(trainer._measured_point(groups, "step", number), 6) for number in range(4)}
    assert len(points) > 1
    assert trainer._measured_point(groups, "step", 1) == trainer._measured_point(groups, "step", 1)


def test_a_completion_that_does_not_fit_behind_another_prompt_is_cut():
    """The model reads 64 tokens; each row has 61, and prompts and completions of different rows would make 100."""
    rows = [
        Group([5] * 50, [Branch([6] * 11)], {"id": "0", "label": True}),
        Group([7] * 11, [Branch([8] * 50)], {"id": "1", "label": False}),
    ]
    KTOTrainer(toy.build_policy(), KTOConfig(max_steps=1, learning_rate=1e-3), rows).train()


def test_a_running_point_is_the_average_of_earlier_steps():
    settings = {"reference_point": "running", "reference_point_decay": 0.5}
    log = TrainingLogger()
    trainer = toy.build_trainer("kto", log=log, **settings, learning_rate=3e-3, epochs=6, beta=0.5)
    seen = []
    take = trainer.take_step

    def listening(optimizer, step, batches):
        seen.append(sum(float((a - b).sum()) for a, b, _ in trainer._seen.values()) / 5)
        return take(optimizer, step, batches)

    trainer.take_step = listening
    trainer.train()
    average, expected = None, []
    for mean in seen:
        expected.append(max(0.0, average or 0.0))
        average = mean if average is None else 0.5 * average + 0.5 * mean
    points = [event["metrics"]["kto/reference_point"] for event in log.read("metrics")]
    assert points == pytest.approx(expected, abs=1e-6)
    assert len({*points}) > 2
    assert trainer.state_dict()["running"] == {"mean": pytest.approx(average)}


def test_bco_shifts_by_what_both_kinds_earned_so_far():
    trainer = toy.build_trainer("kto", loss="bco", beta=0.5)
    trainer.running.load_state_dict({"desirable": {"mean": 0.9}, "undesirable": {"mean": -0.1}})
    ratios = moved(trainer)
    loss, metrics = step(trainer)
    assert metrics["kto/reference_point"] == pytest.approx(0.4)
    expected = [
        math.log1p(math.exp(-(0.5 * ratio - 0.4) if row.columns["label"] else 0.5 * ratio - 0.4))
        for row, ratio in zip(trainer.rows.take(0), ratios, strict=True)
    ]
    assert loss == pytest.approx(sum(expected) / len(expected), rel=1e-4)


def test_the_shift_of_bco_forgets_as_fast_as_the_recipe_says():
    trainer = toy.build_trainer("kto", loss="bco", reference_point_decay=0.5)
    for reward in (1.0, 3.0):
        trainer.running.update(torch.tensor([reward]), torch.tensor([True]))
    assert trainer.running.value == 2.0


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize(
    "settings", [{}, {"reference_point": "running"}, {"loss": "bco"}], ids=["step", "running", "bco"]
)
def test_rows_of_one_kind_alone_can_be_learned_from(label, settings):
    rows = [Group(g.prefix, g.branches, {**g.columns, "label": label}) for g in toy.verdicts(12)]
    config = KTOConfig.of({"learning_rate": 1e-3, "batch_size": 6, "epochs": 1, **settings})
    policy = toy.build_policy()
    before = summed(policy, rows)
    log = TrainingLogger()
    KTOTrainer(policy, config, rows, log=log).train()
    change = sum(summed(policy, rows)) - sum(before)
    assert change > 0 if label else change < 0
    named = "kto/undesirable_reward" if label else "kto/desirable_reward"
    assert all(named not in event["metrics"] for event in log.read("metrics")), "nothing was measured, which is not 0"


def test_good_completions_become_likelier_than_bad_ones():
    config = KTOConfig(learning_rate=3e-3, epochs=3, batch_size=16)
    log = TrainingLogger()
    trainer = KTOTrainer(toy.build_policy(), config, toy.verdicts(200), toy.verdicts(40, seed=3), log=log)
    evaluation = trainer.train().evaluation
    assert evaluation["eval/accuracy"] > 0.85
    assert evaluation["eval/desirable_reward"] > evaluation["eval/undesirable_reward"] + 0.2
    assert evaluation["eval/loss"] < 0.47


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        (11, {"batch_size": 5}, r"step 3 of 3 has only one prompt \(in 1 row\); make steps of more rows"),
        (10, {"batch_size": 4, "epochs": 2, "seed": 5}, r"step 3 of 6 has only one prompt \(in 2 rows\)"),
    ],
)
def test_a_step_of_one_prompt_is_refused_at_the_door(rows, settings, message):
    with pytest.raises(ConfigError, match=message):
        KTOTrainer(toy.build_policy(), KTOConfig.of({"epochs": 1, **settings}), toy.verdicts(rows))
    KTOTrainer(
        toy.build_policy(), KTOConfig.of({"epochs": 1, **settings, "reference_point": "running"}), toy.verdicts(rows)
    )


def test_a_file_of_one_prompt_is_told_that_no_larger_step_would_help():
    rows = [Group([5, 6], row.branches, row.columns) for row in toy.verdicts(10)]
    with pytest.raises(ConfigError, match=r"one prompt .*reference_point: running") as caught:
        KTOTrainer(toy.build_policy(), KTOConfig.of({"epochs": 1, "batch_size": 5}), rows)
    assert "make steps of more rows" not in str(caught.value)


@pytest.mark.parametrize("settings", [{"reference_point": "running"}, {"loss": "bco"}])
def test_a_step_that_is_left_out_leaves_the_running_average_alone(settings):
    trainer = toy.build_trainer("kto", **settings)
    loop = Loop(trainer, trainer.config)
    before = trainer.state_dict()["running"]
    (batches,) = trainer.steps(0, trainer.collect(0, Metrics()))
    hook = trainer.policy.model.transformer.wte.weight.register_hook(lambda gradient: gradient * math.nan)
    loop._step(batches)
    assert trainer.state_dict()["running"] == before
    hook.remove()
    loop._step(batches)
    assert trainer.state_dict()["running"] != before


def test_held_out_rows_of_one_prompt_are_refused_at_the_door():
    with pytest.raises(ConfigError, match=r"held-out set .*one prompt \(in 1 row\)"):
        KTOTrainer(toy.build_policy(), KTOConfig(), toy.verdicts(10), toy.verdicts(1))


def test_a_stream_is_refused():
    with pytest.raises(ConfigError, match=r"reference .*first step"):
        KTOTrainer(toy.build_policy(), KTOConfig(max_steps=1), iter(toy.verdicts(4)))


def test_a_copy_is_kept_only_where_pairings_change_and_an_adapter_is_switched_off():
    assert isinstance(toy.build_trainer("kto").reference, ReferenceModel)
    cheap = toy.build_trainer("kto", reference_point="running")
    assert cheap.reference is cheap.policy
    cheap.collect(0, Metrics())
    assert cheap.reference is None
    plain = toy.build_policy()
    lora = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    adapted = PolicyModel(get_peft_model(plain.model, lora), plain.tokenizer)
    trainer = KTOTrainer(adapted, KTOConfig(batch_size=5, epochs=2, learning_rate=1e-2), toy.verdicts(10))
    assert isinstance(trainer.reference, AdapterOffReference)
    trainer.train()
    mixed = toy.verdicts(10)
    torch.testing.assert_close(
        torch.cat([trainer.reference.logprobs(pack([group])) for group in mixed]),
        torch.cat([toy.build_policy().logprobs(pack([group])) for group in mixed]),
    )


def test_the_reference_may_be_another_policy():
    other = toy.build_policy(seed=4)
    trainer = KTOTrainer(toy.build_policy(), KTOConfig(batch_size=5), toy.verdicts(10), reference=other)
    trainer.collect(0, Metrics())
    groups = trainer.rows.take(0)
    said = torch.cat([group.columns["ref_logprobs"] for group in groups])
    assert said.tolist() == pytest.approx(summed(other, groups), rel=1e-5)


def test_a_row_without_a_finite_loss_is_found_though_one_row_has_no_reference_point():
    log = TrainingLogger(stage="kto")
    trainer = toy.build_trainer("kto", log=log)
    loss = trainer.loss

    def poisoned(batch, totals, metrics):
        return loss(batch, totals, metrics) * (math.nan if "4" in batch.ids else 1.0)

    trainer.loss = poisoned
    Loop(trainer, trainer.config, log=log).run()
    alarms = [event for event in log.read("alarm") if event.get("guard") == "nonfinite"]
    assert [alarm["rows"] for alarm in alarms] == [["4"]] * 3


def test_evaluation_leaves_the_running_average_alone():
    trainer = toy.build_trainer("kto", loss="bco", held_out=True)
    trainer.train()
    before = trainer.state_dict()["running"]
    assert trainer.evaluate() == trainer.evaluate()
    assert trainer.state_dict()["running"] == before


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (toy.pairs(1)[0], "row '0' has 2 completions and the label None"),
        (Group([5], [Branch([6])], {"id": "7", "label": "undesirable"}), "row '7' has 1 completion and the label 'und"),
    ],
)
def test_rows_that_are_no_verdicts_are_refused_by_name(row, message):
    rows = [*toy.verdicts(3), row]
    with pytest.raises(DataError, match=message):
        KTOTrainer(toy.build_policy(), KTOConfig(batch_size=4, reference_point="zero"), rows).train()
