"""Guidelines in files, and in stores that hold ratings already."""

from __future__ import annotations

import json

import pytest

from rlhf.config.guidelines import (
    STANDARD_GUIDELINES,
    AnnotationGuideline,
    Example,
)
from rlhf.errors import ConfigError
from rlhf.feedback.guidelines_file import guidelines_json, guidelines_yaml, read_guidelines
from rlhf.feedback.store_guidelines import guidelines_of, set_guidelines
from rlhf.store import PreferenceStore, Response, Submission, Task, TaskKind

GUIDE = """\
- name: truth   # the first line
  description: Is it true?
  weight: 2
  examples:
    - prompt: What does a cow eat?
      better: Grass.
      worse: Meat.
      reason: Cows graze.
- name: tone & style
  description: "Wie klingt es? 🐄"
"""
ASKED = [
    AnnotationGuideline(
        name="truth", description="Is it true?", weight=2,
        examples=[Example(prompt="What does a cow eat?", better="Grass.", worse="Meat.", reason="Cows graze.")],
    ),
    AnnotationGuideline(name="tone & style", description="Wie klingt es? 🐄"),
]  # fmt: skip


def written(tmp_path, text, name="guide.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_yaml_and_json_say_the_same(tmp_path):
    assert read_guidelines(written(tmp_path, GUIDE)) == ASKED
    as_json = json.dumps(
        [one.model_dump(mode="json") for one in ASKED], indent="\t"
    )  # ASCII: the cow is two surrogates
    assert "\\ud83d" in as_json
    assert read_guidelines(written(tmp_path, as_json, "guide.json")) == ASKED


@pytest.mark.parametrize("guidelines", [ASKED, list(STANDARD_GUIDELINES)])
def test_what_is_shown_can_be_read_again(guidelines, tmp_path):
    assert read_guidelines(written(tmp_path, guidelines_yaml(guidelines))) == guidelines
    assert read_guidelines(written(tmp_path, guidelines_json(guidelines), "guide.json")) == guidelines


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("  weight: 2\n", "  weight: -2\n"), r"guide\.yaml:3: weight: should be greater than 0.*-2"),
        (("      worse: Meat.\n", ""), r"guide\.yaml:5: examples\.0\.worse: this key is required"),
        (("      reason: Cows", "      raeson: Cows"), r"guide\.yaml:8: examples\.0\.raeson: .* Did you mean 'reason'"),
        (("tone & style", "truth"), r"guide\.yaml:9: name: 'truth' is on line 1 already"),
        (('"Wie klingt es? 🐄"', '" "'), r"guide\.yaml:10: description: it is empty"),
        (("tone & style", "x" * 61), r"guide\.yaml:9: name: .* wanted 1 to 60 printable"),
        (('- name: tone & style\n  description: "Wie klingt es? 🐄"\n', "- tone\n"), r"guide\.yaml:9: this is 'tone'"),
        ((GUIDE, "truth: Is it true?\n"), r"guide\.yaml:1: this is keys and values; wanted a list of guidelines"),
        ((GUIDE, "# ours\n\ntruth: Is it true?\n"), r"guide\.yaml:3: this is keys and values"),
        ((GUIDE, "- name: x\n  description: y\n" * 21), r"guide\.yaml:41: .* 21 guidelines .* at most 20"),
        ((GUIDE, "[]"), r"guide\.yaml:1: this is an empty list"),
        ((GUIDE, ""), "holds nothing"),
        (("  weight: 2\n", "  weight: 2\n  weight: 3\n"), r"guide\.yaml line 4, column 3 .*'weight' appears twice"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(change, message, tmp_path):
    assert change[0] in GUIDE
    with pytest.raises(ConfigError, match=message):
        read_guidelines(written(tmp_path, GUIDE.replace(*change)))


def test_all_complaints_come_together_and_json_has_lines_too(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_guidelines(written(tmp_path, GUIDE.replace("weight: 2", "weight: 0").replace("reason: Cows graze.", "")))
    assert "guide.yaml:3: weight" in str(caught.value)
    assert "guide.yaml:5: examples.0.reason" in str(caught.value)
    text = '[\n\t{\n\t\t"name": "a", "description": "b",\n\t\t"weight": "heavy"\n\t}\n]'
    with pytest.raises(ConfigError, match=r"guide\.json:4: weight"):
        read_guidelines(written(tmp_path, text, "guide.json"))
    with pytest.raises(ConfigError, match=r"guide\.json line 1, column 2"):
        read_guidelines(written(tmp_path, "[", "guide.json"))
    with pytest.raises(ConfigError, match="There is no file"):
        read_guidelines(tmp_path / "nothing.yaml")


def test_a_store_asks_for_what_it_was_told_and_keeps_what_is_rated(tmp_path):
    with PreferenceStore(tmp_path / "s.db") as store:
        assert guidelines_of(store) == STANDARD_GUIDELINES
        set_guidelines(store, ASKED)
        assert guidelines_of(store) == ASKED
        store.add_tasks([Task(id="t", kind=TaskKind.RATING, prompt="?", responses=[Response(text="x")])])
        store.add_annotator("ann")
        value = {"ratings": {"truth": [4], "tone & style": [2]}}
        store.submit("ann", Submission(assignment=store.next_task("ann").number, key="k", value=value))
        with pytest.raises(ConfigError, match="1 judgment of 'tone & style'"):
            set_guidelines(store, ASKED[:1])
        set_guidelines(store, [*ASKED, AnnotationGuideline(name="new", description="one more")])
        assert [one.name for one in guidelines_of(store)] == ["truth", "tone & style", "new"]
        for wrong in ([], [ASKED[0], ASKED[0]]):
            with pytest.raises(ConfigError, match="at least one dimension"):
                set_guidelines(store, wrong)
