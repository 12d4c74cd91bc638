from __future__ import annotations

import pytest

from rlhf.errors import ConfigError
from rlhf.feedback.dry_run import judged, qualities, simulate
from rlhf.feedback.exports import select
from rlhf.feedback.quality import QualityRules
from rlhf.feedback.report import in_words
from rlhf.feedback.simulate import SimulatedAnnotator, crowd
from rlhf.feedback.simulated import simulated_annotators, simulated_words
from rlhf.feedback.statistics import findings_of
from rlhf.feedback.web.people import known_people
from rlhf.store import AssignmentRules, PreferenceStore, Response, Submission, Task, TaskKind
from rlhf.store.access import make_invitation
from rlhf.store.values import NUM_RESPONSES

GOLD = {
    TaskKind.PAIRWISE: {"preference": "b"}, TaskKind.GRADED5: {"grade": -1}, TaskKind.GRADED7: {"grade": 2},
    TaskKind.RANKING: {"ranks": [2, 1, 3]}, TaskKind.RATING: {"ratings": {"overall": [1, 5, 4]}}, TaskKind.BINARY: {"label": False},
}  # fmt: skip

"""Of the kinds that the page asks: labels of classes are only imported."""


def task(name, kind=TaskKind.PAIRWISE, **how):
    count = max(NUM_RESPONSES[kind][0], 3 if kind in (TaskKind.RANKING, TaskKind.RATING) else 1)
    return Task(id=name, kind=kind, prompt="q", responses=[Response(text="x" * (n + 1)) for n in range(count)], **how)


@pytest.fixture
def store(tmp_path):
    with PreferenceStore(tmp_path / "s.db", rules=AssignmentRules(overlap=2)) as store:
        yield store


def test_a_crowd_gives_every_task_the_judgments_it_wants_and_the_same_ones_again(store, tmp_path):
    tasks = [task(f"{kind}-{n}", kind) for kind in GOLD for n in range(2)]
    store.add_tasks(tasks)
    run = simulate(store, crowd(2, 1), seed=5)
    assert run.num_judgments == 2 * len(tasks)
    assert sum(run.by_annotator.values()) == run.num_judgments
    said = [(j.task.id, j.annotator, j.value, j.seconds) for j in store.judgments()]
    with PreferenceStore(tmp_path / "again.db", rules=AssignmentRules(overlap=2)) as again:
        again.add_tasks(tasks)
        simulate(again, crowd(2, 1), seed=5)
        assert [(j.task.id, j.annotator, j.value, j.seconds) for j in again.judgments()] == said
    assert simulate(store, crowd(2, 1), seed=5).num_judgments == 0


@pytest.mark.parametrize("kind", GOLD)
def test_who_never_errs_gives_the_gold_answer(kind, store):
    store.add_tasks([task(f"g{n}", kind, gold=GOLD[kind]) for n in range(3)])
    store.add_annotator("ann")
    store.rules = AssignmentRules(gold_frac=0.99)
    person = SimulatedAnnotator(name="ann")
    value, seconds = judged(person, store.next_task("ann"), seed=0, dimensions=["overall"])
    assert seconds > 0
    if kind in (TaskKind.PAIRWISE, TaskKind.RANKING, TaskKind.BINARY):
        assert value == GOLD[kind]
    elif kind is TaskKind.RATING:
        low, high, middle = value["ratings"]["overall"]
        assert low < middle < high
    else:
        assert value["grade"] * GOLD[kind]["grade"] > 0


def test_the_hidden_truth_is_drawn_by_seed_and_task():
    assert qualities(task("t"), 0) == qualities(task("t"), 0)
    assert qualities(task("t"), 0) != qualities(task("t"), 1)
    assert qualities(task("t"), 0) != qualities(task("u"), 0)
    tied = qualities(task("t", gold={"preference": "tie"}), 0)
    assert tied[0] == tied[1]


def test_a_store_that_people_worked_in_is_refused_unless_one_knows(store):
    store.add_tasks([task(f"t{n}") for n in range(4)])
    store.add_annotator("ann")
    held = store.next_task("ann")
    store.submit("ann", Submission(assignment=held.number, key="k", value={"preference": "a"}))
    with pytest.raises(ConfigError, match=r"1 judgment by 'ann'.*--i-know"):
        simulate(store, crowd(1))
    assert {judgment.annotator for judgment in store.judgments()} == {"ann"}
    assert {row.name for row in store.annotators()} == {"ann"}, "nothing was added"
    assert simulate(store, crowd(1), among_people=True).num_judgments > 0


def test_a_store_to_which_people_were_invited_is_refused_too_and_nothing_is_added(store):
    store.add_tasks([task("t")])
    store.add_annotator("olga", role="owner")
    store.add_annotator("ann")
    with pytest.raises(ConfigError, match=r"'ann' was invited.*--i-know"):
        simulate(store, crowd(1))
    assert not store.judgments()
    assert {row.name for row in store.annotators()} == {"ann", "olga"}


def test_nobody_judges_under_a_persons_name(store):
    store.add_tasks([task("t")])
    store.add_annotator("sim-good-0")
    make_invitation(store.engine, "sim-good-0")
    with pytest.raises(ConfigError, match="'sim-good-0'"):
        simulate(store, crowd(1), among_people=True)


def test_what_is_simulated_is_said_wherever_judgments_are_counted(store, tmp_path):
    store.add_tasks([task(f"t{n}") for n in range(3)])
    store.add_annotator("ann")
    held = store.next_task("ann")
    store.submit("ann", Submission(assignment=held.number, key="k", value={"preference": "a"}))
    simulate(store, crowd(1), among_people=True, limit=2)
    words = "2 of 3 judgments are simulated (rlhf feedback simulate) and no opinion of anybody's."
    findings = findings_of(store, resamples=10)
    assert (findings.coverage.num_simulated, findings.notes[0]) == (2, words)
    assert f"! {words}\n" in in_words(findings)
    assert select(store).simulated == words
    assert [(one.name, one.is_simulated) for one in known_people(store)] == [("ann", False), ("sim-good-0", True)]
    make_invitation(store.engine, "sim-good-0")
    assert simulated_annotators(store) == {"sim-good-0"}, "the store remembers what it made"


def test_simulated_judgments_that_come_in_a_file_are_known_and_a_person_called_so_is_no_simulation(store):
    store.add_annotator("sim-good-7")
    store.add_annotator("sim-one")
    make_invitation(store.engine, "sim-one")
    assert simulated_annotators(store) == {"sim-good-7"}


def test_where_nothing_is_simulated_nothing_is_said():
    assert simulated_words(["ann", "bob"], {"sim-one"}) == ""
    assert simulated_words(["ann", "sim-one"], {"sim-one"}).startswith("1 of 2 judgments is simulated")


def test_a_limit_stops_and_spammers_are_left_out_of_what_the_qualified_said(store):
    store.rules = AssignmentRules(overlap=4, gold_frac=0.3)
    store.add_tasks(
        [*(task(f"t{n}") for n in range(24)), *(task(f"g{n}", gold={"preference": "a"}) for n in range(12))]
    )
    assert simulate(store, crowd(1), limit=3).num_judgments == 3
    simulate(store, crowd(3, 0, 1), seed=2)
    chosen = select(store, only_qualified=True, rules=QualityRules(min_judgments=20))
    assert set(chosen.unqualified) == {"sim-spammer-0"}
    assert "agreement" in chosen.unqualified["sim-spammer-0"]
    assert chosen.num_left_behind > 20
    assert {said.annotator for item in chosen.items for said in item.judgments} == {f"sim-good-{n}" for n in range(3)}
