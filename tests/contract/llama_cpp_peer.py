"""Run by the interpreter of an environment with llama.cpp (`pip install xllamacpp`): what it makes of a GGUF file.

Standard input: JSON with `file`, `texts`, `prompts` (token ids), `length`, `dialogue` (messages, or null). Standard output: the last
line is JSON with `tokens` (of each text), `greedy` (of each prompt) and `prompt` (the dialogue as its chat template writes it).
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

import xllamacpp


def main() -> None:
    """Start llama.cpp's server in this process and ask it."""
    asked = json.load(sys.stdin)
    settings = xllamacpp.CommonParams()
    settings.model.path = asked["file"]
    settings.n_ctx, settings.cpuparams.n_threads, settings.warmup = 256, 1, False
    # As exact as it can be: by default keys and values are kept in float16.
    settings.cache_type_k = settings.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    settings.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(settings)

    def ask(route: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            server.listening_address + route, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    greedy = {"temperature": 0, "n_predict": asked["length"], "return_tokens": True, "cache_prompt": False}
    greedy |= {"ignore_eos": False, "samplers": ["temperature"], "repeat_penalty": 1.0}
    answers = {
        "tokens": [ask("/tokenize", {"content": text, "add_special": True})["tokens"] for text in asked["texts"]],
        "greedy": [ask("/completion", {"prompt": prompt, **greedy})["tokens"] for prompt in asked["prompts"]],
        "prompt": ask("/apply-template", {"messages": asked["dialogue"]})["prompt"] if asked["dialogue"] else None,
    }
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
