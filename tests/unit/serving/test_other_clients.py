"""Clients that nobody here wrote, over a socket: lm_eval's, and litellm from an environment of its own.

python -m venv /tmp/litellm && /tmp/litellm/bin/pip install litellm
RLHF_LITELLM_PYTHON=/tmp/litellm/bin/python pytest tests/unit/serving/test_other_clients.py -m slow
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf.config.serving import ServingConfig
from rlhf.models.reward import RewardModel
from rlhf.serving import create_app
from rlhf.serving.model_routes import Source
from tests.unit.serving.conftest import build_model, listening

LITELLM = "RLHF_LITELLM_PYTHON"
"""Environment variable: the Python that has litellm, whose versions of other packages are not ours."""
SCRIPT = """
import json, sys
import litellm
base = sys.argv[1]
how = dict(api_base=base + "/v1", api_key="none", max_tokens=6, temperature=0)
messages = [{"role": "user", "content": "Once upon a time"}]
whole = litellm.completion(model="openai/tiny", messages=messages, **how)
chunks = list(litellm.completion(model="openai/tiny", messages=messages, stream=True, stream_options={"include_usage": True}, **how))
text = litellm.text_completion(model="text-completion-openai/tiny", prompt="Once upon", **how)
rerank = litellm.rerank(model="hosted_vllm/reward", query="Once", documents=["upon", "dog"], api_base=base, api_key="none")
try:
    litellm.completion(model="openai/reward", messages=messages, **how)
    refused = None
except litellm.BadRequestError as err:
    refused = str(err)
response = litellm.responses(model="openai/tiny", input="Once upon a time", api_base=base + "/v1", api_key="none", max_output_tokens=6)
print(json.dumps({
    "whole": whole.choices[0].message.content, "tokens": whole.usage.completion_tokens,
    "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
    "text": text.choices[0].text, "rerank": [one["relevance_score"] for one in rerank.results], "refused": refused,
    "response": response.output[0].content[0].text,
}))
"""


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("clients")
    policy = build_model(tokenizer).policy
    policy.save_pretrained(root / "tiny")
    RewardModel.from_policy(policy, seed=1).save_pretrained(root / "reward")
    return root


@pytest.fixture(scope="module")
def url(folder) -> Iterator[str]:
    models = {name: Source(str(folder / name)) for name in ("tiny", "reward")}
    with listening(create_app(models=models, config=ServingConfig(compiled=False))) as url:
        yield url


@pytest.mark.slow
def test_lm_eval_reads_texts_and_chats(url, folder):
    pytest.importorskip("tenacity", reason="pip install tenacity: lm_eval's client wants it")
    models = pytest.importorskip("lm_eval.models.openai_completions")
    from lm_eval.api.instance import Instance

    def asked(prompt: Any) -> list[Any]:
        settings = {"until": ["zzz"], "max_gen_toks": 6, "temperature": 0}
        return [Instance("generate_until", {}, (prompt, settings), number) for number in range(3)]

    texts = models.LocalCompletionsAPI(
        base_url=f"{url}/v1/completions", model="tiny", tokenizer=str(folder / "tiny"), tokenizer_backend="huggingface",
        num_concurrent=2, max_length=100,
    )  # fmt: skip
    first = texts.generate_until(asked("Once upon"))
    assert len(first) == 3
    assert len(set(first)) == 1
    chat = models.LocalChatCompletion(base_url=f"{url}/v1/chat/completions", model="tiny", num_concurrent=1)
    prompt = chat.apply_chat_template([{"role": "user", "content": "Once upon"}])
    assert len(chat.generate_until(asked(prompt))) == 3


@pytest.mark.slow
def test_litellm_reads_completions_streams_responses_and_ranks(url):
    python = os.environ.get(LITELLM)
    if not python:
        pytest.skip(f"{LITELLM} names no Python that has litellm")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([python, "-c", SCRIPT, url], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["whole"] == said["streamed"]
    assert said["tokens"] <= 6
    assert said["text"]
    assert said["rerank"] == sorted(said["rerank"], reverse=True)
    assert "reward model" in said["refused"]
    assert isinstance(said["response"], str)
