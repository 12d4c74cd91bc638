"""Forgetting somebody while imports and exports run, and under names that are written in other ways."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.feedback.forget import forget, names_of
from rlhf.feedback.imports import import_items
from rlhf.feedback.trace_imports import TraceRules, read_traces
from rlhf.store import PreferenceStore
from rlhf.store.deletion import forgotten_people
from rlhf.store.exported_files import exports_of
from rlhf.store.items import Item, ItemJudgment, items_of
from rlhf.store.pseudonyms import store_pseudonyms
from rlhf.store.values import Response, Task, TaskKind
from tests.fixtures.stored_events import add_event
from tests.unit.feedback.test_forget import FILES, OWN_TEXTS, bring


@pytest.fixture
def store(tmp_path):
    with PreferenceStore(tmp_path / "s.db") as opened:
        bring(opened)
        yield opened


def said(store) -> str:
    return json.dumps([repr(item) for item in items_of(store)])


def test_an_import_that_was_read_before_the_user_was_forgotten_brings_nothing_of_them_back(store):
    traces = read_traces(
        "open-webui", FILES / "open-webui.json", rules=TraceRules(personal_data="keep"),
        pseudonym=store_pseudonyms(store), forgotten=forgotten_people(store.engine),
    )  # fmt: skip
    forget(store, "user-cem")
    done = import_items(store, traces.items)
    assert done.left_out
    assert not any(text in said(store) for text in OWN_TEXTS)


def test_an_import_between_looking_and_deleting_adds_nothing(store, monkeypatch):
    import rlhf.feedback.forget as module

    traces = read_traces(
        "open-webui", FILES / "open-webui.json", rules=TraceRules(personal_data="keep"),
        pseudonym=store_pseudonyms(store), batch="again",
    )  # fmt: skip
    delete = module.delete_held

    def import_first(*args, **how):
        import_items(store, traces.items)
        delete(*args, **how)

    monkeypatch.setattr(module, "delete_held", import_first)
    forget(store, "user-cem")
    assert not any(text in said(store) for text in OWN_TEXTS)


def test_what_others_said_of_the_same_task_is_imported(store):
    forget(store, "user-cem")
    gone = next(iter(forgotten_people(store.engine)))
    task = Task(id="t", kind=TaskKind.BINARY, prompt="p", responses=[Response(text="c")])
    judgments = tuple(ItemJudgment(annotator=name, value={"label": True}) for name in (gone, "eve"))
    assert import_items(store, [Item(task=task, judgments=judgments)]).num_added == 1
    assert [one.annotator for one in store.judgments() if one.annotator in (gone, "eve")] == ["eve"]


def test_an_export_that_was_read_before_the_user_was_forgotten_does_not_stay(tmp_path, monkeypatch):
    place, output = tmp_path / "s.db", tmp_path / "rows.jsonl"
    with PreferenceStore(place) as opened:
        bring(opened)
    import rlhf.data.write as module

    write = module.write_rows

    def forget_first(path, rows):
        with PreferenceStore(place) as other:
            forget(other, "user-cem")
        return write(path, rows)

    monkeypatch.setattr(module, "write_rows", forget_first)
    ran = CliRunner().invoke(app, ["feedback", "export", str(output), "--store", str(place), "--kind", "binary"])
    assert ran.exit_code != 0
    assert not output.exists()
    monkeypatch.setattr(module, "write_rows", write)
    ran = CliRunner().invoke(app, ["feedback", "export", str(output), "--store", str(place), "--kind", "binary"])
    assert ran.exit_code == 0, ran.output
    assert not any(text in output.read_text() for text in OWN_TEXTS)


def test_a_name_is_the_same_however_its_letters_are_composed(store):
    composed, decomposed = "Jos\u00e9", "Jose\u0301"
    assert names_of(store, composed)[1] == names_of(store, decomposed)[1]
    add_event(store, "thumbs", {"user": composed, "up": True, "prompt": "p", "completion": "c"}, key="1", program="x")
    forget(store, decomposed)
    assert not list(store.events())


@pytest.mark.parametrize("user", ["%", "_", "user-%", "' OR 1=1 --", "*", "\ud800", "user-CEM"])
def test_a_name_is_no_pattern(store, user):
    from rlhf.errors import DataError

    with pytest.raises(DataError):
        forget(store, user)
    assert len(items_of(store)) == 8


def test_a_user_of_one_program_is_nobody_elsewhere(store):
    for program in ("x", "y"):
        thumb = {"user": "user-cem", "up": True, "prompt": "p", "completion": "c"}
        add_event(store, "thumbs", thumb, key=program, program=program)
    forget(store, "user-cem", program="x")
    assert [event.program for event in store.events()] == ["y"]
    assert len(items_of(store)) == 8


def test_runs_are_named_after_a_kill_between_a_file_and_the_note_of_it(store, tmp_path, monkeypatch):
    import rlhf.feedback.forget as module
    from tests.unit.feedback.test_forget import export

    path = export(store, tmp_path / "rows.jsonl", kind="binary")
    first = exports_of(store.engine)[0].hashes[0]

    def killed(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "keep_export", killed)
        with pytest.raises(KeyboardInterrupt):
            forget(store, "user-cem")
    assert not any(text in path.read_text() for text in OWN_TEXTS)
    assert first in forget(store, "user-cem").hashes
