"""Best-of-N: what is kept, what is told of the rest, and that what it writes can be learned from."""

from __future__ import annotations

import json
import math
import random

import pytest

from rlhf.config.file_stages import BestOfNStage
from rlhf.config.recipe import RecipeConfig
from rlhf.data.datasets import SFTDataset
from rlhf.data.world import build_world
from rlhf.errors import ConfigError, RewardError
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.stages.best_of_n import Candidate, chosen
from rlhf.rewards.best_of_n_statistics import best_of_n_kl
from rlhf.rollout.types import Completion


def candidate(sample: int, text: str, score: float, *, cut: bool = False) -> Candidate:
    completion = Completion(
        prompt_id="p", sample=sample, tokens=[sample + 5], logprobs=[-1.0], weight_version=0, text=text,
        finish_reason="length" if cut else "eos",
    )  # fmt: skip
    return Candidate(completion, score)


GROUP = [candidate(0, "b", 1.0), candidate(1, "a", 3.0), candidate(2, "a", 3.0), candidate(3, "c", 2.0)]


def samples(kept: list[Candidate]) -> list[int]:
    return [c.completion.sample for c in kept]


def test_the_best_come_first_and_equal_texts_once():
    assert samples(chosen(GROUP, keep=1)) == [1]
    assert samples(chosen(GROUP, keep=2)) == [1, 3]
    assert samples(chosen(GROUP, keep=4)) == [1, 3, 0]


def test_nothing_is_kept_below_the_bound():
    assert samples(chosen(GROUP, keep=4, min_score=2.0)) == [1, 3]
    assert chosen(GROUP, keep=4, min_score=3.1) == []


def test_what_has_no_score_or_no_end_is_not_kept():
    group = [candidate(0, "a", math.nan), candidate(1, "b", 5.0, cut=True), candidate(2, "c", 1.0)]
    assert samples(chosen(group, keep=3)) == [2]
    assert samples(chosen(group, keep=3, keep_cut=True)) == [1, 2]


def test_the_kl_of_the_best_of_n_is_that_of_its_distribution():
    # Of equally likely completions with different scores, the i-th worst of m is the best of n with (i/m)^n - ((i-1)/m)^n.
    size = 20_000
    for n in (1, 2, 4, 16):
        shares = [(i / size) ** n - ((i - 1) / size) ** n for i in range(1, size + 1)]
        exact = math.fsum(share * math.log(share * size) for share in shares)
        assert best_of_n_kl(n) == pytest.approx(exact, abs=2e-3)
        assert exact <= best_of_n_kl(n) + 1e-12, "it is a bound"


@pytest.mark.parametrize(
    ("size", "n", "exact", "formula"), [(2, 16, 0.693, 1.835), (2, 4, 0.459, 0.636), (100, 64, 3.158, 3.175)]
)
def test_trap_19_of_few_answers_the_formula_is_only_a_bound(size, n, exact, formula):
    """Equally likely answers with different scores: the i-th worst is the best of n with (i/m)^n - ((i-1)/m)^n. Hence "at most"."""
    shares = [(i / size) ** n - ((i - 1) / size) ** n for i in range(1, size + 1)]
    assert math.fsum(share * math.log(share * size) for share in shares if share) == pytest.approx(exact, abs=5e-4)
    assert best_of_n_kl(n) == pytest.approx(formula, abs=5e-4)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    build_world(1, folder, num_documents=0)
    return folder


def recipe(world, folder, **settings):
    stage = {
        "kind": "best_of_n", "model": "embedded", "prompts": str(world / "prompts.jsonl"), "reward": "rules", "limit": 6,
        "num_samples": 4, "sampling": {"max_new_tokens": 24}, "keep_cut": True, **settings,
    }  # fmt: skip
    return RecipeConfig.of({"name": "run", "output_dir": str(folder), "threads": 1, "stages": {"best": stage}})


def rows_of(folder):
    return [json.loads(line) for line in (folder / "run" / "best" / "demonstrations.jsonl").read_text().splitlines()]


def random_score(prompts, completions, **columns):
    return [random.Random(text).random() for text in completions]


def no_score(prompts, completions, **columns):
    return [None if "Q" in prompt or len(text) % 2 else 1.0 for prompt, text in zip(prompts, completions, strict=True)]


def broken(prompts, completions, **columns):
    raise ValueError("no verdict")


def here(function) -> dict:
    return {"kind": "function", "function": f"{__name__}:{function.__name__}", "in_process": True}


