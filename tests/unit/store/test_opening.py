"""What a store is from outside: a file or a database that is made, opened again, brought up to date or left alone."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command

from rlhf.errors import ConfigError, StorageError
from rlhf.store import PreferenceStore, Response, Submission, Task, TaskKind, database
from rlhf.store.assign import AssignmentRules
from rlhf.store.database import open_engine, writing
from rlhf.store.migrate import alembic_config
from tests.fixtures.stored_events import add_event

pytestmark = pytest.mark.usefixtures("stores_are_made")


def test_what_was_decided_is_there_when_the_store_is_opened_again(place):
    with PreferenceStore(place, rules=AssignmentRules(overlap=3), seed=7):
        pass
    with PreferenceStore(place) as store:
        assert (store.rules.overlap, store.seed) == (3, 7)


def test_every_commit_is_synced(tmp_path, monkeypatch, no_disk_is_waited_for):
    monkeypatch.setattr(database, "SYNCHRONOUS", no_disk_is_waited_for["synchronous"])
    with PreferenceStore(tmp_path / "s.db") as store, store.engine.connect() as connection:
        kept = {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("synchronous", "journal_mode")}
    assert kept == {"synchronous": 2, "journal_mode": "wal"}, "FULL: what was acknowledged outlives a power cut"


@pytest.mark.parametrize("name", ["what?.db", "a%41b.db", "a#b.db", "@host:5.db"])
def test_a_file_may_have_any_name(tmp_path, name):
    with PreferenceStore(tmp_path / name):
        pass
    assert name in {file.name for file in tmp_path.iterdir()}


def test_a_store_knows_itself_and_two_are_never_the_same(place, tmp_path):
    with PreferenceStore(place) as store, PreferenceStore(tmp_path / "other.db") as other:
        with ThreadPoolExecutor(4) as pool:
            names = set(pool.map(lambda _: store.own_id, range(8)))
        assert len(names) == 1
        assert other.own_id not in names
    with PreferenceStore(place) as store:
        assert {store.own_id} == names


def test_the_tables_are_those_of_the_migrations(place):
    with PreferenceStore(place) as store, store.engine.begin() as connection:
        command.check(alembic_config(connection))
        command.downgrade(alembic_config(connection), "base")
        command.upgrade(alembic_config(connection), "head")


def test_events_of_an_older_store_belong_to_the_program_they_name(place):
    with PreferenceStore(place) as store:
        for program in ("chat", "search"):
            add_event(store, "thumbs", {"up": True, "program": program}, key="k", program=program)
        with store.engine.begin() as connection:
            command.downgrade(alembic_config(connection), "0002")
            keys = connection.execute(sa.text("SELECT key FROM events ORDER BY number")).scalars().all()
            command.upgrade(alembic_config(connection), "head")
        assert keys == ["k", "event-2"], "one key for all programs, as it was then"
        assert [row.program for row in store.events()] == ["chat", "search"]


def test_of_a_judgment_in_an_older_store_it_is_not_known_whether_the_differences_were_seen(place):
    with PreferenceStore(place) as store:
        store.add_annotator("ann")
        response = [Response(text="good"), Response(text="bad")]
        store.add_tasks([Task(id="t", kind=TaskKind.PAIRWISE, prompt="q", responses=response)])
        number = store.next_task("ann").number
        store.submit("ann", Submission(assignment=number, key="k", value={"preference": "a"}, diff_viewed=True))
        assert [judgment.diff_viewed for judgment in store.judgments()] == [True]
        with store.engine.begin() as connection:
            command.downgrade(alembic_config(connection), "0003")
            command.upgrade(alembic_config(connection), "head")
        assert [judgment.diff_viewed for judgment in store.judgments()] == [None]


def test_a_store_of_a_newer_version_is_not_touched(place):
    with PreferenceStore(place) as store, writing(store.engine) as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StorageError, match="newer version"):
        PreferenceStore(place)


def test_a_file_that_is_no_database_is_told(tmp_path):
    (tmp_path / "s.db").write_text("not a database at all, " * 100)
    with pytest.raises(ConfigError, match=r"s\.db .*b'not a database a"):
        PreferenceStore(tmp_path / "s.db")
    with pytest.raises(ConfigError, match="not a database URL"):
        open_engine("postgresql://:::")


def test_another_programs_database_is_told_and_stays_as_it_is(place):
    engine = sa.create_engine(open_engine(place).url)
    with engine.begin() as connection:
        for name in ("runs", "alembic_version"):  # others use alembic, too
            connection.execute(sa.text(f"CREATE TABLE {name} (version_num VARCHAR(32))"))
        connection.execute(sa.text("INSERT INTO alembic_version VALUES ('0a1b2c')"))
    file = place if isinstance(place, Path) else None
    before = file and file.read_bytes()
    with pytest.raises(ConfigError, match=r"1 table.*'runs'"):
        PreferenceStore(place)
    assert (file and file.read_bytes()) == before
    assert sorted(sa.inspect(engine).get_table_names()) == ["alembic_version", "runs"]
    engine.dispose()


def test_looking_at_a_file_ends_no_lock_of_a_store_that_is_open_on_it(tmp_path):
    place = tmp_path / "s.db"
    asks = f"""
        import sqlite3
        connection = sqlite3.connect({str(place)!r}, timeout=0, isolation_level=None)
        connection.execute("PRAGMA journal_mode=DELETE")
    """
    with PreferenceStore(place) as store, store.engine.connect():
        PreferenceStore(place).close()
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(asks)], capture_output=True, text=True, check=False
        )
    assert "database is locked" in done.stderr, "another process had the file for itself"


def rights_in(folder):
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


@pytest.mark.parametrize("as_url", [False, True])
@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_store_and_what_sqlite_keeps_beside_it_are_their_owners_alone(tmp_path, umask, as_url):
    before = os.umask(umask)
    try:
        with PreferenceStore(f"sqlite:///{tmp_path}/s.db" if as_url else tmp_path / "s.db") as store:
            store.add_annotator("ann")
            actual = rights_in(tmp_path)
    finally:
        os.umask(before)
    assert actual == {"s.db": 0o600, "s.db-wal": 0o600, "s.db-shm": 0o600}


def test_a_store_that_others_could_read_is_closed_to_them_and_that_is_said(tmp_path, caplog):
    place = tmp_path / "s.db"
    with PreferenceStore(place) as store:
        store.add_annotator("ann")
        for file in tmp_path.iterdir():
            file.chmod(0o664)
        with caplog.at_level(logging.WARNING), PreferenceStore(place):
            assert rights_in(tmp_path) == {"s.db": 0o600, "s.db-wal": 0o600, "s.db-shm": 0o600}
        assert f"{place} (664)" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING), PreferenceStore(place):
        assert caplog.text == "", "said once"


def test_a_store_of_somebody_elses_that_others_can_read_is_warned_of(tmp_path, caplog, monkeypatch):
    place = tmp_path / "s.db"
    PreferenceStore(place).close()
    place.chmod(0o644)

    def refuse(path, mode):
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(os, "chmod", refuse)
    with caplog.at_level(logging.WARNING):
        PreferenceStore(place).close()
    assert f"chmod 600 {place}" in caplog.text


def test_how_sure_an_annotator_of_an_older_store_was_is_a_probability_now(place):
    with PreferenceStore(place) as store:
        store.add_annotator("ann")
        tasks = [Task(id=str(n), kind=TaskKind.BINARY, prompt="q", responses=[Response(text="x")]) for n in range(4)]
        store.add_tasks(tasks)
        for sure in (0.5, 0.75, 1.0, None):
            number = store.next_task("ann").number
            sent = Submission(assignment=number, key=f"k{sure}", value={"label": True}, label_probability=sure)
            store.submit("ann", sent)
        with store.engine.begin() as connection:
            command.downgrade(alembic_config(connection), "0004")
            before = connection.execute(sa.text("SELECT confidence FROM judgements ORDER BY number")).scalars().all()
            command.upgrade(alembic_config(connection), "head")
        assert before == [0.0, 0.5, 1.0, None]
        assert [judgment.label_probability for judgment in store.judgments()] == [0.5, 0.75, 1.0, None]
