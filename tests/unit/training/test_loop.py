from __future__ import annotations

import math

import pytest
import torch

from rlhf.errors import CheckpointError, ConfigError, TrainingError
from rlhf.training.algorithm import Totals
from rlhf.training.log import TrainingLogger
from rlhf.training.loop import Loop
from rlhf.training.metrics import Metrics
from tests.fixtures import toy
from tests.fixtures.toy import build_trainer, largest_difference, weights_of


def test_totals_count_over_all_micro_batches():
    trainer = build_trainer("dpo", microbatch_tokens=1)
    batches = next(trainer.steps(0, trainer.collect(0, Metrics())))
    groups = trainer.rows.take(0)
    assert len(batches) == len(groups) == 4
    totals = Totals.of(batches)
    assert totals == Totals(sum(g.num_scored for g in groups), 8, 4)


@pytest.mark.parametrize("name", toy.NAMES)
def test_every_step_is_logged_once_with_what_happened(name):
    log = TrainingLogger()
    result = build_trainer(name, log=log).train()
    events = log.read("metrics")
    assert [event["step"] for event in events] == list(range(1, result.steps + 1))
    for event in events:
        metrics = event["metrics"]
        assert {"loss/train", "learning_rate", "grad_norm", "tokens"} <= metrics.keys()
        assert all(value is not None for value in metrics.values()), "every number is finite"
    assert result.metrics == events[-1]["metrics"]


def test_the_metrics_have_the_promised_names():
    promised = {
        "dpo": "dpo/reward_margin dpo/accuracy dpo/chosen_reward dpo/rejected_reward",
        "reward": "reward/accuracy reward/margin",
        "ppo": "loss/policy loss/value loss/entropy ppo/ratio_mean ppo/kl_mean ppo/reward_mean ppo/advantage_mean "
        "ppo/score_mean ppo/ref_kl ppo/clip_frac ppo/value_explained ppo/kl_coef grad_norm/policy grad_norm/value",
        "grpo": "loss/policy loss/entropy loss/kl grpo/reward_mean grpo/reward_std grpo/advantage_mean grpo/ratio_mean",
    }
    for name, names in promised.items():
        log = TrainingLogger()
        build_trainer(name, log=log).train()
        first = log.read("metrics")[0]["metrics"]
        assert set(names.split()) <= first.keys(), name


@pytest.mark.parametrize(
    ("every", "steps"), [(None, [2, 4, 6]), (1, [1, 2, 3, 4, 5, 6]), (4, [4, 6]), (100, [6])], ids=str
)
def test_evaluations_come_on_schedule_and_at_the_end(every, steps):
    log = TrainingLogger()
    build_trainer("sft", log=log, held_out=True, eval_every=every).train()
    assert [event["step"] for event in log.read("eval")] == steps


def test_an_online_run_is_evaluated_between_its_phases():
    log = TrainingLogger()
    build_trainer("ppo", log=log, held_out=True, rollouts=4, eval_every=6).train()  # 4 steps a phase
    assert [event["step"] for event in log.read("eval")] == [8, 12, 16]


def checkpoints(folder):
    return [path.name[-2:] for path in sorted(folder.glob("checkpoint-*"))]


def test_checkpoints_come_on_schedule_and_not_at_the_end(tmp_path):
    build_trainer("sft", checkpoint_dir=tmp_path / "a", save_every=2, keep_checkpoints=9).train()
    assert checkpoints(tmp_path / "a") == ["02", "04"]
    build_trainer("sft", checkpoint_dir=tmp_path / "b").train()
    assert checkpoints(tmp_path / "b") == ["02", "04"]  # about 4 in a run: every 2 of 6


def test_a_limit_on_kl_ends_a_phase_and_keeps_the_schedule(tmp_path):
    plain, short = TrainingLogger(), TrainingLogger()
    build_trainer("ppo", log=plain, rollouts=3).train()
    result = build_trainer(
        "ppo", log=short, rollouts=3, stop_at_kl=1e-12, checkpoint_dir=tmp_path, save_every=3, keep_checkpoints=9
    ).train()
    rates = {event["step"]: event["metrics"]["learning_rate"] for event in plain.read("metrics")}
    actual = [(event["step"], event["metrics"]["learning_rate"]) for event in short.read("metrics")]
    # the first step of a phase has a ratio of 1 and a KL of rounding; the second one moved, and ends it
    assert [step for step, _ in actual] == [1, 2, 5, 6, 9, 10]
    assert actual == [(step, rates[step]) for step, _ in actual]
    assert result.steps == 12
    # due at 3, 6 and 9: the first two fall on steps that were left out, and are made up for at the end of their phase
    assert checkpoints(tmp_path) == ["04", "08", "09"]


