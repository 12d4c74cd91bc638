from __future__ import annotations

import json

import pytest

from rlhf.config.judges import certificate_file, read_judge
from rlhf.errors import ConfigError, DataError
from rlhf.rewards.pairwise.certificate import (
    bindings,
    bound_source,
    certificate_problem,
    check_certificate,
    read_certificate,
    sealed,
)

ENDPOINT = {"type": "endpoint", "url": "http://localhost:1/v1", "model": "m", "api_key_variable": "NOT_SET_ANYWHERE"}
TEMPLATE = "{prompt} {first} {second}: [[A]], [[B]] or [[C]]?"


def certificate_of(judge, folder, *, verdict="certified", labels=None, reasons=()):
    return sealed(
        {
            "schema": 1, "verdict": verdict, "reasons": list(reasons), "judge": {"bindings": bindings(judge)},
            "labels": bound_source(labels, kind="file", folder=folder), "guidelines": None, "time": "now",
        }
    )  # fmt: skip


@pytest.fixture
def place(tmp_path):
    """A judge in a file, its template, labels, and a certificate next to it."""
    (tmp_path / "prompt.txt").write_text(TEMPLATE)
    (tmp_path / "votes.jsonl").write_text('{"prompt": "p"}\n')
    judge = {**ENDPOINT, "template": str(tmp_path / "prompt.txt")}
    (tmp_path / "judge.yaml").write_text(json.dumps(judge))
    actual = certificate_of(judge, tmp_path, labels=tmp_path / "votes.jsonl")
    certificate_file(tmp_path / "judge.yaml").write_text(json.dumps(actual))
    return tmp_path


def test_a_certificate_next_to_the_file_of_settings_is_taken(place):
    judge = read_judge(place / "judge.yaml")
    assert judge.certificate == str(place / "judge.yaml.certificate.json")
    assert certificate_problem(judge) is None
    assert certificate_problem(judge, asked="points") is not None, "it is about pairs"


def test_a_certificate_that_settings_name_goes_before_the_one_next_to_them(place):
    text = (place / "judge.yaml").read_text()
    (place / "judge.yaml").write_text(json.dumps({**json.loads(text), "certificate": "other.json"}))
    assert read_judge(place / "judge.yaml").certificate == "other.json"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model": "n"}, "the model"),
        ({"url": "http://localhost:2/v1"}, "the endpoint's address"),
        ({"temperature": 0.5}, "the temperature"),
        ({"max_tokens": 9}, "the longest answer (max_tokens)"),
        ({"arguments": {"top_p": 0.5}}, "the arguments sent with each request"),
        ({"template": "pairwise"}, "the prompt template"),
        ({"type": "function", "function": "longer"}, "the type of judge"),
    ],
)
def test_what_changes_a_verdict_makes_it_stale_by_name(place, change, named):
    certificate = read_certificate(place / "judge.yaml.certificate.json")
    judge = {**json.loads((place / "judge.yaml").read_text()), **change}
    if change.get("type"):
        judge = change
    assert check_certificate(judge, certificate, folder=place).changed == (named,)


@pytest.mark.parametrize(
    "change", [{"name": "x"}, {"concurrency": 9}, {"retries": 1}, {"requests_per_minute": 3}, {"cache": "x.jsonl"}]
)
def test_what_changes_no_verdict_does_not(place, change):
    judge = {**json.loads((place / "judge.yaml").read_text()), **change}
    certificate = read_certificate(place / "judge.yaml.certificate.json")
    assert not check_certificate(judge, certificate, folder=place).is_stale


def test_an_edited_prompt_and_edited_labels_are_named(place):
    (place / "prompt.txt").write_text(TEMPLATE + " Be kind.")
    (place / "votes.jsonl").write_text('{"prompt": "q"}\n')
    problem = certificate_problem(place / "judge.yaml")
    assert "stale" in problem
    assert "the prompt template and the labels changed" in problem


def test_labels_that_are_not_here_are_unchecked_and_no_change(place):
    (place / "votes.jsonl").unlink()
    certificate = read_certificate(place / "judge.yaml.certificate.json")
    actual = check_certificate(place / "judge.yaml", certificate, folder=place)
    assert not actual.is_stale
    assert "votes.jsonl is not there" in actual.unchecked[0]


def test_a_folder_may_move_as_a_whole(place, tmp_path_factory):
    moved = tmp_path_factory.mktemp("moved") / "inside"
    place.rename(moved)
    text = (moved / "judge.yaml").read_text().replace(str(place), str(moved))
    (moved / "judge.yaml").write_text(text)
    certificate = read_certificate(moved / "judge.yaml.certificate.json")
    actual = check_certificate(moved / "judge.yaml", certificate, folder=moved)
    assert (actual.changed, actual.unchecked) == ((), ())


def test_a_local_model_is_bound_by_its_content_and_not_its_name(tmp_path):
    for name, weights in (("one", b"w"), ("two", b"w"), ("three", b"v")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(weights)
    one, two, three = (bindings({"type": "local", "path": str(tmp_path / name)}) for name in ("one", "two", "three"))
    assert one == two
    assert {key for key in one if one[key] != three[key]} == {"path"}


def test_a_jury_is_certified_as_a_whole_and_its_members_changes_are_named():
    jury = {"type": "jury", "members": [ENDPOINT, {**ENDPOINT, "model": "n"}]}
    assert "jury of m, n has no certificate" in certificate_problem(jury)
    certificate = {"judge": {"bindings": bindings(jury)}, "labels": None, "guidelines": None}
    other = {**jury, "members": [ENDPOINT, {**ENDPOINT, "model": "o"}]}
    assert check_certificate(other, certificate).changed == ("the model of member 2 of the jury",)
    more = {**jury, "members": [*jury["members"], "longer"], "combine": "mean"}
    assert {"how the jury combines its members", "the number of members"} <= set(
        check_certificate(more, certificate).changed
    )


def test_rules_people_and_reward_models_need_none():
    for judge in ("longer", "models/reward", {"type": "human", "labels": "votes.jsonl"}):
        assert certificate_problem(judge) is None
    assert certificate_problem({"type": "jury", "members": ["longer", "shorter"]}) is None
    assert "has no certificate" in certificate_problem(ENDPOINT), "and no key is needed to say so"


def test_a_refused_certificate_is_no_certificate(place):
    judge = json.loads((place / "judge.yaml").read_text())
    reasons = [{"name": "chance", "text": "It tosses a coin."}]
    actual = certificate_of(judge, place, verdict="refused", labels=place / "votes.jsonl", reasons=reasons)
    certificate_file(place / "judge.yaml").write_text(json.dumps(actual))
    assert "It tosses a coin." in certificate_problem(place / "judge.yaml")


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"schema": 1}', "schema", "edited"])
def test_a_damaged_certificate_is_an_error_that_names_it(place, damage):
    file = certificate_file(place / "judge.yaml")
    document = json.loads(file.read_text())
    if damage == "schema":
        damage = json.dumps({**document, "schema": 7})
    elif damage == "edited":
        damage = json.dumps({**document, "verdict": "refused"})
    file.write_text(damage)
    with pytest.raises(DataError, match=r"judge\.yaml\.certificate\.json"):
        certificate_problem(place / "judge.yaml")


def test_a_stage_is_no_model_outside_a_recipe():
    with pytest.raises(ConfigError, match="stage:grm"):
        bindings({"type": "local", "path": "stage:grm"})
