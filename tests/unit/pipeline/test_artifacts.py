"""What makes a stage be done again, and what does not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.files import write_text
from rlhf.models.sources import embedded_folder
from rlhf.pipeline.artifacts import RECORD, Artifact, content_hash, stage_files
from rlhf.pipeline.provenance import inputs_by_name, local_inputs, made_from


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("sft.jsonl", "pairs.jsonl", "prompts.jsonl"):
        write_text(tmp_path / name, "{}\n")
    write_text(tmp_path / "reward.py", "def score(prompts, completions):\n    return [0.0] * len(completions)\n")
    return tmp_path


def recipe(files: Path, **ppo) -> RecipeConfig:
    stages = {
        "sft": {"kind": "sft", "model": "embedded", "data": str(files / "sft.jsonl")},
        "ppo": {
            "kind": "ppo",
            "model": "stage:sft",
            "prompts": [str(files / "prompts.jsonl"), "stage:sft/more.jsonl"],
            "reward": f"{files / 'reward.py'}:score",
            **ppo,
        },
    }
    return RecipeConfig.of({"name": "mine", "stages": stages})


def key(files: Path, *, sft: str = "a", **ppo) -> str:
    return made_from("ppo", recipe(files, **ppo), {"sft": sft}).key


def test_a_stage_knows_where_everything_came_from(files):
    assert made_from("ppo", recipe(files), {"sft": "abc"}).parents == {
        "model": "stage:sft@abc",
        "prompts.0": f"{files / 'prompts.jsonl'}@{content_hash(files / 'prompts.jsonl')}",
        "prompts.1": "stage:sft/more.jsonl@abc",
        "reward.0.function": f"{files / 'reward.py'}@{content_hash(files / 'reward.py')}",
    }


def test_inputs_that_are_no_files_here_are_known_by_name(files):
    stage = recipe(files, reference="org/name").stages["ppo"]
    parents = made_from("ppo", recipe(files), {"sft": "abc"}).parents
    assert inputs_by_name(stage, parents) == {"reference.path": "org/name"}


def test_the_same_recipe_has_the_same_key(files):
    assert key(files) == key(files)


def test_what_decides_the_result_changes_the_key(files):
    before = key(files)
    assert key(files, gamma=0.9) != before
    assert key(files, seed=3) != before
    assert key(files, sft="b") != before, "a stage that it reads from was done again"
    write_text(files / "prompts.jsonl", '{"prompt": "new"}\n')
    after_data = key(files)
    assert after_data != before
    write_text(files / "reward.py", "def score(prompts, completions):\n    return [1.0] * len(completions)\n")
    assert key(files) != after_data, "a user's own reward function is an input too"


def test_what_decides_nothing_does_not(files):
    before = key(files)
    for free in (
        {"save_every": 7},
        {"keep_checkpoints": 5},
        {"log_to": ["tensorboard"]},
        {"microbatch_tokens": 99},
    ):
        assert key(files, **free) == before


def test_functions_are_found_by_file_and_by_module(files):
    def source_of(reward: str) -> dict[str, Path]:
        return dict(local_inputs(recipe(files, reward=reward).stages["ppo"]))

    assert source_of("json.decoder:JSONDecoder")["reward.0.function"].name == "decoder.py"
    assert "reward.0.function" not in source_of("not_installed.anywhere:score")
    assert "reward.0.function" not in source_of("absent/file.py:score")


def test_the_embedded_model_is_an_input_with_a_content(files):
    assert ("model.path", embedded_folder()) in local_inputs(recipe(files).stages["sft"])


def test_the_code_of_this_library_is_code_and_no_input(files):
    stage = recipe(files, reward="rlhf.data.world.pairs:annotate").stages["ppo"]
    assert "reward.0.function" not in dict(local_inputs(stage))


def test_where_the_same_content_lies_decides_nothing(files):
    before = made_from("sft", recipe(files), {})
    elsewhere = {k: f"/elsewhere/{v.rpartition('/')[2]}" for k, v in before.parents.items()}
    assert replace(before, parents=elsewhere).key == before.key


def test_an_adapter_s_base_is_an_input_too(files):
    write_text(files / "base" / "model.safetensors", "1")
    write_text(files / "adapter" / "adapter_config.json", json.dumps({"base_model_name_or_path": str(files / "base")}))
    inputs = dict(local_inputs(recipe(files, model=str(files / "adapter")).stages["ppo"]))
    assert inputs["model.path.base"] == files / "base"


def test_a_long_chat_template_is_text_and_a_file_of_its_name_an_input(files):
    template = "{% for message in messages %}" * 200
    assert "model.chat_template" not in dict(
        local_inputs(recipe(files, model={"path": "x", "chat_template": template}).stages["ppo"])
    )
    write_text(files / "chat.jinja", template)
    model = {"path": "x", "chat_template": str(files / "chat.jinja")}
    assert dict(local_inputs(recipe(files, model=model).stages["ppo"]))["model.chat_template"] == files / "chat.jinja"


def test_a_folder_is_its_files_with_their_names(tmp_path):
    write_text(tmp_path / "a" / "x", "1")
    write_text(tmp_path / "b" / "y", "1")
    first = content_hash(tmp_path / "a")
    assert first != content_hash(tmp_path / "b")
    write_text(tmp_path / "a" / "x", "2")
    assert content_hash(tmp_path / "a") != first


def test_working_material_is_no_part_of_an_artifact(tmp_path):
    for name in (
        "model/config.json",
        "rollouts.jsonl",
        "checkpoint-00000001/state.pt",
        "tensorboard/e",
        ".x.tmp",
        RECORD,
    ):
        write_text(tmp_path / name, "x")
    assert sorted(stage_files(tmp_path)) == ["model/config.json", "rollouts.jsonl"]


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"stage": "sft"}', '{"unknown": 1}'])
def test_a_folder_without_a_whole_record_is_unfinished(tmp_path, text):
    if text is not None:
        (tmp_path / RECORD).write_text(text)
    assert Artifact.read(tmp_path) is None


def test_a_record_reads_back_as_it_was_written(tmp_path):
    artifact = Artifact("sft", "sft", "k", 1.5, "fine", {"loss": 0.5, "gone": None}, {"data": "x@1"}, {"model/a": "h"})
    artifact.write(tmp_path)
    assert Artifact.read(tmp_path) == artifact


def test_what_a_reward_file_imports_beside_itself_is_part_of_the_key(files):
    write_text(files / "helper.py", "from .deeper import W\n")
    write_text(files / "deeper.py", "W = 1.0\n")
    write_text(files / "stranger.py", "W = 1.0\n")
    write_text(files / "reward.py", "import json\nimport helper\n\ndef score(prompts, completions):\n    return []\n")
    before = key(files)
    write_text(files / "stranger.py", "W = 2.0\n")
    assert key(files) == before, "nobody imports it"
    write_text(files / "deeper.py", "W = -1.0\n")
    assert key(files) != before
    write_text(files / "deeper.py", "W = 1.0\n")
    assert key(files) == before


def test_inputs_are_recorded_by_their_whole_path_and_counted_by_content(files, monkeypatch, tmp_path_factory):
    whole = made_from("ppo", recipe(files), {"sft": "a"})
    monkeypatch.chdir(files)
    near = made_from("ppo", recipe(Path()), {"sft": "a"})
    assert set(near.parents.values()) == set(whole.parents.values()), "so that lineage can be told from any folder"
