"""What llama.cpp itself makes of our GGUF files, in the environment that RLHF_LLAMA_CPP_PYTHON names; docs/export.md says how to make one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlhf.export.export_model import export_model
from rlhf.models.policy import PolicyModel
from tests.fixtures.exported import FAMILIES, tiny_policy
from tests.fixtures.source import ROOT

pytestmark = [pytest.mark.llama_cpp, pytest.mark.slow]
TEXTS = (
    "Once upon a time, there was a little girl named Lily.",
    "Zoë's 3 cats  don't like 日本;\n\n\tthey're 100 years old… 🐈",
    " a leading space, and CAPITALS",
    "Question: What does the cow eat?\nAnswer: The cow eats grass.",
)
LENGTH = 24


def asked_of_llama_cpp(file: Path, **asked: Any) -> dict[str, Any]:
    done = subprocess.run(
        [os.environ["RLHF_LLAMA_CPP_PYTHON"], str(ROOT / "tests" / "contract" / "llama_cpp_peer.py")],
        input=json.dumps({"file": str(file), "length": LENGTH, "dialogue": None, **asked}), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert answers, done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(answers[-1])
    return found


def greedy(policy: PolicyModel, prompt: list[int], eos: set[int]) -> list[int]:
    import torch

    row = list(prompt)
    while len(row) < len(prompt) + LENGTH and (len(row) == len(prompt) or row[-1] not in eos):
        with torch.no_grad():
            row.append(int(policy.model(input_ids=torch.tensor([row])).logits[0, -1].argmax()))
    return row[len(prompt) :]


def same_in_llama_cpp(policy: PolicyModel, file: Path, *, dialogue: list[dict[str, str]] | None = None) -> None:
    tokenizer: Any = policy.tokenizer
    expected = [tokenizer(text)["input_ids"] for text in TEXTS]
    prompts = [ids[:count] for ids, count in zip(expected, (5, 9, 4, 12), strict=True)]
    found = asked_of_llama_cpp(file, texts=TEXTS, prompts=prompts, dialogue=dialogue)
    assert found["tokens"] == expected
    eos = {tokenizer.eos_token_id}
    for prompt, tokens in zip(prompts, found["greedy"], strict=True):
        own = greedy(policy, prompt, eos)
        assert [token for token in tokens if token not in eos] == [token for token in own if token not in eos]
    if dialogue is not None:
        own = tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True)
        assert found["prompt"].removeprefix(tokenizer.bos_token) == own.removeprefix(tokenizer.bos_token)


def test_the_embedded_model_answers_in_llama_cpp_as_it_does_here(tmp_path):
    report = export_model("embedded", "gguf", output_path=tmp_path / "out", check=False)
    dialogue = [{"role": "user", "content": "What does the cow eat?"}]
    same_in_llama_cpp(PolicyModel.from_pretrained("embedded"), tmp_path / "out" / report.files[0], dialogue=dialogue)


def test_a_real_model_with_grouped_heads_and_sentencepiece_does(tmp_path, assets):
    folder = str(assets / "models" / "stories260K")
    report = export_model(folder, "gguf", output_path=tmp_path / "out", check=False)
    same_in_llama_cpp(PolicyModel.from_pretrained(folder), tmp_path / "out" / report.files[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_that_is_written_does(tmp_path, family):
    policy = tiny_policy(FAMILIES[family])
    report = export_model(policy, "gguf", output_path=tmp_path / "out", check=False)
    dialogue = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "?"},
    ]
    same_in_llama_cpp(policy, tmp_path / "out" / report.files[0], dialogue=dialogue)
