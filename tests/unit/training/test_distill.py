from __future__ import annotations

import json

import pytest
import torch

from rlhf.config.on_policy import DistillConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, DataError, ModelError
from rlhf.losses import exact_kl
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import ReferenceModel
from rlhf.models.score import padded_rows
from rlhf.training.algorithm import Totals
from rlhf.training.distill import DistillTrainer
from rlhf.training.log import TrainingLogger
from rlhf.training.loop import Loop
from rlhf.training.metrics import Metrics
from tests.fixtures import tiny, toy

OWN = {"on_policy_frac": 1.0, "divergence_beta": 1.0}


def logits(policy, batch):
    ids, mask = padded_rows(batch)
    with torch.no_grad():
        whole = policy.model(input_ids=ids, attention_mask=mask).logits
    return whole[batch.score_seq, batch.positions[batch.score_at]]


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_the_loss_is_the_mean_over_tokens_of_the_divergence(beta):
    trainer = toy.build_trainer("distill", dtype=torch.float64, **{**OWN, "divergence_beta": beta})
    batch = trainer.collect(0, Metrics()).batch(range(6))
    student, teacher = logits(trainer.policy, batch), logits(trainer.teacher, batch)
    expected = exact_kl(student, teacher) if beta == 1 else exact_kl(teacher, student)
    loss = trainer.loss(batch, Totals.of([batch]), Metrics())
    assert float(loss.detach()) == pytest.approx(float(expected.mean()), rel=1e-6)


def test_teacher_and_student_are_compared_at_the_temperature_that_is_drawn_at():
    sampling = {"max_new_tokens": 5, "temperature": 2.0}
    trainer = toy.build_trainer("distill", dtype=torch.float64, held_out=True, sampling=sampling, **OWN)
    batch = trainer.collect(0, Metrics()).batch(range(6))

    def expected(batch):
        return float(exact_kl(logits(trainer.policy, batch) / 2, logits(trainer.teacher, batch) / 2).mean())

    loss = trainer.loss(batch, Totals.of([batch]), Metrics())
    assert float(loss.detach()) == pytest.approx(expected(batch), rel=1e-6)
    held_out = trainer.held_out.sample(step=1).rollout.experience.batch(range(3))
    assert trainer.evaluate()["eval/teacher_kl"] == pytest.approx(expected(held_out), rel=1e-6)


def test_a_demonstrations_logprobs_are_those_at_the_temperature_that_is_drawn_at():
    sampling = {"max_new_tokens": 5, "temperature": 2.0}
    trainer = toy.build_trainer("distill", on_policy_frac=0.0, sampling=sampling)
    (completion,) = trainer._rollout_of([(trainer.prompts[0], Branch([10, 11, toy.EOS]))]).completions
    batch = pack([Group(trainer.prompts[0].ids, [Branch([10, 11, toy.EOS])])])
    assert completion.logprobs == pytest.approx(trainer.policy.logprobs(batch, temperature=2.0).tolist(), rel=1e-5)


def test_a_student_that_is_its_teacher_has_nothing_to_learn():
    trainer = toy.build_trainer("distill", dtype=torch.float64, **OWN)
    trainer.teacher = toy.build_policy(dtype=torch.float64)
    batch = trainer.collect(0, Metrics()).batch(range(6))
    loss = trainer.loss(batch, Totals.of([batch]), Metrics())
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0, abs=1e-12)
    assert max(float(p.grad.abs().max()) for p in trainer.policy.model.parameters() if p.grad is not None) < 1e-8


def test_teacher_and_reference_stay_as_they_are():
    trainer = toy.build_trainer("distill")
    kept = trainer.teacher.fingerprint(), trainer.reference.fingerprint()
    before = toy.weights_of(trainer)
    trainer.train()
    assert (trainer.teacher.fingerprint(), trainer.reference.fingerprint()) == kept
    assert all(p.grad is None for p in trainer.teacher.model.parameters())
    assert toy.largest_difference(toy.weights_of(trainer), before) > 0


def test_the_student_comes_near_its_teacher():
    trainer = toy.build_trainer(
        "distill", held_out=True, rollouts=12, prompts_per_rollout=16, minibatch_size=16, learning_rate=2e-2, **OWN
    )
    toy.change_weights(trainer.teacher.model, by=0.15)
    start = trainer.evaluate()
    end = trainer.train().evaluation
    assert start["eval/teacher_kl"] > 0.3
    assert end["eval/teacher_kl"] < start["eval/teacher_kl"] / 2
    assert end["eval/divergence"] == pytest.approx(end["eval/teacher_kl"])


def test_nobody_scores_and_so_no_score_is_told(tmp_path):
    log = TrainingLogger(tmp_path, stage="run")
    trainer = toy.build_trainer("distill", log=log, held_out=True, rollouts=1)
    evaluation = trainer.train().evaluation
    told = {name for event in log.read("metrics") for name in event["metrics"]}
    assert not [name for name in (*told, *evaluation) if "score" in name]
    assert "distill/divergence" in told
    assert not log.read("alarm")
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    assert "score" not in rows[0]
    assert rows[0].keys() >= {"prompt", "completion", "kl"}


