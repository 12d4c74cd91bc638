from __future__ import annotations

import numpy as np
import pytest
import torch

from rlhf.errors import ConfigError, RewardError
from rlhf.feedback import active
from rlhf.feedback.active import mutual_information, reward_priorities
from rlhf.models.reward import RewardModel
from rlhf.store import PreferenceStore, Response, Task, TaskKind
from tests.fixtures import toy
from tests.fixtures.judged import pair_task


def task(name, texts, kind=TaskKind.PAIRWISE, **how):
    return Task(id=name, kind=kind, prompt="What is it?", responses=[Response(text=text) for text in texts], **how)


@pytest.fixture(scope="module")
def ensemble():
    return RewardModel.from_policy(toy.build_policy(), num_models=3, seed=1)


def says(monkeypatch, *members):
    """What each member says of all completions, one after the other."""
    monkeypatch.setattr(active, "_scores", lambda model, prompts, said: np.array(members, dtype=float))


def test_sure_of_opposite_things_counts_and_a_close_pair_does_not():
    # p = sigmoid(+-40): one bit, log 2; p = 1/2 for both: a coin, but an agreed one
    assert mutual_information([[40.0, 0.0, 3.0], [-40.0, 0.0, 3.0]]) == pytest.approx([np.log(2), 0, 0], abs=1e-9)
    # p = 0.9 and 0.1: H(0.5) - H(0.9) = 0.693147 - 0.325083
    nine = np.log(9)
    assert mutual_information([[nine], [-nine]]) == pytest.approx([0.368064], abs=1e-6)


def test_tasks_are_ordered_by_disagreement_with_the_most_divided_at_one(monkeypatch, ensemble):
    tasks = [task(name, ["one", "two"]) for name in ("agreed", "divided", "unsure")]
    says(monkeypatch, [5, 0, 4, 0, 0.5, 0], [5, 0, 0, 4, -0.5, 0])
    priorities = reward_priorities(tasks, [ensemble])
    assert priorities == {"agreed": 0.0, "unsure": 0.5, "divided": 1.0}


def test_kinds_are_made_comparable_and_gold_items_left_out(monkeypatch, ensemble):
    tasks = [
        task("pair", ["one", "two"]), task("gold", ["one", "two"], gold={"preference": "a"}),
        task("ranked", ["one", "two", "three"], TaskKind.RANKING), task("ranked2", ["one", "two", "three"], TaskKind.RANKING),
        task("single", ["one"], TaskKind.BINARY), task("single2", ["one"], TaskKind.BINARY),
    ]  # fmt: skip
    #                   pair   ranked   ranked2   single  single2
    says(monkeypatch, [1, 0,  3, 2, 1,  9, 0, 0,  50,     1], [0, 1,  3, 2, 1,  0, 9, 0,  -50,  1])  # fmt: skip
    priorities = reward_priorities(tasks, [ensemble])
    assert priorities == {"pair": 0.0, "ranked": 0.0, "ranked2": 1.0, "single": 1.0, "single2": 0.0}


def test_members_score_texts_as_the_reward_model_does(ensemble):
    # No stub: the real members, on real texts, against their own scores one text at a time.
    tasks = [task("x", [" yes", " no, never"]), task("y", [" maybe"], TaskKind.BINARY)]
    together = active._member_scores(tasks, [ensemble])
    assert [actual.shape for actual in together] == [(3, 2), (3, 1)]
    for actual, one in zip(together, tasks, strict=True):
        for place, response in enumerate(one.responses):
            alone = active._member_scores([task("z", [response.text], TaskKind.BINARY)], [ensemble])[0]
            assert actual[:, place] == pytest.approx(alone[:, 0], abs=1e-5)
    assert np.ptp(together[0], axis=0).min() > 0, "members differ"


def test_a_dialogue_is_read_as_its_messages(ensemble):
    tokenizer_has_template = ensemble.tokenizer.chat_template is not None
    turns = [{"role": "user", "content": "Hello?"}]
    spoken = Task(
        id="d", kind=TaskKind.BINARY, prompt=turns, responses=[Response(text=[{"role": "assistant", "content": "Hi."}])]
    )
    assert tokenizer_has_template
    assert np.isfinite(active._member_scores([spoken], [ensemble])[0]).all()
    two_turns = Task(id="t", kind=TaskKind.BINARY, prompt=turns, responses=[Response(text=turns * 2)])
    with pytest.raises(RewardError, match="dialogue of 2 turns"):
        reward_priorities([two_turns], [ensemble])


def test_several_single_models_are_an_ensemble_and_one_is_not():
    one, other = (RewardModel.from_policy(toy.build_policy(), seed=seed) for seed in (1, 2))
    tasks = [task("x", [" yes", " no"]), task("y", [" yes", " yes"])]
    with pytest.raises(ConfigError, match="nobody to disagree"):
        reward_priorities(tasks, [one])
    priorities = reward_priorities(tasks, [one, other])
    assert priorities == {"x": 1.0, "y": 0.0}, "two equal texts divide nobody"


def test_a_score_that_is_not_finite_names_the_task(ensemble, monkeypatch):
    says(monkeypatch, [0, 0, 0, np.nan], [0, 0, 0, 1])
    with pytest.raises(RewardError, match="'second'"):
        reward_priorities([task("first", ["a", "b"]), task("second", ["a", "b"])], [ensemble])


def test_a_task_that_is_too_long_is_named(ensemble):
    with pytest.raises(RewardError, match="'long'"):
        reward_priorities([task("long", ["word " * 5000, "b"])], [ensemble])


def test_priorities_decide_what_is_asked_next(tmp_path, ensemble, monkeypatch):
    with PreferenceStore(tmp_path / "s.db") as store:
        store.add_tasks([pair_task("calm"), pair_task("divided")])
        store.add_annotator("ann")
        says(monkeypatch, [1, 0, 4, 0], [1, 0, 0, 4])
        store.set_priorities(reward_priorities(store.tasks(), [ensemble]))
        assert store.next_task("ann").task.id == "divided"


def test_nothing_to_order_is_no_error(ensemble):
    assert reward_priorities([], [ensemble]) == {}
    assert torch.is_grad_enabled()