def test_rows_hold_texts_sampled_ids_scores_and_the_prompts_columns(world, tmp_path):
    Pipeline(recipe(world, tmp_path, reward=here(random_score))).run()
    rows = rows_of(tmp_path)
    tokenizer = PolicyModel.from_pretrained("embedded").tokenizer
    assert len({row["id"] for row in rows}) == len(rows) == 6
    for row in rows:
        assert row["fact"], "the prompt row's own column"
        assert row["score"] == round(random_score([""], [row["completion"]])[0], 6)
        assert tokenizer.decode(row["completion_ids"], skip_special_tokens=True) in (
            row["completion"], row["completion"].strip(),
        )  # fmt: skip
    groups = list(SFTDataset(str(tmp_path / "run" / "best" / "demonstrations.jsonl"), tokenizer))
    assert [list(group.branches[0].tokens) for group in groups] == [row["completion_ids"] for row in rows]
    assert [list(group.prefix) for group in groups] == [row["prompt_ids"] for row in rows]


def test_what_is_kept_is_the_best_that_was_sampled(world, tmp_path):
    every = Pipeline(recipe(world, tmp_path / "all", reward=here(random_score), keep=4)).run()
    Pipeline(recipe(world, tmp_path / "one", reward=here(random_score))).run()
    best: dict[str, float] = {}
    for row in rows_of(tmp_path / "all"):
        best[row["prompt"]] = max(best.get(row["prompt"], 0.0), row["score"])
    assert {row["prompt"]: row["score"] for row in rows_of(tmp_path / "one")} == best
    assert every["stages"]["best"]["metrics"]["num_completions"] == 24


def test_the_headline_tells_scores_and_the_bound_of_the_kl(world, tmp_path):
    summary = Pipeline(recipe(world, tmp_path, reward=here(random_score))).run()
    metrics = summary["stages"]["best"]["metrics"]
    assert metrics["kl_bound"] == pytest.approx(math.log(4) - 3 / 4)
    assert metrics["score_kept_mean"] > metrics["score_mean"]
    assert "KL at most 0.64 nats" in summary["stages"]["best"]["headline"]
    bounded = Pipeline(recipe(world, tmp_path / "other", reward=here(random_score), min_score=0.1)).run()
    assert "kl_bound" not in bounded["stages"]["best"]["metrics"], "a bound on the score moves it nobody knows how far"


@pytest.mark.parametrize("how", [{"temperature": 0.3}, {"top_k": 2}, {"top_p": 0.9}])
def test_no_distance_from_the_policy_is_claimed_where_others_than_its_own_samples_were_drawn(world, tmp_path, how):
    sharp = recipe(world, tmp_path, reward=here(random_score), sampling={"max_new_tokens": 24, **how})
    summary = Pipeline(sharp).run()
    assert "kl_bound" not in summary["stages"]["best"]["metrics"]
    assert "KL" not in summary["stages"]["best"]["headline"]


def test_prompts_that_give_nothing_are_counted(world, tmp_path):
    summary = Pipeline(recipe(world, tmp_path, reward=here(random_score), min_score=0.8)).run()
    metrics = summary["stages"]["best"]["metrics"]
    kept = {row["prompt"] for row in rows_of(tmp_path)}
    assert metrics["num_prompts_without"] == 6 - len(kept) > 0
    assert f"({6 - len(kept)} gave none)" in summary["stages"]["best"]["headline"]


def test_nothing_kept_at_all_is_an_alarm_and_an_empty_file(world, tmp_path):
    Pipeline(recipe(world, tmp_path, reward=here(random_score), min_score=2.0)).run()
    assert rows_of(tmp_path) == []
    assert "nothing was kept of 24 completions" in (tmp_path / "run" / "events.jsonl").read_text()


def test_completions_without_a_score_are_left_out_with_an_alarm(world, tmp_path):
    Pipeline(recipe(world, tmp_path, reward=here(no_score), keep=4)).run()
    assert all(len(row["completion"]) % 2 == 0 for row in rows_of(tmp_path))
    assert "gave no score for" in (tmp_path / "run" / "events.jsonl").read_text()


def test_a_judge_that_never_judges_stops_the_stage(world, tmp_path):
    with pytest.raises(RewardError, match="24 of 24 completions"):
        Pipeline(recipe(world, tmp_path, reward=here(broken))).run()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep": 9, "num_samples": 8}, r"keep \(9\) must be at most num_samples \(8\)"),
        ({"sampling": {"temperature": 0}}, "all completions of a prompt are the same"),
        ({"reward": []}, "reward"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    tree = {"kind": "best_of_n", "model": "m", "prompts": "p", "reward": "rules", **settings}
    with pytest.raises(ConfigError, match=message):
        BestOfNStage.of(tree)
