"""The few-line face: each call runs one more stage of an ordinary recipe."""

from __future__ import annotations

import json

import pytest

from rlhf import RLHFConfig, RLHFTrainer
from rlhf.data.world import build_world
from rlhf.data.world.pairs import annotate
from rlhf.errors import ConfigError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    build_world(5, folder, num_documents=0)
    rows = [json.loads(line) for line in (folder / "sft.jsonl").read_text(encoding="utf-8").splitlines()[:60]]
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    pairs = []
    for row in rows:
        texts = [row["completion"], " I do not know. The weather is fine today."]
        [choice] = annotate([row["prompt"]], [texts], ended=[[True, True]], noise=0.0, seed=1)
        if choice is not None:
            pairs.append(
                {"prompt": row["prompt"], "chosen": texts[choice["chosen"]], "rejected": texts[choice["rejected"]]}
            )
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs), encoding="utf-8")
    return folder


def test_three_calls_train_three_models_in_one_run_folder(files, tmp_path):
    trainer = RLHFTrainer(
        RLHFConfig(
            model_name="embedded",
            sft_dataset=str(files / "few.jsonl"),
            reward_dataset=str(files / "pairs.jsonl"),
            output_dir=str(tmp_path / "mine"),
            ppo_epochs=2,
            learning_rate=1.41e-5,
            sft_epochs=1,
            ppo_rollouts=2,
            batch_size=4,
            mini_batch_size=4,
            max_new_tokens=8,
        ),
        quiet=True,
    )
    sft = trainer.train_sft()
    reward = trainer.train_reward_model()
    ppo = trainer.train_ppo()
    dpo = trainer.train_dpo(max_steps=2)
    assert [a.kind for a in (sft, reward, ppo, dpo)] == ["sft", "reward", "ppo", "dpo"]
    assert 0 <= reward.metrics["eval/accuracy"] <= 1
    metrics = trainer.evaluate(limit=4)
    assert 0 <= metrics["win_rate"] <= 1
    assert (tmp_path / "mine" / "ppo" / "model" / "model.safetensors").exists()
    assert (tmp_path / "mine" / "report.html").exists()


def test_a_missing_input_is_named_with_the_argument_that_gives_it(tmp_path):
    trainer = RLHFTrainer(RLHFConfig(model_name="embedded", output_dir=str(tmp_path / "mine")), quiet=True)
    with pytest.raises(ConfigError, match="sft_dataset"):
        trainer.train_sft()
    with pytest.raises(ConfigError, match="train_reward_model"):
        trainer.train_ppo()
    with pytest.raises(ConfigError, match="train_sft"):
        trainer.evaluate()
