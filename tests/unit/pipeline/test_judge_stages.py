"""Reward and process reward stages from a data file to a model folder that judges."""

from __future__ import annotations

import json
import re

import pytest

from rlhf.config.training_stages import ProcessRewardStage, RewardStage
from rlhf.data.contracts import Prompt
from rlhf.models.policy import PolicyModel
from rlhf.models.process_reward import ProcessRewardModel
from rlhf.models.reward import RewardModel
from rlhf.pipeline.stages.context import StageContext
from rlhf.pipeline.stages.prm import run_prm
from rlhf.pipeline.stages.reward import run_reward
from rlhf.rewards.factory import build_reward
from rlhf.rewards.types import TextCompletion
from rlhf.training.log import TrainingLogger
from tests.fixtures import tiny

PAIR = {"prompt": "q", "completion_a": "a cow", "completion_b": "a fox", "preference": "a", "label_probability": 0.9}
ROWS = {
    "pairs": [
        PAIR | {"strength": s, "margin": 1.0, "prompt": f"{s} {n}"}
        for s in ("slightly", "significantly")
        for n in "123"
    ],
    "ties": [PAIR | {"preference": "tie", "prompt": f"tie {n}"} for n in "123"],
    "rankings": [{"prompt": f"q{n}", "completions": ["a", "b", "c"], "ranks": [2, 1, 2]} for n in "1234"],
    "ratings": [{"prompt": f"q{n}", "completion": "a cow", "rating": float(n)} for n in "12345"],
    "verdicts": [{"prompt": f"q{n}", "completion": "a cow", "label": n in "12"} for n in "1234"],
    "sound": [{"prompt": f"q{n}", "completions": ["a=1", "b=2"], "labels": [True, True]} for n in "1234"],
    "steps": [{"prompt": f"q{n}", "completions": ["a=1", "b=2"], "labels": [True, n in "12"]} for n in "1234"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_tokenizer):
    """A base model and a file of each kind of rows."""
    root = tmp_path_factory.mktemp("judges")
    PolicyModel(tiny.build_llama(vocab_size=len(tiny_tokenizer)), tiny_tokenizer).save_pretrained(root / "base")
    for name, rows in ROWS.items():
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def run(folder, tmp_path, stage, kind, *names, held_out=True, **settings):
    data = [str(folder / f"{name}.jsonl") for name in names]
    tree = {"model": str(folder / "base"), "data": data, "max_steps": 2, "learning_rate": 1e-3, **settings}
    tree |= {"eval_data": data} if held_out else {}
    at = StageContext("judge", tmp_path, TrainingLogger())
    (tmp_path / "judge").mkdir()
    outcome = (
        run_reward(stage.of({"kind": kind, **tree}), at)
        if kind == "reward"
        else run_prm(stage.of({"kind": kind, **tree}), at)
    )
    return outcome, at.folder


@pytest.mark.parametrize(
    ("loss", "names", "headline"),
    [
        (
            "bradley_terry",
            ["pairs", "ties"],
            "6 pairs (3 of 9 left out: 3 without a preference (a tie)), 2 steps, held-out accuracy",
        ),
        ("graded", ["pairs", "ties"], "9 comparisons, 2 steps, held-out accuracy"),
        ("rao_kupper", ["pairs", "ties", "rankings"], "21 comparisons, 2 steps, held-out accuracy"),
        ("davidson", ["pairs", "ties"], "9 comparisons, 2 steps, held-out accuracy"),
        ("plackett_luce", ["rankings", "pairs"], "10 rankings, 2 steps, held-out accuracy"),
        ("rating", ["ratings"], "5 ratings, 2 steps, held-out error"),
        ("binary", ["verdicts"], "4 verdicts, 2 steps, held-out accuracy"),
    ],
)
def test_every_loss_goes_from_a_file_to_a_model_that_judges(folder, tmp_path, loss, names, headline):
    outcome, at = run(folder, tmp_path, RewardStage, "reward", *names, loss=loss, num_heads=2)
    assert outcome.headline.startswith(headline)
    assert (at / "evaluation.json").is_file() == (loss not in ("rating", "binary"))
    learned = RewardModel.from_pretrained(str(at / "model")).learned
    assert (learned is None) == (loss in ("bradley_terry", "plackett_luce"))
    scorer = build_reward({"kind": "learned", "source": str(at / "model"), "combine": "min"})
    result = scorer.score([Prompt("p", [], "q1")], [TextCompletion("a cow", tokens=[5])])
    assert set(result.per_component) == {"learned", "learned_std"}


def test_confidence_and_margins_come_from_the_file(folder, tmp_path):
    outcome, _ = run(folder, tmp_path, RewardStage, "reward", "pairs", use_label_probability=True, margin="column")
    assert outcome.metrics["eval/loss"] > 0


def test_held_out_rows_that_are_all_ties_are_called_that(folder, tmp_path):
    outcome, _ = run(folder, tmp_path, RewardStage, "reward", "ties", loss="davidson")
    assert re.search(r", held-out rows are all ties \(loss \d\.\d{3}\)$", outcome.headline)


def test_what_solutions_without_a_wrong_step_cannot_tell_has_its_reason(folder, tmp_path):
    outcome, _ = run(folder, tmp_path, ProcessRewardStage, "prm", "sound")
    assert "first wrong step not measured (no completion has a wrong step), sound " in outcome.headline
    assert "nan" not in outcome.headline


def test_a_stream_of_rankings(folder, tmp_path):
    outcome, _ = run(
        folder, tmp_path, RewardStage, "reward", "rankings", loss="plackett_luce", streaming=True, held_out=False
    )
    assert outcome.headline == "streamed rankings, 2 steps, nothing held out"


def test_labeled_steps_become_a_judge_of_steps(folder, tmp_path):
    outcome, at = run(
        folder, tmp_path, ProcessRewardStage, "prm", "steps", extra_layers=1, lm_coef=0.1, aggregate="min"
    )
    assert outcome.headline.startswith("4 solutions, 2 steps, first wrong step ")
    process_reward_model = json.loads((at / "evaluation.json").read_text())["process_reward_model"]
    assert process_reward_model["first_wrong"]["n"] == process_reward_model["sound"]["n"] == 2
    assert process_reward_model["always_last"] == 1.0
    scorer = build_reward({"kind": "process", "source": str(at / "model")})
    assert 0 < scorer.score([Prompt("p", [], "q1")], [TextCompletion("a=1\nb=2")]).scores[0] < 1
    assert ProcessRewardModel.from_pretrained(str(at / "model")).aggregate == "min"


def test_pairs_become_a_judge_of_steps(folder, tmp_path):
    outcome, at = run(folder, tmp_path, ProcessRewardStage, "prm", "pairs", loss="pairs", step_separator=" ")
    assert outcome.headline.startswith("6 pairs, 2 steps, held-out accuracy ")
    assert not (at / "evaluation.json").exists()
