"""What a newcomer types wrong, and what an option says that stands alone."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.cli.annotate import check_batch
from rlhf.errors import ConfigError, DataError, StorageError
from rlhf.store import PreferenceStore, check_value
from rlhf.store.values import SHAPES
from rlhf.web.server_settings import ADDRESS

PAIRS = [{"id": f"t{n}", "prompt": f"q{n}", "completion_a": "x", "completion_b": f"y{n}"} for n in range(4)]


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))

    def run(*words):
        result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    return run


@pytest.fixture
def store(call):
    call("feedback", "import", "pairs.jsonl")
    return "annotations.db"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ties", "keep"), "^--ties does nothing without --aggregate; leave it out, or add --aggregate.$"),
        (
            ("--ties", "keep", "--min-judgments", "2"),
            "--ties and --min-judgments do nothing without --aggregate; leave them out",
        ),
        (("--min-items", "9"), "--min-items does nothing without --qualified"),
        (("--min-agreement", "0.5", "--min-gold-accuracy", "0"), "do nothing without --qualified"),
        (("--regenerate-probability", "0.6"), "does nothing without --events"),
        (
            ("--events", "--unjudged", "--batch", "b"),
            "--batch and --unjudged do nothing with --events; leave them out, or leave",
        ),
        (
            ("--events", "--format", "label-studio"),
            "'label-studio' holds tasks and judgments of them, and what users did is",
        ),
        (("--events", "--format", "argilla"), "leave --events out, or write --format rows"),
        (("--events", "--aggregate", "majority"), "--aggregate does nothing with --events"),
        (("--unjudged", "--aggregate", "majority"), "--unjudged does nothing with --aggregate"),
        (("--unjudged", "--format", "trl"), "'trl' has no row for a task that nobody judged"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(words, message, call, store, tmp_path):
    with pytest.raises(ConfigError, match=message):
        call("feedback", "export", "x.jsonl", *words)
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("annotate", "--kind", "graded5"), "--kind says how new tasks are asked, and no file"),
        (("annotate", "--batch", "a", "--all-batches"), "give one of them"),
        (("feedback", "sample-size", "--overlap", "3", "--wanted-accuracy", "0.8"), "give one"),
        (("feedback", "guidelines", "g.yaml", "--json"), "--json shows what a store asks for"),
    ],
)
def test_two_options_that_undo_each_other_are_refused(words, message, call, store):
    with pytest.raises(ConfigError, match=message):
        call(*words)


def test_options_that_belong_together_are_taken(call, store, tmp_path):
    call("feedback", "simulate", "--good", 2, "--careless", 0, "--overlap", 2)
    call("feedback", "export", "x.jsonl", "--aggregate", "majority", "--ties", "keep", "--min-judgments", 2)
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 4


def test_simulated_annotators_judge_as_often_as_is_wanted(call, store):
    assert call("feedback", "simulate", "--good", 3, "--careless", 0, "--overlap", 3).stdout.startswith(
        "12 simulated judgments"
    )
    with PreferenceStore(store) as opened:
        assert opened.rules.overlap == 3


def test_a_crowd_too_small_for_the_overlap_is_told(call, store):
    said = call("feedback", "simulate", "--good", 1, "--careless", 0, "--overlap", 2).stdout
    assert said.startswith(
        "! 2 judgments of each task are wanted, and 1 annotator can give no more than one each.\n4 sim"
    )


def test_a_store_in_which_people_judged_keeps_its_rules_when_a_rehearsal_is_refused(call, store):
    rows = [{**row, "preference": "a", "annotator_id": "ann"} for row in PAIRS]
    with open("judged.jsonl", "w", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    call("feedback", "import", "judged.jsonl")
    with pytest.raises(ConfigError, match="taken out"):
        call("feedback", "simulate", "--overlap", 3)
    with PreferenceStore(store) as opened:
        assert opened.rules.overlap == 1


def test_an_invitation_leads_to_where_the_store_was_last_served(call, store):
    alone = call("feedback", "invite", "ann")
    assert alone.stdout.startswith("http://127.0.0.1:8000/join?token=")
    assert "No server was started with this store yet" in alone.stderr
    with PreferenceStore(store) as opened:
        opened.set_setting(ADDRESS, "https://label.example.org")
    served = call("feedback", "invite", "ann")
    assert served.stdout.startswith("https://label.example.org/join?token=")
    assert served.stderr == ""
    assert call("feedback", "invite", "ann", "--url", "http://10.0.0.1:9").stdout.startswith("http://10.0.0.1:9/join?")


def test_the_server_says_its_address_to_the_store_and_goes_back_to_all_batches_when_told(call, store, monkeypatch):
    ports = []
    monkeypatch.setattr("rlhf.cli.annotate._serve", lambda opened, settings, server: ports.append(settings.port))
    with open("more.jsonl", "w", encoding="utf-8") as file:
        file.write(json.dumps({**PAIRS[0], "id": "new"}))
    call("annotate", "more.jsonl", "--batch", "mine", "--port", 0, "--public-url", "https://label.example.org")
    assert call("feedback", "invite", "ann").stdout.startswith("https://label.example.org/join?token=")
    said = call("annotate", "--batch", "mine", "--port", 0)
    assert f"http://127.0.0.1:{ports[1]}/join?" in said.stdout
    assert call("feedback", "invite", "ann").stdout.startswith(f"http://127.0.0.1:{ports[1]}/join?token=")
    with PreferenceStore(store) as opened:
        assert opened.rules.batch == "mine"
    call("annotate", "--port", 0, "--all-batches")
    with PreferenceStore(store) as opened:
        assert opened.rules.batch is None


def test_a_batch_that_is_none_changes_nothing(call, store, monkeypatch):
    monkeypatch.setattr("rlhf.cli.annotate._serve", lambda *_: pytest.fail("nothing is served"))
    with pytest.raises(ConfigError, match="'mine'"):
        call("annotate", "--batch", "mine", "--port", 0)
    with PreferenceStore(store) as opened:
        assert opened.rules.batch is None


@pytest.mark.parametrize("content", ['{"prompt": "q"}\n', "some words, and no database", "[1, 2]"])
def test_a_file_that_is_no_store_is_a_wrong_argument(content, call, tmp_path):
    (tmp_path / "rows.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=r"rows\.jsonl .*SQLite") as caught:
        call("feedback", "report", "--store", "rows.jsonl")
    assert caught.value.exit_code == 2
    assert ("rlhf feedback import rows.jsonl" in str(caught.value)) == (content[0] in "{[")
    assert (tmp_path / "rows.jsonl").read_text() == content


def test_another_programs_database_is_not_written_to(call, tmp_path):
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE bookmarks (url TEXT)")
    other.commit()
    other.close()
    before = (tmp_path / "other.db").read_bytes()
    for words in (["import", "pairs.jsonl"], ["report"]):
        with pytest.raises(ConfigError, match=r"1 table.*'bookmarks'"):
            call("feedback", *words, "--store", "other.db")
    assert (tmp_path / "other.db").read_bytes() == before, "not even its journal mode"
    with pytest.raises(ConfigError, match=r"folder.*file"):
        call("feedback", "import", "pairs.jsonl", "--store", str(tmp_path))


def test_a_postgresql_that_is_not_reached_says_where_its_password_comes_from(call):
    pytest.importorskip("psycopg")
    with pytest.raises(StorageError, match=r"export PGPASSWORD=") as caught:
        call("feedback", "report", "--store", "postgresql://ann:secret@127.0.0.1:1/none?connect_timeout=2")
    assert "secret" not in str(caught.value)


def test_a_damaged_database_is_the_disks_fault(call, store, tmp_path):
    whole = (tmp_path / store).read_bytes()
    (tmp_path / "damaged.db").write_bytes(whole[:100] + b"\xff" * 5000)
    with pytest.raises(StorageError, match=r"damaged\.db can't be opened") as caught:
        call("feedback", "report", "--store", "damaged.db")
    assert caught.value.exit_code == 9


def test_the_help_shows_a_value_of_each_kind_and_an_error_one_of_its_own(call, tmp_path):
    said = " ".join(call("feedback", "compare", "import", "--help").stdout.split())
    pages = (Path(__file__).parents[3] / "docs").glob("feedback*.md")
    docs = " ".join(word for page in pages for word in page.read_text(encoding="utf-8").split())
    for kind, shape in SHAPES.items():
        value = json.loads(shape)
        is_single = kind in ("binary", "multiclass")  # nothing is compared by these
        num = 1 if is_single else len(value.get("ranks", [0, 0]))
        assert check_value(kind, value, num_responses=num) == value
        if not is_single:
            assert " ".join(shape.split()) in said, kind
        assert shape in docs, kind
    with pytest.raises(DataError, match=r'pairwise .*`preference`.*\{"preference": "a"\}'):
        check_value("pairwise", {"winner": "a"}, num_responses=2)


def test_the_tasks_that_are_asked_are_told_by_their_batch(call, store, capsys):
    from rlhf.cli.annotate import _say_how_far, set_rules

    for name in ("one", "two"):
        rows = [{"id": f"q{n}", "prompt": f"p{n}", "completion": f"{name} {n}"} for n in range(3)]
        with open(f"{name}.jsonl", "w", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in rows))
    call("feedback", "compare", "start", "one.jsonl", "two.jsonl", "--overall", "--store", store)
    with PreferenceStore(store) as opened:
        _say_how_far(opened, store)
        said = capsys.readouterr().out
        assert "annotations.db: 7 tasks, 0 of 7 judgments made." in said
        assert "Asked are the tasks of all batches: none (4), 'human-eval' (3); --batch NAME asks one alone." in said
        check_batch(opened, "human-eval")
        set_rules(opened, {"batch": "human-eval"})
        _say_how_far(opened, store)
        said = capsys.readouterr().out
        assert "annotations.db: 3 tasks, 0 of 3 judgments made." in said, "progress is of what is asked"
        assert "Only the batch 'human-eval' is asked; 4 tasks outside it wait" in said
        with pytest.raises(ConfigError, match=r"'human-evil'.*'human-eval'"):
            check_batch(opened, "human-evil")
