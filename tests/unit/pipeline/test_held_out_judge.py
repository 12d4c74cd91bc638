"""A policy stage's held-out judge: what it may share with the reward, who refuses it, and what is said."""

from __future__ import annotations

import hashlib
import json
import shutil

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError, ModelError
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate import find_problems
from rlhf.pipeline.validate.independence import SharedJudge, find_shared_judge
from rlhf.training.log import read_jsonl
from tests.fixtures import tiny
from tests.fixtures.cheap_stages import install

OTHER_BASE = {"init": {"model_type": "llama"}, "tokenizer": "embedded"}


def recipe_of(folder, judge, **ppo):
    rows = {}
    for name in ("pairs", "others"):
        rows[name] = str(folder / f"{name}.jsonl")
        pair = {"prompt": f"q of {name}", "chosen": "a", "rejected": "b"}
        (folder / f"{name}.jsonl").write_text(json.dumps(pair) + "\n")
    for name in ("sft", "asked", "held_out"):
        rows[name] = str(folder / f"{name}.jsonl")
        (folder / f"{name}.jsonl").write_text(json.dumps({"prompt": f"p of {name}", "completion": "c"}) + "\n")
    return RecipeConfig.of({
        "name": "watched", "output_dir": str(folder / "runs"),
        "stages": {
            "sft": {"kind": "sft", "model": "embedded", "data": rows["sft"]},
            "reward": {"kind": "reward", "model": "stage:sft", "data": rows["pairs"]},
            "same_rows": {"kind": "reward", "model": OTHER_BASE, "data": [rows["others"], rows["pairs"]], "seed": 7},
            "same_base": {"kind": "reward", "model": "stage:sft", "data": rows["others"], "seed": 7},
            "apart": {"kind": "reward", "model": OTHER_BASE, "data": rows["others"], "seed": 7},
            "ppo": {
                "kind": "ppo", "model": "stage:sft", "prompts": rows["asked"], "eval_prompts": rows["held_out"],
                "reward": [{"kind": "learned", "source": "stage:reward", "weight": 2.0}, "rules"], "judge": judge, **ppo,
            },
        },
    })  # fmt: skip


def shared(folder, judge):
    recipe = recipe_of(folder, judge)
    return find_shared_judge(recipe.stages, recipe.stages["ppo"])


@pytest.mark.parametrize(
    "judge", ["stage:reward", "rules", {"kind": "learned", "source": "stage:reward", "name": "other"}]
)
def test_a_judge_that_is_the_reward_or_a_part_of_it_is_refused(tmp_path, judge):
    shared_origins = shared(tmp_path, judge)
    assert shared_origins.is_reward
    assert "allow_shared" in shared_origins.refusal


def test_a_judge_trained_on_the_rewards_pairs_is_refused_by_name(tmp_path):
    shared_origins = shared(tmp_path, "stage:same_rows")
    assert (shared_origins.is_reward, shared_origins.rows) == (False, ("stage reward",))
    assert "stage reward" in shared_origins.refusal


def test_a_shared_base_model_is_said_and_not_refused(tmp_path):
    shared_origins = shared(tmp_path, "stage:same_base")
    assert (shared_origins.refusal, shared_origins.origin) == ("", "stage sft")
    assert "stage sft" in shared_origins.note


@pytest.mark.parametrize("judge", ["stage:apart", "rlhf.evaluation.judges:world_judge"])
def test_a_judge_of_its_own_has_nothing_to_say(tmp_path, judge):
    assert shared(tmp_path, judge) == SharedJudge()


@pytest.mark.parametrize("judge", ["stage:reward", "stage:same_rows"])
def test_validate_and_the_run_refuse_it_unless_it_is_asked_for(tmp_path, monkeypatch, judge):
    install(monkeypatch)
    recipe = recipe_of(tmp_path, judge)
    errors = [p for p in find_problems(recipe) if p.level == "error" and "allow_shared" in p.message]
    assert errors
    with pytest.raises(ConfigError, match="allow_shared"):
        Pipeline(recipe).run()
    asked = recipe_of(tmp_path, judge, hacking={"allow_shared": True})
    assert [p for p in find_problems(asked) if p.level == "error" and "allow_shared" in p.message] == []
    Pipeline(asked).run()


