"""The world that no setting was tuned on: its parts share nothing, and its five recipes run from the asset data alone."""

from __future__ import annotations

import json
from itertools import combinations

import pytest

from rlhf.config.recipe import load_recipe
from rlhf.errors import DataError
from rlhf.models.tokens import load_tokenizer
from rlhf.pipeline.run import Pipeline
from tools.unseen_world import RECIPES, TINY, write_world


def rows(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def world(assets, tmp_path_factory):
    out = tmp_path_factory.mktemp("unseen")
    return out, write_world(out, assets, TINY)


def test_the_parts_share_no_review_and_no_prompt_is_seen_before_the_test(world):
    out, _ = world
    texts = {
        part: {row["text"] for row in rows(out / "data" / f"{part}_texts.jsonl")}
        for part in ("policy", "judge", "test")
    }
    for one, other in combinations(texts.values(), 2):
        assert len(one) > 900
        assert not one & other
    trained = {row["prompt"] for row in rows(out / "data" / "policy_demonstrations.jsonl")}
    asked = {row["prompt"] for row in rows(out / "data" / "test_prompts.jsonl")}
    assert len(asked) > 100
    assert not asked & trained


def test_the_tokenizer_has_one_token_for_each_character(world):
    out, _ = world
    tokenizer = load_tokenizer(str(out / "tokenizer"))
    text = "It's  an odd, 90-minute film (really)!"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text
    assert len({tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}) == 3


def test_independent_judges_share_neither_weights_nor_reviews_nor_raters_with_the_policy(world):
    _, files = world
    recipes = {name: load_recipe(file) for name, file in files.items()}
    assert tuple(recipes) == RECIPES
    assert recipes["judge"].seed != recipes["policy"].seed
    trained_on = {stage.data for stage in recipes["judge"].stages.values()}
    assert not trained_on & {recipes["policy"].stages[name].data for name in ("base", "sft", "reward")}
    assert "/judge/" in recipes["undecided"].stages["evaluate"].judge.source
    assert "stories260K" in recipes["judge"].stages["base"].model.path
    (reward,), judge = recipes["good"].stages["grpo"].reward, recipes["good"].stages["evaluate"].judge
    assert reward.path.endswith("first_raters.txt")
    assert judge.path.endswith("second_raters.txt")
    assert "/policy/" in recipes["hacked"].stages["evaluate"].judge.source, (
        "the one that starts from the policy's own weights"
    )


def test_without_the_archive_the_folder_of_the_assets_is_asked_for(tmp_path):
    with pytest.raises(DataError, match="RLHF_ASSETS"):
        write_world(tmp_path / "out", tmp_path)


@pytest.mark.slow
def test_all_five_recipes_run(world):
    _, files = world
    for file in files.values():
        Pipeline(load_recipe(file)).run()
    for name in ("hacked", "good", "undecided"):
        run = files[name].parents[1] / name
        assert (run / "report.html").is_file()
        assert json.loads((run / "summary.json").read_text())["win_rate"] is not None
