from __future__ import annotations

import pytest
from typer.testing import CliRunner

from rlhf.cli import app, people
from rlhf.cli.annotate import add_tasks, listening, refuse_open_door, set_rules
from rlhf.errors import ConfigError, DataError
from rlhf.feedback.tasks import read_items
from rlhf.store import AssignmentRules, PreferenceStore, access
from rlhf.web.server_settings import WebSettings

ROW = '{"id": "%s", "prompt": "2+2?", "completion_a": "4", "completion_b": "5", "preference": "tie"}\n'


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "label.example.org"])
def test_other_machines_are_served_by_https_or_on_somebodys_word(host):
    with pytest.raises(ConfigError, match="would travel unencrypted"):
        refuse_open_door(WebSettings(host=host), i_know=False)
    with pytest.raises(ConfigError, match="would travel unencrypted"):
        refuse_open_door(WebSettings(host=host, public_url="http://label.example.org"), i_know=False)
    refuse_open_door(WebSettings(host=host), i_know=True)
    refuse_open_door(WebSettings(host=host, public_url="https://label.example.org"), i_know=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_is_served_without_a_word(host):
    refuse_open_door(WebSettings(host=host), i_know=False)


def test_a_port_that_is_taken_is_told():
    with listening(WebSettings(port=0)) as taken:
        port = taken.getsockname()[1]
        said = rf"^Can't listen on 127\.0\.0\.1:{port} \(Address already in use\); .*--port 0 takes a free one"
        with pytest.raises(ConfigError, match=said):
            listening(WebSettings(port=port))


def test_only_the_rules_that_are_named_change_and_the_store_remembers(tmp_path):
    place = tmp_path / "s.db"
    with PreferenceStore(place, rules=AssignmentRules(overlap=3, gold_frac=0.1)) as store:
        set_rules(store, {})
        set_rules(store, {"gold_frac": 0.2})
        assert store.rules == AssignmentRules(overlap=3, gold_frac=0.2)
    with PreferenceStore(place) as store:
        assert store.rules == AssignmentRules(overlap=3, gold_frac=0.2)


def test_tasks_are_added_once_however_often_the_command_is_started(tmp_path, capsys):
    file = tmp_path / "tasks.jsonl"
    file.write_text(ROW % "one" + ROW % "two")
    with PreferenceStore(tmp_path / "s.db") as store:
        add_tasks(store, read_items(str(file), batch="first"))
        file.write_text(ROW % "two" + ROW % "three")
        add_tasks(store, read_items(str(file), kind="graded5", batch="second"))
        actual = {task.id: (str(task.kind), task.batch) for task in store.tasks()}
    assert capsys.readouterr().out == "2 tasks added.\n1 task added, 1 there already.\n"
    assert actual == {"one": ("pairwise", "first"), "two": ("pairwise", "first"), "three": ("graded5", "second")}


def test_what_the_command_does_not_take_of_a_file_is_said(tmp_path, capsys):
    rows = [
        {"prompt": "q", "completion_a": "x", "completion_b": "y", "preference": "a", "annotator_id": "ann"},
        {"prompt": "r", "completion": "x"},
        {"prompt": "r", "completion": "x"},
    ]
    with PreferenceStore(tmp_path / "s.db") as store:
        add_tasks(store, read_items(rows))
        assert store.judgments() == []
        add_tasks(store, read_items([{"prompt": "r", "completion": "x"}, {"prompt": "r", "completion": "z"}]))
        row = {"id": "t", "prompt": "q", "completion_a": "w", "completion_b": "x", "preference": "tie"}
        add_tasks(store, read_items([row]))
        with pytest.raises(DataError, match=r"'t'.*completions"):
            add_tasks(store, read_items([row | {"completion_b": "y"}]))
    assert capsys.readouterr().out == (
        "1 task added.\n1 row left out (the first: row 2: both completions say the same, so there is nothing to judge.)\n"
        "! 1 judgment in the file not taken; `rlhf feedback import` takes them.\n1 task added.\n1 task added.\n"
    )


def test_keys_need_no_labeling_project_and_a_new_store_is_told_beside_the_key(tmp_path, capsys):
    place = str(tmp_path / "keys.db")
    people.token("app", store=place, scope=["metrics"], requests="5/second")
    said = capsys.readouterr()
    with PreferenceStore(place) as store:
        program = access.program_of(store.engine, said.out.strip())
    assert (program.name, program.scopes, program.requests) == ("app", {"metrics"}, "5/second")
    assert place in said.err
    people.token("other", store=place)
    assert not capsys.readouterr().err


def test_a_token_is_made_and_people_are_shut_out_and_let_in_again(tmp_path, capsys):
    place = str(tmp_path / "s.db")
    with PreferenceStore(place) as store:
        store.add_annotator("ann")
        people.token("chat", store=place)
        secret = capsys.readouterr().out.strip()
        assert access.program_of(store.engine, secret).name == "chat"
        people.revoke("chat", store=place, is_token=True)
        assert access.program_of(store.engine, secret) is None
        people.revoke("ann", store=place)
        assert not access.person(store.engine, "ann").active
        people.restore_access("ann", store=place)
        assert access.person(store.engine, "ann").active
        with pytest.raises(DataError, match="no token called 'zoe'"):
            people.revoke("zoe", store=place, is_token=True)


def test_a_misspelled_store_is_not_made(tmp_path):
    for command in (people.revoke, people.restore_access):  # `token` makes one and says so
        with pytest.raises(ConfigError, match="There is no store"):
            command("ann", store=str(tmp_path / "nothing.db"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [[], ["--batch", "first"], ["no-such-rows.jsonl"]])
def test_what_cannot_be_served_leaves_no_store_behind(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(ROW % "one")
    with pytest.raises((ConfigError, DataError)):
        started(*words, "--store", "judged.db")
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]


def test_a_misspelled_or_empty_store_is_told_and_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PreferenceStore("judged.db").close()
    with pytest.raises(ConfigError, match=r"judgd\.db\..*'judged\.db'.*`rlhf annotate TASKS\.jsonl`"):
        started("--store", "judgd.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(ConfigError, match=r"empty\.db"):
        started("--store", "empty.db")
    assert (tmp_path / "empty.db").read_bytes() == b""


def started(*words):
    """What the command says; an error of ours as it is."""
    result = CliRunner().invoke(app, ["annotate", "--port", "0", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout
