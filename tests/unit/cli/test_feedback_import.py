"""`rlhf feedback import`, `convert`, `forget` and `lineage --trace` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf.cli import app

FILES = Path(__file__).parents[2] / "fixtures" / "traces"
CHATS = str(FILES / "open-webui.json")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def invoke(*words, fails=False):
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert (result.exit_code != 0) == fails, (result.output, result.exception)
        return result.output if not fails else f"{result.output}{result.exception}"

    return invoke


def test_an_import_counts_reasons_and_says_that_consent_was_not_checked(run):
    text = run("feedback", "import", CHATS, "--store", "s.db")
    assert "8 tasks added (read as 'open-webui')" in text
    assert text.count("no row: ") == 4
    assert "was not checked (--consent-field" in text
    told = json.loads(run("feedback", "import", CHATS, "--store", "s.db", "--json"))
    assert (told["tasks_added"], told["tasks_known"], told["judgments_added"]) == (0, 8, 0)
    assert told["consent"] == {"checked": False, "field": None}
    assert sum(told["no_rows"].values()) == 4


def test_personal_data_is_refused_unless_told_and_never_printed(run, tmp_path):
    row = json.loads(Path(CHATS).read_text())[0]
    row["data"]["comment"] = "Write to ann@example.org."
    (tmp_path / "f.json").write_text(json.dumps([row]))
    refused = run("feedback", "import", "f.json", "--store", "s.db", fails=True)
    assert "email: 2 in 1 record" in refused
    assert "ann@" not in refused
    kept = run("feedback", "import", "f.json", "--store", "s.db", "--personal-data", "mask")
    assert "personal data, email: 2" in kept
    assert "ann@" not in kept
    assert b"ann@example.org" not in (tmp_path / "s.db").read_bytes()


def test_rows_of_other_layouts_are_looked_through_only_where_that_is_asked_for(run, tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        json.dumps({"prompt": "ann@example.org?", "chosen": "yes", "rejected": "no"}) + "\n"
    )
    assert "ann@" not in run(
        "feedback", "import", "rows.jsonl", "--store", "a.db", "--personal-data", "refuse", fails=True
    )
    run("feedback", "import", "rows.jsonl", "--store", "a.db", "--personal-data", "mask")
    run("feedback", "import", "rows.jsonl", "--store", "b.db")
    assert b"ann@example.org" not in (tmp_path / "a.db").read_bytes()
    assert b"ann@example.org" in (tmp_path / "b.db").read_bytes()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["rows.jsonl", "--unjudged"], "--unjudged"), (["rows.jsonl", "--consent-field", "x"], "--consent-field"),
        ([CHATS, "--label-field", "x"], "--label-field"), ([CHATS, "--kind", "pairwise"], "--kind"),
        ([CHATS, "--personal-data", "shred"], "shred"),
    ],
)  # fmt: skip
def test_options_that_would_do_nothing_are_refused_by_name(run, tmp_path, words, named):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "q", "chosen": "yes", "rejected": "no"}) + "\n")
    assert named in run("feedback", "import", *words, "--store", "s.db", fails=True)


def test_a_conversion_writes_a_file_for_each_kind_with_its_traces(run, tmp_path):
    text = run("feedback", "convert", CHATS, "out.jsonl")
    assert "6 rows of kind binary written to out.binary.jsonl" in text
    rows = [json.loads(line) for line in (tmp_path / "out.pairwise.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    assert rows[0]["trace"]["trace_id"] == "chat-1"
    assert len(json.loads((tmp_path / "out.pairwise.jsonl.traces.json").read_text())["traces"]) == 4


def test_forgetting_says_what_goes_what_stays_and_what_it_can_not_reach(run):
    run("feedback", "import", CHATS, "--store", "s.db")
    run("feedback", "export", "pairs.jsonl", "--kind", "pairwise", "--store", "s.db")
    looked = run("feedback", "forget", "user-cem", "--store", "s.db", "--dry-run")
    assert "Would be deleted: 3 judgments, 3 tasks" in looked
    assert "1 of 3 rows would be removed" in looked
    assert "no folder of runs" in looked
    told = json.loads(run("feedback", "forget", "user-cem", "--store", "s.db", "--json"))
    assert (told["judgments"], told["tasks"], told["files"][0]["removed"], told["learned"]) == (3, 3, 1, None)
    assert "backups" in " ".join(told["not_reached"])
    assert "user-cem" in run("feedback", "forget", "user-cem", "--store", "s.db", fails=True)
    assert "--trace" in run("feedback", "forget", "--store", "s.db", fails=True)


@pytest.mark.slow
def test_dpo_on_an_import_leads_from_the_trace_to_the_weights_and_back(run, tmp_path):
    row = json.loads(Path(CHATS).read_text())[0]
    row["snapshot"]["chat"]["chat"]["params"] = {}
    many = [json.dumps(row).replace("chat-1", f"chat-{n}").replace("a cow eat", f"animal {n} eat") for n in range(20)]
    (tmp_path / "chats.json").write_text(f"[{','.join(many)}]")
    run("feedback", "import", "chats.json", "--store", "s.db", "--format", "open-webui")
    run("feedback", "export", "pairs.jsonl", "--kind", "pairwise", "--aggregate", "majority", "--store", "s.db")
    run("dpo", "model=embedded", "data=pairs.jsonl", "max_steps=2", "batch_size=4", "-o", "runs/chats")
    assert "20 traces" in run("lineage", "runs/chats/dpo/model")
    assert "model/model.safetensors" in run("lineage", "--trace", "chat-7")
    text = run("feedback", "forget", "user-ann", "--store", "s.db")
    assert "learned from it: runs/chats/dpo" in text
    assert "can't forget" in text