def test_a_limit_that_is_never_reached_changes_nothing():
    one, two = build_trainer("ppo"), build_trainer("ppo", stop_at_kl=1e9)
    one.train()
    two.train()
    assert largest_difference(weights_of(one), weights_of(two)) == 0.0


def contradicted(**settings):
    """SFT on good tokens, evaluated on bad ones: the evaluation is best at the start and grows worse."""
    trainer = build_trainer("sft", epochs=6, eval_every=1, learning_rate=3e-2, **settings)
    trainer.eval_data = toy.rows(6, seed=1, good=False)
    return trainer


@pytest.mark.parametrize("ema", [None, 0.5])
def test_the_weights_of_the_best_evaluation_are_the_result(ema):
    log = TrainingLogger()
    trainer = contradicted(held_out=True, log=log, ema_decay=ema, early_stopping={"patience": None})
    result = trainer.train()
    losses = [event["metrics"]["eval/loss"] for event in log.read("eval")]
    assert min(losses) == result.evaluation["eval/loss"] < losses[-1] - 0.1
    assert len(losses) == 18
    assert not result.stopped_early
    assert trainer.evaluate() == result.evaluation, "the model holds the very weights that were measured"
    step = 1 + losses.index(min(losses))
    assert log.read("note")[-1]["message"] == f"The result is the weights of step {step}."


def test_the_last_weights_are_the_result_where_nothing_else_was_asked_for():
    trainer = contradicted(held_out=True)
    result = trainer.train()
    assert trainer.evaluate() == result.evaluation
    kept = contradicted(held_out=True, early_stopping={"patience": None, "keep_best": False})
    assert kept.train().evaluation == result.evaluation


def test_patience_ends_a_run_that_only_grows_worse():
    log = TrainingLogger()
    result = contradicted(held_out=True, log=log, early_stopping={"patience": 2, "keep_best": False}).train()
    losses = [event["metrics"]["eval/loss"] for event in log.read("eval")]
    assert result.stopped_early
    assert result.steps == len(losses) < 18
    assert len(losses) - 1 - losses.index(min(losses)) == 2
    assert any("Stopped early" in note["message"] for note in log.read("note"))


def test_with_an_average_it_is_the_average_that_is_evaluated_and_kept():
    trainer = build_trainer("sft", held_out=True, ema_decay=0.5)
    result = trainer.train()
    assert trainer.evaluate() == result.evaluation
    plain = build_trainer("sft", held_out=True)
    plain.train()
    assert largest_difference(weights_of(trainer), weights_of(plain)) > 1e-4


def test_early_stopping_needs_something_to_watch():
    with pytest.raises(ConfigError, match=r"held-out rows, .*eval_data"):
        build_trainer("sft", early_stopping={})
    with pytest.raises(ConfigError, match=r"held-out prompts, .*eval_prompts"):
        build_trainer("ppo", early_stopping={})
    trainer = build_trainer("sft", held_out=True, early_stopping={"metric": "eval/los"})
    with pytest.raises(ConfigError, match=r"sft: early_stopping .*'eval/los'.*'eval/loss'"):
        trainer.train()


@pytest.mark.parametrize("name", toy.NAMES)
def test_a_loss_that_is_not_finite_stops_the_run_by_name_and_step(name):
    trainer = build_trainer(name, log=TrainingLogger(stage="my-stage"), max_nonfinite_steps=0)
    real, calls = trainer.loss, []

    def broken(batch, totals, metrics):
        calls.append(1)
        return real(batch, totals, metrics) * (math.nan if len(calls) == 3 else 1.0)

    trainer.loss = broken
    with pytest.raises(TrainingError, match=r"my-stage: .*nan at step 3.*learning rate"):
        trainer.train()


def test_a_gradient_that_is_not_finite_stops_the_run_by_name_and_step():
    trainer = build_trainer("sft", max_nonfinite_steps=0)
    real = trainer.loss
    # the value stays as it is, the gradient of its first argument is infinite
    trainer.loss = lambda *args: real(*args) + (real(*args) * 0).sqrt()
    with pytest.raises(TrainingError, match=r"sft: .*gradient is (nan|inf) at step 1"):
        trainer.train()


