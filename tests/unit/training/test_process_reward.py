"""Learning which steps are right."""

from __future__ import annotations

import math

import pytest
import torch

from rlhf.config.reward_model import ProcessRewardModelConfig
from rlhf.data.pack import Branch, Group
from rlhf.errors import ConfigError, DataError
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.training.algorithm import Totals
from rlhf.training.log import TrainingLogger
from rlhf.training.metrics import Metrics
from rlhf.training.process_reward import ProcessRewardModelTrainer
from tests.fixtures import toy


def saying(trainer, scores):
    """The model gives these scores, one for each step, whatever it reads."""
    trainer.model.step_scores = lambda batch: torch.tensor(scores, requires_grad=True)
    return trainer


def loss_of(trainer, groups, metrics=None):
    batches = trainer.batches(groups)
    trainer.before_step(batches, Metrics())
    return sum(trainer.loss(batch, Totals.of(batches), metrics or Metrics()).item() for batch in batches)


def solution(*labels, name="0"):
    columns = {"id": name, "step_ends": [list(range(len(labels)))], "labels": list(labels)}
    return Group([5], [Branch(list(range(6, 6 + len(labels))))], columns)


THREE, ONE = solution(True, False, True), solution(True, name="1")
LOG2, LOG3, LOG4 = math.log(2), math.log(3), math.log(4)


def test_the_loss_is_the_mean_over_all_steps_of_the_optimizer_step():
    trainer = saying(toy.build_trainer("prm", wrong_weight=2.0), [LOG3, 0.0, -LOG3, 0.0])
    # p = 3/4, 1/2, 1/4 and 1/2: -log 3/4, twice -log 1/2, -log 1/4; then -log 1/2 of the other solution
    expected = ((LOG4 - LOG3) + 2 * LOG2 + LOG4 + LOG2) / 4
    assert loss_of(trainer, [THREE, ONE]) == pytest.approx(expected)


def test_what_follows_the_first_wrong_step_is_not_learned_from_where_that_is_asked():
    trainer = saying(toy.build_trainer("prm", until_first_error=True), [LOG3, 0.0, -LOG3, 0.0])
    metrics = Metrics()
    assert loss_of(trainer, [THREE, ONE], metrics) == pytest.approx(((LOG4 - LOG3) + LOG2 + LOG2) / 3)
    means = metrics.result()
    assert means["prm/accuracy"] == pytest.approx(2 / 3)
    assert means["prm/wrong_found"] == 0.0


def test_pairs_teach_the_product_of_their_steps():
    trainer = saying(toy.build_trainer("prm", loss="pairs"), [LOG3, LOG3, 0.0])
    # chosen: 3/4 * 3/4 = 9/16, rejected: 1/2; it wins with (9/16) / (9/16 + 8/16)
    good, bad, mark = (toy.TOKENIZER(text)["input_ids"][0] for text in ("a", "b", "e"))
    pair = Group([5], [Branch([good, mark, bad, mark, toy.EOS]), Branch([good, mark])], {"id": "p"})
    assert loss_of(trainer, [pair]) == pytest.approx(-math.log(9 / 17))


GOOD, BAD, MARK = (toy.TOKENIZER(text)["input_ids"][0] for text in ("a", "b", "e"))


def labeled_pair(**columns):
    """Two steps against one."""
    branches = [Branch([GOOD, MARK, BAD, MARK, toy.EOS]), Branch([GOOD, MARK])]
    return Group([5], branches, {"id": "p", **columns})