# ---- demonstrations


def own_share(trainer, phases=20):
    """Share of the prompts of the first rollouts that the student completes, and who completes which."""
    lots = [[trainer._demonstration(prompt, phase) is None for prompt in trainer.prompts] for phase in range(phases)]
    return sum(map(sum, lots)) / sum(map(len, lots)), lots


def test_the_share_of_prompts_that_the_student_completes_is_about_what_was_asked_for():
    trainer = toy.build_trainer("distill", on_policy_frac=0.25)
    share, lots = own_share(trainer)
    assert 0.15 < share < 0.35
    assert lots == own_share(toy.build_trainer("distill", on_policy_frac=0.25))[1]
    assert lots != own_share(toy.build_trainer("distill", on_policy_frac=0.25, seed=6))[1]
    assert own_share(toy.build_trainer("distill", on_policy_frac=1.0))[0] == 1
    assert own_share(toy.build_trainer("distill", on_policy_frac=0.0))[0] == 0


def test_demonstrations_stand_in_the_rollout_with_the_students_own_logprobs():
    trainer = toy.build_trainer("distill", on_policy_frac=0.0)
    metrics = Metrics()
    experience = trainer.collect(0, metrics)
    written = {tuple(row.prefix): [] for row in toy.written(toy.prompts(8))}
    for row in toy.written(toy.prompts(8)):
        written[tuple(row.prefix)].append(list(row.branches[0].tokens))
    for group in experience.groups:
        assert list(group.branches[0].tokens) in written[tuple(group.prefix)]
    batch = experience.batch(range(6))
    torch.testing.assert_close(batch.token_columns["old_logprobs"], trainer.policy.logprobs(batch))
    assert metrics.result()["distill/on_policy_frac"] == 0


def test_a_mixed_rollout_has_both_and_is_learned_from_as_a_whole():
    trainer = toy.build_trainer("distill", on_policy_frac=0.5, group_size=2, minibatch_size=12, seed=9)
    metrics = Metrics()
    experience = trainer.collect(0, metrics)
    sizes = [len(group.branches) for group in experience.groups]
    share = metrics.result()["distill/on_policy_frac"]
    assert 0 < share < 1
    assert sizes == [2] * round(6 * share) + [1] * (6 - round(6 * share))
    Loop(trainer, trainer.config)._step(next(iter(trainer.steps(0, experience))))


def test_what_a_demonstration_does_not_score_is_not_learned_from():
    trainer = toy.build_trainer("distill", on_policy_frac=0.0)
    prompt = trainer.prompts[0]
    half = Branch([10, 11, 12, toy.EOS], [False, True, False, True])
    rollout = trainer._rollout_of([(prompt, half)])
    assert rollout.experience.batch([0]).score_token.tolist() == [11, toy.EOS]
    assert len(rollout.completions[0].logprobs) == 2
    assert rollout.completions[0].sampled_tokens == [11, toy.EOS]


def test_a_prompt_without_a_demonstration_is_always_the_students():
    policy = toy.build_policy()
    config = DistillConfig.of({**toy.SHORT["distill"], "on_policy_frac": 0.0})
    trainer = DistillTrainer(
        policy, config, toy.prompts(8), teacher=toy.build_policy(seed=7),
        reference=ReferenceModel(policy), demonstrations=toy.written(toy.prompts(8)[:1]),
    )  # fmt: skip
    assert own_share(trainer)[0] == 7 / 8


def test_demonstrations_of_other_prompts_only_are_refused():
    policy = toy.build_policy()
    config = DistillConfig.of(toy.SHORT["distill"])
    with pytest.raises(DataError, match=r"8 prompts .*1 demonstrations"):
        DistillTrainer(
            policy, config, toy.prompts(8), teacher=policy,
            reference=ReferenceModel(policy), demonstrations=[Group([0, 0, 0], [Branch([5])])],
        )  # fmt: skip


def test_a_teacher_with_other_tokens_is_refused_before_anything_is_sampled():
    policy = toy.build_policy()
    other = PolicyModel(toy.build_policy().model, tiny.build_tokenizer(("zyx zyx zyx",)))
    with pytest.raises(ModelError, match=r"teacher .*token ids"):
        DistillTrainer(policy, DistillConfig(), toy.prompts(2), teacher=other, reference=ReferenceModel(policy))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"kl": {"where": "reward"}}, "has no reward"),
        ({"missing_eos_penalty": 1.0}, "missing_eos_penalty does nothing for distillation"),
        ({"clip_score": 1.0}, "clip_score does nothing for distillation"),
        ({"importance": {}}, "importance does nothing for distillation"),
        ({"divergence_beta": 1.5}, "divergence_beta"),
    ],
)
def test_what_would_be_ignored_is_refused(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        DistillConfig.of(settings)