def test_a_run_notes_the_shared_base_model_once(tmp_path, monkeypatch):
    install(monkeypatch)
    Pipeline(recipe_of(tmp_path, "stage:same_base")).run()
    events = read_jsonl(tmp_path / "runs" / "watched" / "events.jsonl")
    notes = [e["message"] for e in events if e["event"] == "note" and "judge" in e["message"]]
    assert len(notes) == 1
    assert "stage sft" in notes[0]


def test_a_judge_needs_held_out_prompts(tmp_path):
    with pytest.raises(ConfigError, match="eval_prompts"):
        recipe_of(tmp_path, "stage:apart", eval_prompts=None)


def test_a_detector_that_needs_a_judge_is_refused_where_there_is_none(tmp_path):
    for hacking in ({"judge_slope": {"threshold": 5}}, {"action": "off", "win_rate_drop": "stop"}):
        with pytest.raises(ConfigError, match="judge"):
            recipe_of(tmp_path, None, hacking=hacking)
    for hacking in ("warn", {"judge_gap": "off", "spikes": "stop"}):
        recipe = recipe_of(tmp_path, None, hacking=hacking)
        assert RecipeConfig.of(recipe.model_dump(mode="json")).stages["ppo"].hacking is not None, "a resolved recipe"


@pytest.mark.parametrize(("count", "level"), [(19, "error"), (20, "warning"), (128, None)])
def test_validate_counts_the_held_out_prompts(tmp_path, count, level):
    recipe = recipe_of(tmp_path, "stage:apart")
    (tmp_path / "held_out.jsonl").write_text("".join(json.dumps({"prompt": f"new {k}"}) + "\n" for k in range(count)))
    levels = [p.level for p in find_problems(recipe, deep=True) if p.key == "eval_prompts"]
    assert levels == ([] if level is None else [level])


def test_a_copy_of_the_reward_is_refused_before_training(tmp_path, monkeypatch):
    install(monkeypatch)
    Pipeline(recipe_of(tmp_path, "stage:apart")).run(until="apart")
    copy = shutil.copytree(tmp_path / "runs" / "watched" / "reward" / "model", tmp_path / "copy")
    with pytest.raises(ConfigError, match="allow_shared"):
        Pipeline(recipe_of(tmp_path, str(copy))).run()
    assert not (tmp_path / "runs" / "watched" / "ppo" / "model").exists()


