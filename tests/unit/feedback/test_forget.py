"""Forgetting somebody reaches judgments, texts, events, files and runs, and can be repeated wherever it was stopped."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from rlhf.cli.feedback_export import _remember, _write
from rlhf.errors import ConfigError, DataError
from rlhf.feedback.exports import select
from rlhf.feedback.forget import BY_HAND, CLEAN, GONE, REWRITTEN, forget
from rlhf.feedback.imports import import_items
from rlhf.feedback.rows import rows_of
from rlhf.feedback.trace_files import list_path, read_trace_list
from rlhf.feedback.trace_imports import TraceRules, read_traces
from rlhf.store import PreferenceStore
from rlhf.store.deletion import delete_held, forgotten_people, held_of, is_pending
from rlhf.store.items import Item, ItemJudgment, items_of
from rlhf.store.pseudonyms import store_pseudonyms
from rlhf.store.values import Response, Task, TaskKind
from tests.fixtures.stored_events import add_event

FILES = Path(__file__).parents[2] / "fixtures" / "traces"
OWN_TEXTS = ("Two plus two?", "Five.", "Four.", "user-cem")
"""Of the user whom these tests forget, and of nobody else."""


def bring(store, name="open-webui", file="open-webui.json", **how):
    traces = read_traces(
        name, FILES / file, rules=TraceRules(personal_data="keep"), pseudonym=store_pseudonyms(store),
        forgotten=forgotten_people(store.engine), **how,
    )  # fmt: skip
    import_items(store, traces.items)
    return traces


def export(store, path, layout="rows", **wanted):
    selection = select(store, **wanted)
    flat = path.suffix in (".csv", ".parquet")
    _write(store, path, layout, list(rows_of(selection.items, flat=flat)), [])
    return path


@pytest.fixture
def store(place):
    with PreferenceStore(place) as opened:
        bring(opened)
        yield opened


def test_a_users_judgments_and_texts_go_and_others_stay(store):
    who = store_pseudonyms(store)("open-webui", "user-cem")
    looked = forget(store, "user-cem", dry_run=True)
    assert (looked.held.num_judgments, len(looked.held.tasks)) == (3, 3)
    assert len(items_of(store)) == 8
    done = forget(store, "user-cem")
    assert done.held.num_judgments == 3
    assert len(items_of(store)) == 5
    assert who not in {judgment.annotator for judgment in store.judgments()}
    assert not is_pending(store.engine)
    assert forgotten_people(store.engine).keys() == {who}
    with pytest.raises(DataError, match="user-cem"):
        forget(store, "user-cem")


def test_an_old_file_does_not_bring_somebody_back(store):
    forget(store, "user-cem")
    again = bring(store)
    assert len(items_of(store)) == 5
    assert sum(row.reason.startswith("the user was forgotten") for row in again.no_rows) == 2


def test_a_text_that_another_user_has_too_stays_with_their_judgment(store, tmp_path):
    row = json.loads((FILES / "open-webui.json").read_text())[4]
    other = {**row, "id": "fb-other", "user_id": "user-eve", "meta": {**row["meta"], "chat_id": "chat-eve"}}
    (tmp_path / "other.json").write_text(json.dumps([other]))
    bring(store, file=tmp_path / "other.json")
    done = forget(store, "user-cem")
    assert len(done.held.shared_tasks) == 1
    assert done.held.num_of_others == 0
    kept = [item for item in items_of(store) if item.task.prompt[-1]["content"] == "Two plus two?"]
    assert [judgment.annotator for item in kept for judgment in item.judgments] == [
        store_pseudonyms(store)("open-webui", "user-eve")
    ]


def test_whoever_judged_at_the_page_takes_their_judgments_along_and_leaves_the_tasks(store):
    task = Task(id="t", kind=TaskKind.BINARY, prompt="q", responses=[Response(text="a")])
    import_items(store, [Item(task=task, judgments=[ItemJudgment(annotator="dora", value={"label": True})])])
    done = forget(store, "dora")
    assert (done.held.num_judgments, done.held.tasks) == (1, [])
    assert [item.judgments for item in items_of(store) if item.task.id == "t"] == [()]
    assert "dora" not in {row.name for row in store.annotators()}


def test_a_judgment_of_somebody_else_on_a_users_text_goes_with_the_text(store):
    item = next(item for item in items_of(store) if item.task.prompt[-1]["content"] == "Two plus two?")
    import_items(
        store, [Item(task=item.task, judgments=[ItemJudgment(annotator="dora", value=item.judgments[0].value)])]
    )
    done = forget(store, "user-cem")
    assert done.held.num_of_others == 1
    assert "dora" not in {judgment.annotator for judgment in store.judgments()}


def test_events_of_a_user_and_about_the_same_completion_go(store):
    add_event(
        store,
        "thumbs",
        {"user": "user-cem", "up": True, "prompt": "p", "completion": "c"},
        key="1",
        program="x",
        completion_id="k",
    )
    add_event(store, "regenerate", {"prompt": "p", "completion": "c"}, key="2", program="x", completion_id="k")
    add_event(
        store,
        "thumbs",
        {"user": "eve", "up": True, "prompt": "p", "completion": "d"},
        key="3",
        program="x",
        completion_id="l",
    )
    add_event(
        store,
        "thumbs",
        {"user": "user-cem", "up": True, "prompt": "p", "completion": "e"},
        key="4",
        program="y",
        completion_id="k",
    )
    assert len(forget(store, "user-cem", program="y", dry_run=True).held.events) == 1
    forget(store, "user-cem")
    assert [event.key for event in store.events()] == ["3"]


def test_one_conversation_can_be_forgotten_by_its_id(store):
    done = forget(store, trace_id="chat-1")
    assert len(done.held.tasks) == 2
    assert not done.held.annotators
    assert len(items_of(store)) == 6
    assert not forgotten_people(store.engine)


def test_an_owner_is_not_forgotten(store):
    store.add_annotator("boss", role="owner")
    with pytest.raises(ConfigError, match="boss"):
        forget(store, "boss")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.csv", "a.parquet"])
def test_rows_leave_files_of_every_format(store, tmp_path, name):
    path = export(store, tmp_path / name, kind="binary")
    done = forget(store, "user-cem")
    (file,) = done.files
    assert (file.state, file.num_removed, file.num_rows) == (REWRITTEN, 2, 5)
    import gzip

    text = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    assert not any(word.encode() in text for word in ("Five.", "Two plus two?"))
    from rlhf.data.read import open_rows

    assert len(list(open_rows(path))) == 3
    assert {trace.trace_id for trace in read_trace_list(list_path(path))} == {"chat-1", "chat-2", "chat-3"}


def test_rows_without_ids_are_known_by_their_texts(store, tmp_path):
    paths = [export(store, tmp_path / f"{layout}.jsonl", layout, kind="pairwise") for layout in ("trl", "openai")]
    done = forget(store, "user-cem")
    assert [(file.state, file.num_removed, file.num_rows) for file in done.files] == [(REWRITTEN, 1, 3)] * 2
    assert not any(word in path.read_text() for path in paths for word in OWN_TEXTS)


def test_files_that_are_gone_clean_or_to_be_deleted_by_hand_are_named(store, tmp_path):
    gone = export(store, tmp_path / "gone.jsonl", kind="pairwise")
    gone.unlink()
    clean = tmp_path / "clean.jsonl"
    clean.write_text('{"prompt": "q", "chosen": "a", "rejected": "b"}\n')
    _remember(store, clean, "rows", 1)
    folder = tmp_path / "data"
    folder.mkdir()
    _remember(store, folder, "datasets", 1)
    done = forget(store, "user-cem")
    assert {file.path.name: file.state for file in done.files} == {
        "gone.jsonl": GONE,
        "clean.jsonl": CLEAN,
        "data": BY_HAND,
    }


def test_no_byte_of_the_text_is_left_in_the_database_files(tmp_path):
    place = tmp_path / "s.db"
    with PreferenceStore(place) as opened:
        bring(opened)
    assert any(b"Two plus two?" in file.read_bytes() for file in tmp_path.iterdir())
    with PreferenceStore(place) as opened:
        forget(opened, "user-cem")
        held = [file.read_bytes() for file in tmp_path.iterdir()]
    for word in OWN_TEXTS:
        assert not any(word.encode() in one or json.dumps(word).encode() in one for one in held)


def forget_until(where, place):
    """In a child of this process, which kills itself there."""
    import rlhf.feedback.forget as module

    def die(*_args, **_how):
        os.kill(os.getpid(), signal.SIGKILL)

    def clean_one(*args, own=module._clean):
        own(*args)
        die()

    name, replaced = {"after the first file": ("_clean", clean_one), "before deleting": ("delete_held", die)}.get(
        where, ("scrub", die)
    )
    setattr(module, name, replaced)
    forget(PreferenceStore(place), "user-cem")


@pytest.mark.parametrize("where", ["after the first file", "before deleting", "before the files are written anew"])
def test_a_kill_leaves_what_the_same_command_finishes(tmp_path, where):
    place = tmp_path / "s.db"
    with PreferenceStore(place) as opened:
        bring(opened)
        files = [export(opened, tmp_path / f"{kind}.jsonl", kind=kind) for kind in ("pairwise", "binary")]
    if (child := os.fork()) == 0:
        forget_until(where, place)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    with PreferenceStore(place) as opened:
        forget(opened, "user-cem")
        assert len(items_of(opened)) == 5
        assert not is_pending(opened.engine)
    everything = b"".join(path.read_bytes() for path in [*files, *tmp_path.glob("s.db*")])
    assert not any(word.encode() in everything for word in OWN_TEXTS)


def test_deleting_is_all_or_nothing(store, monkeypatch):
    import rlhf.store.deletion as deletion

    held = held_of(store.engine, names={store_pseudonyms(store)("open-webui", "user-cem")})
    monkeypatch.setattr(deletion, "ForgottenRow", None)  # the last step fails
    with pytest.raises(TypeError, match="NoneType"):
        delete_held(store.engine, held, remember=["x"])
    assert len(items_of(store)) == 8
    assert len(store.judgments()) == 8
