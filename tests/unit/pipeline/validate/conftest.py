"""A folder with all that a recipe names, and a recipe without a mistake."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fixtures import tiny
from tests.unit.pipeline.validate.helpers import (
    FUNCTIONS,
    WORDS,
    Tree,
    write,
)


@pytest.fixture(scope="session")
def place(tmp_path_factory, tiny_tokenizer) -> Path:
    """A folder with a model, rows of every kind and functions; tests must not change what is in it."""
    folder = tmp_path_factory.mktemp("place")
    tiny.build_llama(vocab_size=len(tiny_tokenizer)).save_pretrained(folder / "model")
    tiny_tokenizer.save_pretrained(folder / "model")
    write(
        folder / "demos.jsonl",
        [{"prompt": f"Question {n}", "completion": " ".join(WORDS[: n % 9 + 2])} for n in range(40)],
    )
    write(
        folder / "pairs.jsonl",
        [{"prompt": f"Ask {n}", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(40)],
    )
    write(folder / "prompts.jsonl", [{"prompt": f"Say {n}", "fact": n} for n in range(12)])
    write(folder / "test_prompts.jsonl", [{"prompt": f"Tell {n}"} for n in range(6)])
    (folder / "functions.py").write_text(FUNCTIONS, encoding="utf-8")
    return folder


@pytest.fixture
def tree(place, tmp_path, monkeypatch) -> Tree:
    """A recipe without a mistake, its paths relative to the place."""
    monkeypatch.chdir(place)
    return {
        "name": "small",
        "output_dir": str(tmp_path / "runs"),
        "stages": {
            "sft": {"kind": "sft", "model": "model", "data": "demos.jsonl", "batch_size": 8, "learning_rate": 1e-3},
            "reward": {"kind": "reward", "model": "model", "data": "pairs.jsonl", "learning_rate": 1e-3},
            "grpo": {
                "kind": "grpo",
                "model": "stage:sft",
                "prompts": "prompts.jsonl",
                "reward": "functions.py:polite",
                "prompts_per_rollout": 4,
                "group_size": 2,
                "minibatch_size": 4,
                "learning_rate": 5e-4,
                "sampling": {"max_new_tokens": 8},
            },
            "evaluate": {
                "kind": "evaluate",
                "policy": "stage:grpo",
                "baseline": "stage:sft",
                "prompts": "test_prompts.jsonl",
                "judge": "stage:reward",
                "sampling": {"max_new_tokens": 8},
            },
        },
    }


@pytest.fixture
def own_model(place, tmp_path) -> Path:
    """A copy of the model that a test may damage."""
    return Path(shutil.copytree(place / "model", tmp_path / "own"))