def test_a_damaged_checkpoint_is_passed_over_with_an_alarm_and_the_run_ends_as_it_would_have(tmp_path):
    whole = build_trainer("ppo", dropout=0.1, checkpoint_dir=tmp_path / "a", save_every=1, keep_checkpoints=3)
    whole.train()
    newest = sorted((tmp_path / "a").glob("checkpoint-*"))[-1] / "state.pt"
    data = bytearray(newest.read_bytes())
    data[len(data) // 3] ^= 4
    newest.write_bytes(data)
    log = TrainingLogger()
    resumed = build_trainer(
        "ppo", dropout=0.1, checkpoint_dir=tmp_path / "a", save_every=1, keep_checkpoints=3, log=log
    )
    resumed.train()
    (alarm,) = log.read("alarm")
    assert "checkpoint-00000007 is damaged: state.pt is not what was written" in alarm["message"]
    assert log.read("note")[0]["message"] == "Resumed from checkpoint-00000006."
    assert largest_difference(weights_of(whole), weights_of(resumed)) == 0.0


def test_a_resumed_run_may_change_what_decides_nothing_and_not_the_rest(tmp_path):
    build_trainer("sft", checkpoint_dir=tmp_path, save_every=2).train()
    log = TrainingLogger()
    build_trainer("sft", checkpoint_dir=tmp_path, log=log, save_every=3, microbatch_tokens=5).train()
    assert log.read("note")[0]["message"].startswith("Resumed from")
    with pytest.raises(CheckpointError, match=r"learning_rate was 0\.01 and is 0\.02"):
        build_trainer("sft", checkpoint_dir=tmp_path, learning_rate=0.02).train()
    with pytest.raises(CheckpointError, match=r"algorithm .*'sft' .*'dpo'"):
        build_trainer("dpo", checkpoint_dir=tmp_path).train()


def test_trackers_that_the_settings_ask_for_are_fed(monkeypatch):
    calls = []

    class Fake:
        def log(self, metrics, step):
            calls.append(step)

        def close(self):
            calls.append("closed")

    monkeypatch.setattr("rlhf.training.log.TRACKERS", {"wandb": lambda *_: Fake()})
    build_trainer("sft", log_to=["wandb"]).train()
    assert calls == [1, 2, 3, 4, 5, 6, "closed"]


def test_trackers_are_closed_when_a_run_fails(monkeypatch):
    calls = []

    class Fake:
        def log(self, metrics, step):
            raise TrainingError("full")

        def close(self):
            calls.append("closed")

    monkeypatch.setattr("rlhf.training.log.TRACKERS", {"wandb": lambda *_: Fake()})
    with pytest.raises(TrainingError, match="full"):
        build_trainer("sft", log_to=["wandb"]).train()
    assert calls == ["closed"]


@pytest.mark.parametrize("name", toy.NAMES)
def test_a_run_in_bfloat16_goes_the_way_of_one_in_full(name):
    full, mixed = build_trainer(name), build_trainer(name, autocast="bfloat16")
    start = weights_of(full)
    full.train()
    mixed.train()
    moved = torch.cat([(w - start[key]).flatten() for key, w in weights_of(full).items()])
    moved_mixed = torch.cat([(w - start[key]).flatten() for key, w in weights_of(mixed).items()])
    assert float(torch.nn.functional.cosine_similarity(moved, moved_mixed, dim=0)) > 0.9


@pytest.mark.parametrize("name", [name for name in toy.NAMES if name != "trpo"])  # which refuses float16
def test_a_run_in_float16_skips_some_steps_and_learns(name):
    log = TrainingLogger()
    longer = {"rollouts": 5} if "rollouts" in toy.SHORT[name] else {"epochs": 6}
    trainer = build_trainer(name, autocast="float16", log=log, **longer)
    start = weights_of(trainer)
    trainer.train()
    skipped = [event["metrics"]["grad_norm"] is None for event in log.read("metrics")]
    assert not any(skipped[-5:]), "the loss scale has found its place"
    assert largest_difference(weights_of(trainer), start) > 1e-3


@pytest.mark.parametrize("name", toy.NAMES)
def test_dropout_acts_while_a_model_learns_and_at_no_other_time(name):
    settings = {"head_dropout": 0.0} if name == "reward" else {}
    dry, wet = build_trainer(name, **settings), build_trainer(name, dropout=0.5, held_out=True, **settings)
    dry.train()
    wet.train()
    assert largest_difference(weights_of(dry), weights_of(wet)) > 1e-4
    assert wet.evaluate() == wet.evaluate()


def test_models_are_left_ready_for_use():
    trainer = build_trainer("ppo", dropout=0.3)
    trainer.train()
    assert not any(module.training for m in trainer.modules() for module in m.module.modules())


def test_a_loop_can_be_asked_for_everything_but_the_weights():
    loop = Loop(build_trainer("grpo"), build_trainer("grpo").config)
    loop.run()
    state = loop.state_dict()
    assert state["at"] == {"phase": 2, "step_in_phase": 0, "step": 8}
    assert state["experience"] is None
