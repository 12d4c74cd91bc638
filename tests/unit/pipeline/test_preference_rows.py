"""What a `preferences` stage writes of an annotator's answers: pairs with token ids, or whole rows of another kind."""

from __future__ import annotations

import pytest

from rlhf.config.file_stages import PreferencesStage
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.pipeline.stages.preferences import _rows
from rlhf.rollout.types import Completion

PROMPTS = [Prompt(id="p", ids=[5, 6], text="Which?")]
SAMPLES = [
    [
        Completion(
            prompt_id="p",
            sample=0,
            tokens=[7, 1],
            logprobs=[-1.0, -1.0],
            text=" good",
            finish_reason="stop",
            weight_version=0,
        ),
        Completion(
            prompt_id="p", sample=1, tokens=[8], logprobs=[-1.0], text=" bad", finish_reason="length", weight_version=0
        ),
    ]
]


def rows_of(answer, rows="preference"):
    stage = PreferencesStage.of({"kind": "preferences", "model": "m", "prompts": "p.jsonl", "rows": rows})
    seen = {}

    def annotate(prompts, completions, *, ended, noise, seed):
        seen.update(prompts=prompts, completions=completions, ended=ended, noise=noise)
        return [answer]

    labeled = _rows(PROMPTS, SAMPLES, annotate, stage, noise=0.25)
    assert seen == {"prompts": ["Which?"], "completions": [[" good", " bad"]], "ended": [[True, False]], "noise": 0.25}
    return labeled


def test_a_choice_becomes_a_pair_with_the_sampled_ids_and_the_annotators_columns():
    (row,) = rows_of({"chosen": 0, "rejected": 1, "flipped": False})
    assert row == {
        "id": "p", "prompt": "Which?", "chosen": " good", "rejected": " bad",
        "prompt_ids": [5, 6], "chosen_ids": [7, 1], "rejected_ids": [8], "flipped": False,
    }  # fmt: skip
    assert rows_of(None) == []


def test_whole_rows_get_their_prompt_and_a_name_of_their_own():
    marks = [{"completion": " good", "rating": 5}, {"completion": " bad", "rating": 1}]
    assert rows_of(marks, rows="rating") == [
        {"id": "p#0", "prompt": "Which?", "completion": " good", "rating": 5},
        {"id": "p#1", "prompt": "Which?", "completion": " bad", "rating": 1},
    ]


def test_an_annotator_that_gives_another_kind_of_row_is_told():
    with pytest.raises(ConfigError, match=r"completion, rating .*'p'; `rows: ranking` .*completions"):
        rows_of([{"completion": " good", "rating": 5}], rows="ranking")
    with pytest.raises(ConfigError, match=r"`rows: preference` .*chosen, rejected"):
        rows_of([{"completion": " good", "label": True}])
