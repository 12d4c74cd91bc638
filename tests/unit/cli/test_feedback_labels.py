"""Labels of several classes by the command line: in, report, out, and back in."""

from __future__ import annotations

import json
import random

import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.feedback.tasks import read_items
from rlhf.store import PreferenceStore

SCALE = ("negative", "neutral", "positive")
PEOPLE = ("ann", "bob", "cem", "dora")


@pytest.fixture
def call(feedback, tmp_path):
    rng = random.Random(0)
    rows = []
    for item in range(40):
        right = rng.choice(SCALE)
        for who in PEOPLE:
            wrong = rng.random() < (0.6 if who == "dora" else 0.1)
            rows.append({"item": f"s{item}", "annotator": who, "label": rng.choice(SCALE) if wrong else right})
    draw = ("negative", "negative", "positive", "positive")
    rows += [{"item": "draw", "annotator": who, "label": label} for who, label in zip(PEOPLE, draw, strict=True)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "labels.csv").write_text(
        "item,annotator,label\n" + "".join(f"{row['item']},{row['annotator']},{row['label']}\n" for row in rows)
    )
    return feedback


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("file", ["labels.jsonl", "labels.csv"])
def test_labels_come_in_are_reported_and_leave_with_the_probability_of_each_class(file, call, tmp_path):
    said = call("import", file, "--classes", "negative,neutral,positive,mixed")
    assert "41 tasks added" in said
    assert "164 judgments added" in said
    assert "!" not in said, "all are kept, so nothing is to be warned of"
    told = call("report")
    assert "Agreement on multiclass" in told
    assert "nominal" in told
    assert "Dawid-Skene's probabilities" in told
    document = json.loads(call("report", "--json"))
    assert all(one["drift"]["value"] is None for one in document["annotators"]), (
        "the order of a file is not an order in time"
    )
    (learned,) = document["dawid_skene"]
    assert learned["scale"] == [*SCALE, "mixed"]
    right = {one["annotator"]: one["right"] for one in learned["annotators"]}
    assert right["dora"] < min(right[who] for who in PEOPLE[:3])
    assert [len(one["confusion"]) for one in learned["annotators"]] == [4] * 4
    told = call("export", "out.jsonl", "--aggregate", "dawid-skene")
    assert "Dawid-Skene's probabilities" in told, "how far they carry is said beside the export"
    for row in rows_of(tmp_path / "out.jsonl"):
        assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-5)
        assert sum(row["votes"].values()) == row["num_judgments"] == 4
        assert row["effective_judgments"] <= 4
        assert row["probabilities"]["mixed"] < 0.05
    call("export", "counted.jsonl", "--aggregate", "majority", "--ties", "keep")
    counted = rows_of(tmp_path / "counted.jsonl")
    assert all(row["label_probability"] == max(row["votes"].values()) / 4 for row in counted)
    assert [row["id"] for row in counted if row["label"] is None] == ["draw"]
    assert "left out: 1 tie" in call("export", "counted.jsonl", "--aggregate", "majority")


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_exported_labels_are_the_same_project_when_they_are_imported(ending, call, tmp_path):
    (tmp_path / "gold.jsonl").write_text(json.dumps({"item": "g", "text": "Fine.", "label": "positive", "gold": True}))
    text = {
        "prompt": "Q?",
        "completion": "A.",
        "annotator": "ann",
        "label": "1",
        "label_probability": 0.5,
        "source": "web",
    }
    (tmp_path / "text.jsonl").write_text(json.dumps(text))
    for file in ("labels.jsonl", "gold.jsonl"):
        call("import", file)
    call("import", "text.jsonl", "--classes", "1,negative,neutral,positive")
    more = () if ending != "jsonl" else ("--unjudged",)
    call("export", f"all.{ending}", *more)
    call("import", f"all.{ending}", "--store", "again.db")
    for store in ("annotations.db", "again.db"):
        call("export", f"{store}.jsonl", *more, "--store", store)
    first, second = (rows_of(tmp_path / f"{store}.jsonl") for store in ("annotations.db", "again.db"))
    assert len(first) == 165 + bool(more)
    key = json.dumps
    assert sorted(first, key=key) == sorted(second, key=key)


