from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.data.read import read_rows
from rlhf.errors import ConfigError, DataError
from rlhf.store import PreferenceStore
from rlhf.store.events import Event

EVENTS = {
    "thumbs": {"prompt": "q", "completion": "x", "up": True},
    "edit": {"prompt": "q", "completion": "x", "edited": "x, please"},
    "vote": {"prompt": "q", "completion_a": "x", "completion_b": "y", "preference": "tie"},
    "regenerate": {"prompt": "q", "completion": "x", "next_completion": "z"},
}


@pytest.fixture
def export(tmp_path, monkeypatch):
    """Export events of some kinds; gives what was said and the files with the kinds of their rows."""
    monkeypatch.chdir(tmp_path)

    def run(*kinds, words=(), output="votes.jsonl"):
        with PreferenceStore("s.db") as store:
            store.add_events(
                [Event(kind=kind, content=EVENTS[kind], key=kind, model="served") for kind in kinds], program="p"
            )
        result = CliRunner().invoke(
            app, ["feedback", "export", output, "--store", "s.db", "--events", *words], catch_exceptions=True
        )
        if result.exception is not None:
            raise result.exception
        values = {path.name: [row.kind.value for row in read_rows(str(path))] for path in sorted(Path().glob("votes*"))}
        return result.stdout, values

    return run


def test_a_file_of_events_holds_one_kind_of_row_and_says_which_files_there_are(export):
    said, actual = export("thumbs", "edit")
    assert actual == {"votes.pairs.jsonl": ["preference"], "votes.verdicts.jsonl": ["unpaired"]}
    assert "1 row written to votes.pairs.jsonl.\n" in said
    assert "--kind pairwise or binary writes one" in said


@pytest.mark.parametrize(("kind", "rows"), [("binary", ["unpaired"]), ("pairwise", ["preference"])])
def test_a_kind_that_was_chosen_has_the_name_that_was_given(kind, rows, export):
    said, actual = export("thumbs", "edit", words=("--kind", kind))
    assert actual == {"votes.jsonl": rows}
    assert said.endswith("1 row written to votes.jsonl.\n")


def test_edits_beside_votes_are_comparisons_and_no_tie_is_lost(export):
    _, actual = export("edit", "vote", "regenerate", words=("--regenerate-probability", "0.6"))
    assert actual == {"votes.jsonl": ["comparison"] * 3}
    edit, vote, again = (json.loads(line) for line in Path("votes.jsonl").read_text().splitlines())
    assert (edit["completion_a"], edit["completion_b"], edit["preference"]) == ("x, please", "x", "a")
    assert (edit["model_b"], vote["preference"], again["label_probability"]) == ("served", "tie", 0.6)
    pairs = [row.pair() for row in read_rows("votes.jsonl")]
    assert [pair and (pair.chosen, pair.rejected) for pair in pairs] == [("x, please", "x"), None, ("z", "x")]


def test_events_of_one_kind_keep_the_name_and_their_rows(export):
    assert export("edit")[1] == {"votes.jsonl": ["preference"]}


def test_the_names_of_several_files_keep_their_ending(export):
    assert set(export("thumbs", "vote", output="votes.jsonl.gz")[1]) == {
        "votes.pairs.jsonl.gz",
        "votes.verdicts.jsonl.gz",
    }


def test_a_kind_that_no_event_has_is_refused_with_what_there_is(export):
    with pytest.raises(DataError, match=r"pairwise.*1 row of kind binary"):
        export("thumbs", words=("--kind", "pairwise"))
    with pytest.raises(ConfigError, match=r"pairwise rows .* or binary"):
        export("edit", words=("--kind", "ranking"))
    assert not Path("votes.jsonl").exists()
