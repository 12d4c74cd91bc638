"""Judgments since a date."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rlhf.errors import DataError
from rlhf.feedback.exports import select
from rlhf.feedback.simulate import SimulatedAnnotator
from rlhf.store import AssignmentRules, PreferenceStore
from tests.fixtures.judged import judge_all, pair_tasks


def test_only_what_was_judged_since_leaves_and_items_without_such_a_judgment_stay(tmp_path):
    with PreferenceStore(tmp_path / "s.db", rules=AssignmentRules(overlap=2), seed=1) as store:
        store.add_tasks(pair_tasks(4))
        judge_all(store, [SimulatedAnnotator(name="ann"), SimulatedAnnotator(name="bob")])
        with store.engine.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE judgements SET made_at = '2020-01-01 00:00:00' WHERE number NOT IN (SELECT MAX(number) FROM judgements)"
            )
        everything, newer = select(store), select(store, since=datetime(2021, 1, 1, tzinfo=UTC))
        assert (everything.num_judgments, len(everything.items)) == (8, 4)
        assert (newer.num_judgments, len(newer.items)) == (1, 1)
        assert select(store, since=datetime(2020, 1, 1, tzinfo=UTC)).num_judgments == 8, "that moment included"
        with pytest.raises(DataError, match="no judgment since 2999"):
            select(store, since=datetime(2999, 1, 1, tzinfo=UTC))