def test_what_a_store_was_told_holds_for_later_imports(call, tmp_path):
    call("import", "labels.jsonl", "--classes", ",".join(SCALE))
    (tmp_path / "typo.jsonl").write_text(json.dumps({"item": "s1", "annotator": "eve", "label": "postive"}))
    with pytest.raises(DataError, match=r"typo.jsonl:1.*'positive'"):
        call("import", "typo.jsonl")
    with pytest.raises(ConfigError, match="leaves out 'neutral'"):
        call("import", "typo.jsonl", "--classes", "negative,positive,postive")
    call("import", "typo.jsonl", "--classes", "negative,neutral,positive,postive")
    with pytest.raises(ConfigError, match=r"'postive'.*--classes"):
        call("report", "--classes", ",".join(SCALE))


def test_smoothing_and_prior_change_what_dawid_skene_believes(call, tmp_path):
    call("import", "labels.jsonl")
    actual = {}
    for name, options in {
        "default": (),
        "same": ("--smoothing", 0.5, "--right-prior", 4),
        "timid": ("--smoothing", 20, "--right-prior", 0),
    }.items():
        call("export", "out.jsonl", "--aggregate", "dawid-skene", *options)
        actual[name] = [row["label_probability"] for row in rows_of(tmp_path / "out.jsonl")]
    assert actual["default"] == actual["same"]
    assert actual["timid"] != actual["default"]
    timid = json.loads(call("report", "--json", "--smoothing", 20, "--right-prior", 0))["dawid_skene"][0]["annotators"]
    default = json.loads(call("report", "--json"))["dawid_skene"][0]["annotators"]
    assert timid[0]["right"] < default[0]["right"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("export", "x.jsonl", "--format", "trl", "--aggregate", "majority"), "no place for labels of several classes"),
        (("export", "x.json", "--format", "label-studio"), "no place for labels of several classes"),
        (("export", "x.jsonl", "--smoothing", "1"), "--smoothing does nothing without --aggregate"),
        (("export", "x.jsonl", "--aggregate", "majority", "--right-prior", "1"), "Dawid-Skene's"),
        (("export", "x.jsonl", "--events", "--classes", "a,b"), "--classes does nothing with --events"),
        (("import", "labels.jsonl", "--gold"), "column `gold`"),
        (("import", "labels.jsonl", "--kind", "binary"), "--kind"),
        (("import", "pairs.jsonl", "--classes", "a,b", "--format", "rows"), "--classes is for rows of an item"),
    ],
)
def test_what_labels_of_several_classes_can_not_be_is_refused(words, message, call, tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "q", "completion_a": "x", "completion_b": "y"}\n')
    call("import", "labels.jsonl")
    with pytest.raises(ConfigError, match=message):
        call(*words)


def test_pairs_and_labels_need_files_of_their_own(call, tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "q", "completion_a": "x", "completion_b": "y"}\n')
    call("import", "labels.jsonl")
    call("import", "pairs.jsonl")
    with pytest.raises(ConfigError, match="choose one with --kind"):
        call("export", "x.jsonl")
    assert "164 rows written" in call("export", "x.jsonl", "--kind", "multiclass")


def test_nobody_can_be_asked_for_labels_of_several_classes(call, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "q", "completions": ["x"]}\n')
    with pytest.raises(DataError, match="item, annotator and label"):
        read_items(tmp_path / "prompts.jsonl", kind="multiclass")


def test_the_page_never_asks_for_a_label_of_several_classes_and_undoes_none(call):
    call("import", "labels.jsonl")
    with PreferenceStore("annotations.db") as store:
        store.add_annotator("eve")
        assert store.next_task("eve") is None
        assert store.undo("ann") is None
        assert store.num_never_asked() == 41
