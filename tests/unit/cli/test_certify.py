from __future__ import annotations

import json

import pytest
import yaml
from typer.testing import CliRunner

from rlhf.cli import app
from tests.unit.rewards.pairwise.endpoint import judging
from tests.unit.rewards.servers import serving


def run(*arguments):
    return CliRunner().invoke(app, ["judge", *map(str, arguments)])


def by_its_end(first, second):
    return f"I looked.\n[[{'A' if first.endswith('good') else 'B'}]]"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    votes = [
        {
            "prompt": f"p{i}",
            "completion_a": f"{i} good",
            "completion_b": f"{i} rather bad",
            "preference": "a",
            "annotator_id": who,
        }
        for i in range(60)
        for who in ("ann", "bob")
    ]
    (tmp_path / "votes.jsonl").write_text("".join(json.dumps(vote) + "\n" for vote in votes))
    return tmp_path


def test_certify_check_and_go_stale(place):
    with serving(judging(by_its_end), path="/v1") as service:
        (place / "judge.yaml").write_text(yaml.safe_dump({"type": "endpoint", "url": service.url, "model": "m"}))
        found = run("certify", "judge.yaml", "--labels", "votes.jsonl")
        assert found.exit_code == 0, found.output
        assert "certified" in found.output
        asked = len(service.asked)
        assert asked == 120
        assert run("certify", "judge.yaml", "--labels", "votes.jsonl").exit_code == 0
        assert len(service.asked) == asked, "no verdict is asked for twice"
    assert run("check", "judge.yaml").exit_code == 0
    found = run("check", "judge.yaml", "temperature=0.5")
    assert found.exit_code == 20
    assert "the temperature changed" in found.output
    with (place / "votes.jsonl").open("a") as file:
        file.write('{"prompt": "q", "chosen": "x", "rejected": "y"}\n')
    assert "the labels changed" in run("check", "judge.yaml").output


def test_a_judge_that_needs_no_certificate_is_told_so_and_one_that_it_has_is_looked_at(place):
    (place / "judge.yaml").write_text("type: function\nfunction: shorter\n")
    for judge in ("judge.yaml", "shorter"):
        found = run("check", judge)
        assert found.exit_code == 0
        assert "has no certificate and needs none" in found.output
    assert run("certify", "judge.yaml", "--labels", "votes.jsonl").exit_code == 0
    assert "judge.yaml.certificate.json" in (found := run("check", "judge.yaml")).output
    assert found.exit_code == 0
    found = run("check", "judge.yaml", "function=longer")
    assert found.exit_code == 20
    assert "stale: the function changed" in found.output


def test_a_refusal_names_its_reason_and_exits_with_20(place):
    (place / "judge.yaml").write_text("type: function\nfunction: longer\n")
    found = run("certify", "judge.yaml", "--labels", "votes.jsonl", "--json")
    assert found.exit_code == 20
    document = json.loads(found.output)
    assert [reason["name"] for reason in document["reasons"]] == ["chance"]
    assert json.loads((place / "judge.yaml.certificate.json").read_text()) == document
    found = run("certify", "judge.yaml", "--labels", "votes.jsonl", "--limit", 30)
    assert "- labels: Labels on 30 prompts" in found.output


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["judge.yaml"], "--labels"),
        (["judge.yaml", "--labels", "votes.jsonl", "--store", "x.db"], "--labels"),
        (["longer", "--labels", "votes.jsonl"], "--out"),
        (["judge.yaml", "tie_band=1", "--labels", "votes.jsonl"], "--out"),
        (["judge.yaml", "--labels", "none.jsonl"], "none.jsonl"),
        (["judge.yaml", "--store", "none.db"], "none.db"),
        (["judge.yaml", "--labels", "votes.jsonl", "--min-agreement", "0.3"], "min_agreement"),
        (["judge.yaml", "--labels", "votes.jsonl", "--guidelines", "none.yaml"], "none.yaml"),
    ],
)
def test_wrong_calls_are_refused_by_what_is_wrong(place, arguments, wanted):
    (place / "judge.yaml").write_text("type: function\nfunction: longer\n")
    found = run("certify", *arguments)
    assert found.exit_code not in (0, 20)
    assert wanted in str(found.exception or found.output)


def test_a_store_gives_labels_guidelines_and_models(place):
    pytest.importorskip("sqlalchemy")
    (place / "judge.yaml").write_text("type: function\nfunction: shorter\n")
    votes = [json.loads(line) for line in (place / "votes.jsonl").read_text().splitlines()]
    for vote in votes:
        vote |= {"model_a": "mine", "model_b": "other"}
    (place / "votes.jsonl").write_text("".join(json.dumps(vote) + "\n" for vote in votes))
    imported = CliRunner().invoke(app, ["feedback", "import", "votes.jsonl", "--store", "judged.db"])
    assert imported.exit_code == 0, imported.output
    found = run("certify", "judge.yaml", "--store", "judged.db", "--own-model", "mine", "--json")
    assert found.exit_code == 0, found.output
    document = json.loads(found.output)
    assert document["measured"]["own"]["value"] == 1.0
    assert document["measured"]["people"]["n"] == 60
    assert document["labels"]["kind"] == "store"
    assert document["guidelines"]["kind"] == "store guidelines"
    assert run("check", "judge.yaml").exit_code == 0