def averaged(folder, *sources, gone=False):
    """A folder whose record says that it is the average of these, which may lie elsewhere now."""
    folder.mkdir()
    (folder / "model.safetensors").write_text("their mean")
    rows = []
    for source in sources:
        content = (source / "model.safetensors").read_bytes()
        weights = {"model.safetensors": {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
        rows.append({"folder": str(source) + "-gone" * gone, "share": 1 / len(sources), "weights": weights})
    (folder / "rlhf_average.json").write_text(json.dumps({"sources": rows}))
    return folder


@pytest.mark.parametrize("gone", [False, True])
def test_a_reward_is_no_judge_of_its_average_nor_the_average_of_it(tmp_path, monkeypatch, gone):
    install(monkeypatch)
    Pipeline(recipe_of(tmp_path, "stage:apart")).run(until="apart")
    run = tmp_path / "runs" / "watched"
    mean = str(averaged(tmp_path / "mean", run / "apart" / "model", run / "reward" / "model", gone=gone))
    apart = str(averaged(tmp_path / "other", run / "apart" / "model", gone=gone))

    def judge_shared(judge, **ppo):
        recipe = recipe_of(tmp_path, judge, **ppo)
        return find_shared_judge(recipe.stages, recipe.stages["ppo"], run=run, runs=run.parent)

    assert judge_shared(mean).is_reward
    assert judge_shared("stage:reward", reward=mean).is_reward
    assert judge_shared(mean, reward=apart).is_reward, "both hold the same model"
    assert not judge_shared(apart).is_reward
    with pytest.raises(ConfigError, match="allow_shared"):
        Pipeline(recipe_of(tmp_path, mean)).run()


def test_the_rows_of_an_averages_parts_count(tmp_path, monkeypatch):
    install(monkeypatch)
    Pipeline(recipe_of(tmp_path, "stage:apart")).run(until="apart")
    run = tmp_path / "runs" / "watched"
    recipe = recipe_of(tmp_path, str(averaged(tmp_path / "mean", run / "same_rows" / "model")))
    shared_judge = find_shared_judge(recipe.stages, recipe.stages["ppo"], run=run, runs=run.parent)
    assert (shared_judge.is_reward, shared_judge.rows) == (False, ("stage reward",))


def test_a_damaged_record_of_an_average_is_named(tmp_path):
    recipe = recipe_of(tmp_path, str(averaged(tmp_path / "mean")))
    (tmp_path / "mean" / "rlhf_average.json").write_text('{"sources": [1]}')
    with pytest.raises(ModelError, match=r"rlhf_average\.json is damaged"):
        find_shared_judge(recipe.stages, recipe.stages["ppo"])


# In a run ----------------------------------------------------------------------------------------------

CALLS = []


def falls(prompts, completions, **columns):
    """A judge that thinks less of the policy each time it is asked."""
    CALLS.append(1)
    return [-0.3 * len(CALLS) + 0.01 * (len(text) % 7) for text in completions]


def share_of_e(prompts, completions, **columns):
    """A reward for nothing in particular."""
    return [text.count("e") / (1 + len(text)) for text in completions]


def test_an_alarm_is_in_the_log_the_summary_and_the_report_with_its_samples(tmp_path, tiny_tokenizer):
    PolicyModel(tiny.build_llama(vocab_size=len(tiny_tokenizer)), tiny_tokenizer).save_pretrained(tmp_path / "base")
    for name, count in (("asked", 8), ("held_out", 20)):
        rows = [{"prompt": f"What is {k} of {name}?"} for k in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stage = {
        "kind": "grpo", "model": str(tmp_path / "base"), "prompts": str(tmp_path / "asked.jsonl"),
        "eval_prompts": str(tmp_path / "held_out.jsonl"), "evaluation": {"limit": 2}, "judge": f"{__file__}:falls",
        "reward": {"kind": "function", "function": f"{__file__}:share_of_e", "in_process": True},
        "rollouts": 6, "prompts_per_rollout": 2, "group_size": 2, "minibatch_size": 4, "learning_rate": 1e-4, "guards": "off",
        "sampling": {"max_new_tokens": 6},
        "hacking": {"action": "warn", "every": 1, "judge_slope": {"window": 4, "long_window": 5}, "win_rate_drop": "off",
                    "collapse": "off", "judge_gap": "off", "spikes": "off"},
    }  # fmt: skip
    Pipeline(RecipeConfig.of({"name": "run", "output_dir": str(tmp_path), "stages": {"policy": stage}})).run()
    events = read_jsonl(tmp_path / "run" / "events.jsonl")
    (alarm,) = [e for e in events if e["event"] == "alarm" and e.get("guard") == "judge_slope"]
    assert alarm["action"] == "warn"
    assert 4 <= alarm["raised_at"] <= 6, "from the fourth look on, as soon as the reward does not fall, too"
    assert all(sample["judge"] < 0 and sample["prompt"] and "completion" in sample for sample in alarm["samples"])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (told,) = [a for a in summary["alarms"] if a.get("guard") == "judge_slope"]
    assert told["false_alarms"] == alarm["false_alarms"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "held-out judge falls" in page
    assert "Reward and held-out judge" in page
    assert alarm["samples"][0]["prompt"].split("\n")[0][:12] in page