def test_labels_of_steps_are_learned_from_next_to_pairs():
    scores = [LOG3, LOG3, 0.0]
    of_pair = -math.log(9 / 17)

    def told(pair, **settings):
        trainer = saying(toy.build_trainer("prm", loss="pairs", step_coef=0.5, **settings), scores)
        return loss_of(trainer, [pair], metrics)

    metrics = Metrics()
    # p = 3/4 and 3/4, the second wrong; the rejected one's 1/2 is right: a mean over three steps
    both = labeled_pair(chosen_labels=[True, False], rejected_labels=[1.0])
    assert told(both) == pytest.approx(of_pair + 0.5 * (math.log(4 / 3) + LOG4 + LOG2) / 3)
    means = metrics.result()
    assert means["prm/step_accuracy"] == pytest.approx(2 / 3)
    assert means["loss/steps"] == pytest.approx((math.log(4 / 3) + LOG4 + LOG2) / 3)
    assert means["prm/wrong_found"] == 0
    # a side without labels counts in the pair alone; what is behind the first error nowhere
    assert told(labeled_pair(chosen_labels=[True, False])) == pytest.approx(
        of_pair + 0.5 * (math.log(4 / 3) + LOG4) / 2
    )
    early = labeled_pair(chosen_labels=[False, True])
    assert told(early, until_first_error=True, wrong_weight=2.0) == pytest.approx(of_pair + 0.5 * 2 * LOG4)
    assert told(labeled_pair()) == pytest.approx(of_pair)


def test_pairs_with_labels_are_evaluated_by_both():
    trainer = saying(toy.build_trainer("prm", loss="pairs", step_coef=0.5), [LOG3, LOG3, 0.0])
    metrics = Metrics()
    trainer.measure(trainer.batches([labeled_pair(chosen_labels=[True, False], rejected_labels=[True])])[0], metrics)
    means = metrics.result()
    assert means["eval/loss"] == pytest.approx(-math.log(9 / 17))
    assert means["eval/step_loss"] == pytest.approx((math.log(4 / 3) + LOG4 + LOG2) / 3)
    assert (means["eval/accuracy"], means["eval/step_accuracy"]) == (1.0, pytest.approx(2 / 3))


def test_labels_that_fit_no_steps_are_refused_by_row_and_column():
    trainer = toy.build_trainer("prm", loss="pairs", step_coef=0.5)
    with pytest.raises(DataError, match=r"Row p: chosen_labels has 1 label, and .* 2 steps"):
        trainer.batches([labeled_pair(chosen_labels=[True])])
    with pytest.raises(DataError, match="Row p: rejected_labels"):
        trainer.batches([labeled_pair(rejected_labels=["yes"])])
    cut = labeled_pair(chosen_labels=[True, False, True], truncated=True)
    assert trainer.batches([cut])[0].token_columns["step_labeled"].sum() == 2
    with pytest.raises(DataError, match="none of the 10 pairs"):
        trainer.train()
    with pytest.raises(ConfigError, match="step_coef"):
        ProcessRewardModelConfig(loss="steps", step_coef=1.0)


# p of the chosen one's steps: 3/4 and 1/4; of the rejected one's: 1/2
@pytest.mark.parametrize(("how", "chosen"), [("product", 3 / 16), ("min", 1 / 4), ("mean", 1 / 2), ("last", 1 / 4)])
def test_steps_of_a_pair_are_brought_together_as_the_recipe_says(how, chosen):
    trainer = saying(toy.build_trainer("prm", loss="pairs", aggregate=how), [LOG3, -LOG3, 0.0])
    good, bad, mark = (toy.TOKENIZER(text)["input_ids"][0] for text in ("a", "b", "e"))
    pair = Group([5], [Branch([good, mark, bad, mark, toy.EOS]), Branch([good, mark])], {"id": "p"})
    assert loss_of(trainer, [pair]) == pytest.approx(-math.log(chosen / (chosen + 1 / 2)))


@pytest.mark.parametrize(
    ("scores", "first_wrong", "sound"),
    [
        ([1.0, -1.0, 1.0, 1.0], 1, 1),
        ([1.0, -1.0, 1.0, -1.0], 1, 0),  # a sound solution is blamed
        ([1.0, 1.0, -1.0, 1.0], 0, 1),  # the wrong step is called right, and the next one wrong
        ([-1.0, -1.0, 1.0, -1.0], 0, 0),
    ],
)
def test_finding_the_first_wrong_step_and_leaving_sound_solutions_alone_are_told_apart(scores, first_wrong, sound):
    trainer, metrics = saying(toy.build_trainer("prm"), scores), Metrics()
    (batch,) = trainer.batches([THREE, ONE])
    trainer.measure(batch, metrics)
    means = metrics.result()
    assert (means["eval/first_wrong"], means["eval/sound"]) == (first_wrong, sound)


