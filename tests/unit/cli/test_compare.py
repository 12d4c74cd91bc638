"""`rlhf feedback compare` and `rlhf feedback guidelines`, as a user types them."""

from __future__ import annotations

import json
import stat

import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.store import PreferenceStore

GUIDE = "- name: truth\n  description: Is it true?\n- name: tone\n  description: How does it sound?\n  weight: 0.5\n"


@pytest.fixture
def call(feedback, tmp_path):
    for name in ("one", "two", "three"):
        rows = [{"id": f"q{n}", "prompt": f"Question {n}?", "completion": f"{name} says {n}"} for n in range(6)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "guide.yaml").write_text(GUIDE)
    return feedback


def rows_in(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_two_models_are_compared_without_a_line_of_python(call, tmp_path):
    opened = call("compare", "start", "best=one.jsonl", "two.jsonl", "--overall", "--seed", 3)
    assert opened.startswith("6 tasks added: 6 prompts, models best, two.\n")
    assert "rlhf annotate --store evaluation.db --batch human-eval" in opened
    assert "0 tasks added, 6 there already" in call(
        "compare", "start", "best=one.jsonl", "two.jsonl", "--overall", "--seed", 3
    )
    assert call("compare", "export", "tasks.jsonl", "--key", "key.jsonl") == (
        "6 tasks written to tasks.jsonl, the key to key.jsonl.\n"
    )
    tasks, keys = rows_in(tmp_path / "tasks.jsonl"), rows_in(tmp_path / "key.jsonl")
    assert stat.S_IMODE((tmp_path / "key.jsonl").stat().st_mode) == 0o600, "it tells which completion is whose"
    assert "best" not in (tmp_path / "tasks.jsonl").read_text()
    # `one` wins five of six, wherever it stands
    said = []
    for number, task in enumerate(tasks):
        first = task["completions"][0].startswith("one")
        assert (keys[number]["models"][0] == "best") == first
        side = "a" if first == (number > 0) else "b"
        said.append(
            {"id": task["id"], "annotator": "ann", "value": {"preference": side}, "seconds": 4, "comment": "so"}
        )
    (tmp_path / "back.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said))
    assert call("compare", "import", "back.jsonl") == "6 judgments added.\n"
    assert call("compare", "import", "back.jsonl") == "0 judgments added, 6 there already.\n"
    document = json.loads(call("compare", "report", "--json"))
    (rate,) = document["win_rates"]
    assert rate["models"] == ["best", "two"]
    assert rate["wins"] == 5
    assert rate["losses"] == 1
    assert "best over two" in call("compare", "report")
    with PreferenceStore("evaluation.db") as store:
        assert {judgment.comment for judgment in store.judgments()} == {"so"}


def test_ratings_ask_the_criteria_of_a_file(call):
    call("compare", "start", "one.jsonl", "two.jsonl", "three.jsonl", "--kind", "rating", "--criteria", "guide.yaml")
    assert call("guidelines", "--store", "evaluation.db").startswith("- name: truth\n  description: Is it true?\n")
    call("simulate", "--store", "evaluation.db", "--good", 2, "--careless", 0)
    document = json.loads(call("compare", "report", "--json", "--resamples", 5))
    assert {score["criterion"] for score in document["scores"]} == {"overall", "truth", "tone"}
    assert document["models"] == ["one", "three", "two"]


def test_prompts_with_identical_completions_are_counted_as_prompts_and_not_as_tasks(call, tmp_path):
    same = [
        {"id": f"q{n}", "prompt": f"Question {n}?", "completion": f"{'one' if n < 2 else 'x'} says {n}"}
        for n in range(6)
    ]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in same))
    told = call("compare", "start", "one.jsonl", "x.jsonl", "--criteria", "guide.yaml")
    assert told.startswith("8 tasks added: 6 prompts, models one, x.\n")
    assert "On 2 prompts completions of some models are the same to the letter" in told
    assert "(4 tasks fewer)" in told
    call("simulate", "--store", "evaluation.db", "--good", 2, "--careless", 0)
    assert "On 2 prompts completions of some models are the same" in call("compare", "report", "--resamples", 0)


def test_a_report_on_simulated_judgments_says_so_before_anything_else(call):
    call("compare", "start", "one.jsonl", "two.jsonl", "--overall")
    call("simulate", "--store", "evaluation.db", "--good", 1, "--careless", 0)
    words = "6 of 6 judgments are simulated (rlhf feedback simulate) and no opinion of anybody's."
    assert call("compare", "report", "--resamples", 0).startswith(f"! {words}\n6 judgments of 6 prompts by 1 annotator")
    assert json.loads(call("compare", "report", "--resamples", 0, "--json"))["notes"] == [words]
    assert f"! {words}\n" in call("export", "pairs.jsonl", "--store", "evaluation.db")