def test_the_language_model_is_held_on_to_by_right_steps_alone():
    """The loss on tokens of right steps is a mean over such tokens; wrong steps leave it as it is."""
    trainer = toy.build_trainer("prm", lm_coef=0.5)
    plain = toy.build_trainer("prm")
    added = loss_of(trainer, [THREE, ONE]) - loss_of(plain, [THREE, ONE])
    with torch.no_grad():
        logprobs = toy.build_policy().score(trainer.batches([THREE, ONE])[0]).logprobs
    assert added == pytest.approx(-0.5 * float(logprobs[[0, 2, 3]].mean()), rel=1e-5)


def test_it_learns_which_steps_are_right():
    config = ProcessRewardModelConfig(learning_rate=3e-3, epochs=4, batch_size=16, extra_layers=1)
    model = ProcessRewardModel.from_policy(toy.build_policy(), seed=1, extra_layers=1)
    trainer = ProcessRewardModelTrainer(model, config, toy.solutions(200), toy.solutions(60, seed=3))
    before, result = trainer.evaluate(), trainer.train()
    assert before["eval/f1"] < 0.5
    assert result.evaluation["eval/f1"] > 0.7
    assert result.evaluation["eval/accuracy"] > 0.8
    low, high = result.evaluation["eval/first_wrong"], result.evaluation["eval/sound"]
    assert result.evaluation["eval/f1"] == pytest.approx(2 * low * high / (low + high))


def test_it_learns_steps_from_judgments_of_whole_solutions():
    (mark,) = toy.TOKENIZER("e")["input_ids"]

    def pair(number: int) -> Group:
        return Group([5 + number % 3], [Branch([*w, mark]) for w in ((30, 31), (300, 301))], {"id": str(number)})

    config = ProcessRewardModelConfig(learning_rate=3e-3, epochs=10, batch_size=8, loss="pairs", step_separator="e")
    model = ProcessRewardModel.from_policy(toy.build_policy(), step_separator="e", seed=1)
    trainer = ProcessRewardModelTrainer(model, config, [pair(n) for n in range(16)], [pair(n) for n in range(3)])
    result = trainer.train()
    assert result.evaluation["eval/accuracy"] == 1.0
    assert result.evaluation["eval/margin"] > 1.0


def test_pairs_without_steps_are_told_once():
    def alarms(separator: str) -> list[str]:
        log = TrainingLogger()
        toy.build_trainer("prm", loss="pairs", step_separator=separator, log=log).train()
        return [event["message"] for event in log.read("alarm")]

    (actual,) = alarms("no text has this")
    assert "no completion of the 10 pairs has more than one step" in actual
    assert "'no text has this'" in actual
    assert alarms("e") == []


def test_the_gradient_reaches_backbone_and_head():
    trainer = toy.build_trainer("prm")
    batches = trainer.batches(toy.solutions(4))
    trainer.before_step(batches, Metrics())
    trainer.loss(batches[0], Totals.of(batches), Metrics()).backward()
    silent = {n for n, p in trainer.model.member.named_parameters() if p.grad is None or not bool(p.grad.any())}
    assert not any("score" in name or "attn" in name for name in silent)


def test_what_can_not_be_learned_is_refused_at_the_door():
    model = ProcessRewardModel.from_policy(toy.build_policy())
    with pytest.raises(ConfigError, match="keep_language_head=True"):
        ProcessRewardModelTrainer(model, ProcessRewardModelConfig(lm_coef=0.1), toy.solutions(3))
    single = Group([5], [Branch([6])], {"id": "x.jsonl:4"})
    with pytest.raises(DataError, match=r"x\.jsonl:4: .*`pairs`"):
        toy.build_trainer("prm", loss="pairs").batches([single])


@pytest.mark.parametrize("setting", [{"wrong_weight": 2.0}, {"until_first_error": True}, {"lm_coef": 0.1}])
def test_settings_of_steps_have_no_meaning_for_pairs(setting):
    with pytest.raises(ConfigError, match=rf"{next(iter(setting))} .*labels of steps"):
        ProcessRewardModelConfig.of({"loss": "pairs", **setting})