def test_completions_that_are_the_same_everywhere_leave_no_store_behind(call, tmp_path):
    with pytest.raises(DataError, match="all 6 tasks"):
        call("compare", "start", "a=one.jsonl", "b=one.jsonl", "--overall")
    assert not (tmp_path / "evaluation.db").exists()


def test_several_evaluations_in_one_store_are_told_apart_by_name(call, tmp_path):
    call("compare", "start", "one.jsonl", "two.jsonl", "--overall", "--name", "spring")
    with pytest.raises(ConfigError, match="asked in another way"):
        call("compare", "start", "one.jsonl", "two.jsonl", "--overall", "--name", "spring", "--seed", 9)
    call("compare", "start", "one.jsonl", "three.jsonl", "--overall", "--name", "autumn", "--baseline", "one")
    with pytest.raises(ConfigError, match="spring, autumn"):
        call("compare", "export", "tasks.jsonl")
    call("compare", "export", "tasks.jsonl", "--name", "autumn")
    assert {text for row in rows_in(tmp_path / "tasks.jsonl") for text in row["completions"]} == {
        f"{name} says {n}" for name in ("one", "three") for n in range(6)
    }
    with pytest.raises(ConfigError, match="Did you mean 'spring'"):
        call("compare", "report", "--name", "sprig")
    (tmp_path / "back.jsonl").write_text(
        json.dumps({"id": rows_in(tmp_path / "tasks.jsonl")[0]["id"], "annotator": "a", "value": {"preference": "a"}})
    )
    with pytest.raises(DataError, match=r"back\.jsonl:1.*'autumn-"):
        call("compare", "import", "back.jsonl", "--name", "spring")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"value": {"preference": "c"}}, r"back\.jsonl:1.*preference = 'c'"),
        ({"value": {"preference": "a"}, "seconds": "four"}, r"back\.jsonl:1.*seconds is .*wanted a number"),
        ({"value": {"preference": "a"}, "comment": 4}, r"back\.jsonl:1.*comment is .*wanted a text"),
        ({"value": {"preference": "a"}, "label_probability": 4}, "label_probability is 4; it must be between 0 and 1"),
        ({"value": {"preference": "a"}, "confidence": 0.5}, r"back\.jsonl:1.*`confidence` is now `label_probability`"),
    ],
)
def test_a_judgment_that_is_none_is_refused_by_its_line(row, message, call, tmp_path):
    call("compare", "start", "one.jsonl", "two.jsonl", "--overall")
    call("compare", "export", "tasks.jsonl")
    given = {"id": rows_in(tmp_path / "tasks.jsonl")[0]["id"], "annotator": "ann", **row}
    (tmp_path / "back.jsonl").write_text(json.dumps(given))
    with pytest.raises(DataError, match=message):
        call("compare", "import", "back.jsonl")
    with pytest.raises(DataError, match="was judged yet"):
        call("compare", "report")


def test_what_can_not_be_compared_is_said(call):
    with pytest.raises(ConfigError, match="--overall asks one question"):
        call("compare", "start", "one.jsonl", "two.jsonl", "--overall", "--criteria", "guide.yaml")
    with pytest.raises(DataError, match=r"models.*one"):
        call("compare", "start", "one.jsonl")
    with pytest.raises(ConfigError, match=r"evaluation\.db"):
        call("compare", "report")
    call("import", "one.jsonl", "--store", "evaluation.db")
    with pytest.raises(ConfigError, match="no evaluation"):
        call("compare", "report")


def test_guidelines_are_shown_edited_and_set(call, tmp_path):
    call("import", "one.jsonl")
    shown = call("guidelines")
    assert "name: harmlessness" in shown
    (tmp_path / "mine.yaml").write_text(shown.replace("harmlessness", "safety"))
    assert call("guidelines", "mine.yaml") == "Asked for from now on: helpfulness, accuracy, safety, coherence.\n"
    assert [one["name"] for one in json.loads(call("guidelines", "--json"))][2] == "safety"
    (tmp_path / "wrong.yaml").write_text(shown.replace("weight: 1.5", "weight: none"))
    with pytest.raises(ConfigError, match=r"wrong\.yaml:\d+: weight: "):
        call("guidelines", "wrong.yaml", "--store", "new.db")
    assert not (tmp_path / "new.db").exists()
