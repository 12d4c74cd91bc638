"""The worker in vLLM's environment: answers ``rlhf.rollout.vllm`` over a pipe, and imports nothing of this library.

It is run as a script by the interpreter of an environment that has vLLM, which pins its own torch and transformers; so it imports
the standard library and vLLM alone, and those of vLLM's calls that are public. One JSON object a line, in on stdin and out on stdout:

    {"id": 3, "op": "load", "with": {...}}   ->   {"id": 3, "answer": {...}}   or   {"id": 3, "error": {"kind": "...", "message": "..."}}

    hello                                        the version of vLLM
    start      folder, files, version, options   starts vLLM on a model folder            -> state
    load       folder, files, version            the weights of another folder            -> state
    generate   prompts, places, seeds, ...       samples                                  -> completions, version, weights
    step       add, abort                        requests come and go, and each goes on   -> outputs, refused, version, weights
    state                                                                                 -> state

``files`` is name -> sha256 of the folder's weights, and is checked before they are read. A state is the ``version`` that was sent with
the weights, ``weights``, one hash for all files, and ``memory``, a hash of what the model really holds: where the first changed and
the second did not, the weights never reached the model. The process ends when its stdin does.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CPU_GIB = 1
"""Memory of keys and values on a CPU, where vLLM by default would take nearly all memory."""


class RefusedError(Exception):
    """The request failed for a named reason."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Worker:
    """One vLLM and the weights it was given."""

    def __init__(self) -> None:
        self.vllm: Any = None
        self.llm: Any = None
        self.version: int | None = None
        self.weights = ""
        self.on_cpu = False

    def hello(self) -> dict[str, Any]:
        """Import vLLM, after setting the environment variables that it reads at import."""
        self.on_cpu = is_cpu_build()
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine in this process: one process to watch
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # weights come from a folder
        if self.on_cpu:
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # compiling its sampler takes a CPU 40 s
            os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the trainer lives on the same cores
        try:
            self.vllm = importlib.import_module("vllm")
        except ModuleNotFoundError as err:
            if err.name != "vllm":
                raise RefusedError("broken", f"vLLM can't be imported: {err}") from err
            raise RefusedError("absent", "there is no vLLM") from err
        except Exception as err:
            raise RefusedError("broken", f"vLLM can't be imported: {type(err).__name__}: {err}") from err
        return {"vllm": str(self.vllm.__version__), "on_cpu": self.on_cpu}

    def start(
        self, folder: str, files: Mapping[str, str], version: int, options: Mapping[str, Any], kv_cache_gib: int | None
    ) -> dict[str, Any]:
        """Start vLLM on a model folder."""
        digest = checked(folder, files)
        given = {"skip_tokenizer_init": True, "generation_config": "vllm", "logprobs_mode": "processed_logprobs"}
        if self.on_cpu:
            os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(kv_cache_gib or CPU_GIB)
            given["enforce_eager"] = True
            # where a prompt is read in parts, vLLM 0.32.0 turns a seeded request's generator back, which a CPU's can't be
            given["enable_chunked_prefill"] = False
        elif kv_cache_gib is not None:
            given["kv_cache_memory_bytes"] = kv_cache_gib << 30
        try:
            self.llm = self.vllm.LLM(model=folder, **{**given, **options})
        except Exception as err:
            raise RefusedError("start", f"{type(err).__name__}: {err}") from err
        self.version, self.weights = version, digest
        return self.state()

    def load(self, folder: str, files: Mapping[str, str], version: int) -> dict[str, Any]:
        """Take the weights of another folder, unless they are the ones it has; what was cached of the old ones is forgotten."""
        digest = checked(folder, files)
        if digest != self.weights:
            self.weights = ""  # of no known version, should the next line fail
            self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})
            if not self.llm.reset_prefix_cache():
                raise RefusedError("load", "vLLM did not forget the keys and values of the old weights")
        self.version, self.weights = version, digest
        return self.state()

    def state(self) -> dict[str, Any]:
        """Which weights these are."""
        memory = self.llm.collective_rpc(memory_digest_of)
        return {"version": self.version, "weights": self.weights, "memory": "".join(memory)}

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        places: Sequence[int],
        seeds: Sequence[int],
        temperature: float,
        max_tokens: int,
        stop_ids: Sequence[int],
    ) -> dict[str, Any]:
        """Sample; log-probabilities are those after the temperature (at temperature 1 where sampling is greedy)."""
        asked = [{"prompt_token_ids": list(prompts[place])} for place in places]
        params = [
            self.vllm.SamplingParams(
                temperature=temperature, seed=seed, max_tokens=max_tokens, logprobs=0,
                stop_token_ids=list(stop_ids), ignore_eos=True, detokenize=False,
            )
            for seed in seeds
        ]  # fmt: skip
        completions = []
        for output in self.llm.generate(asked, params, use_tqdm=False):
            (only,) = output.outputs
            tokens = [int(token) for token in only.token_ids]
            steps = zip(tokens, only.logprobs, strict=True)
            completions.append([tokens, [float(step[token].logprob) for token, step in steps], str(only.finish_reason)])
        return {"completions": completions, "version": self.version, "weights": self.weights}

    def step(self, add: Sequence[Mapping[str, Any]], abort: Sequence[str]) -> dict[str, Any]:
        """Let requests come and go, and let vLLM take one step with those that are there.

        Args:
            add: ``id``, ``prompt``, ``sampling`` (arguments of vLLM's), ``logprobs`` (how many likely ones; None for none) of each.
            abort: Ids.

        Returns:
            ``outputs``: for each request that went on its id, tokens, log-probabilities ([own, [[token, value], ...]] of each token, or None),
            why it ended (None where it goes on) and how much of its prompt was cached; ``refused``: id -> reason.
        """
        engine, refused = self.llm.llm_engine, {}
        if abort:
            engine.abort_request(list(abort))
        for request in add:
            try:
                engine.add_request(request["id"], {"prompt_token_ids": list(request["prompt"])}, self._params(request))
            except (ValueError, TypeError) as err:
                refused[request["id"]] = f"{type(err).__name__}: {err}"
        outputs = []
        for output in engine.step() if engine.has_unfinished_requests() else []:
            (only,) = output.outputs
            tokens = [int(token) for token in only.token_ids]
            steps = [_listed(step, token) for step, token in zip(only.logprobs or [], tokens, strict=False)]
            outputs.append(
                [output.request_id, tokens, steps or None, only.finish_reason, int(output.num_cached_tokens or 0)]
            )
        return {"outputs": outputs, "refused": refused, "version": self.version, "weights": self.weights}

    def _params(self, request: Mapping[str, Any]) -> Any:
        sampling = dict(request["sampling"])
        if bias := sampling.pop("logit_bias"):
            sampling["logit_bias"] = {int(token): value for token, value in bias.items()}  # JSON has texts as keys
        params = self.vllm.SamplingParams(**sampling, logprobs=request["logprobs"], ignore_eos=True, detokenize=False)
        params.output_kind = type(params.output_kind).DELTA  # each step's tokens, and not all so far
        return params


def _listed(step: Mapping[int, Any], token: int) -> list[Any]:
    """[own, [[token, value], ...]] of the log-probabilities in one place, the likeliest first; vLLM adds the own token to the likeliest."""
    ranked = sorted(step.items(), key=lambda item: -item[1].logprob)
    return [float(step[token].logprob), [[int(other), float(value.logprob)] for other, value in ranked]]


def is_cpu_build() -> bool:
    """Whether this environment's vLLM is a CPU build, known before anything of it is imported."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return name == "vllm-cpu" or "cpu" in version
    return False


def checked(folder: str, files: Mapping[str, str]) -> str:
    """One hash for all files, after a look at each of them."""
    for name, wanted in files.items():
        path = Path(folder, name)
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as err:
            raise RefusedError("checksum", f"{path} can't be read: {err.strerror or err}") from err
        if digest != wanted:
            raise RefusedError(
                "checksum", f"{path} has the sha256 {digest[:12]}..., and the trainer wrote {wanted[:12]}..."
            )
    return digest_of(files)


def digest_of(files: Mapping[str, str]) -> str:
    """Hex sha256 over names and hashes."""
    return hashlib.sha256(json.dumps(sorted(files.items())).encode()).hexdigest()


def memory_digest_of(worker: Any) -> str:
    """``memory_digest`` of the model of one of vLLM's workers, which runs this."""
    return memory_digest(worker.get_model())


def memory_digest(model: Any) -> str:
    """Hex sha256 over the name, shape, type and sum of all bits of each parameter: nothing is copied off a GPU."""
    # Imported here: where a model is, torch is, and this function travels to vLLM's workers by value.
    import hashlib

    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    digest = hashlib.sha256()
    for name, value in model.named_parameters():
        bits = value.detach().reshape(-1).view(whole[value.element_size()])
        digest.update(f"{name} {tuple(value.shape)} {value.dtype} {int(bits.sum(dtype=torch.int64))}\n".encode())
    return digest.hexdigest()


def answer(worker: Worker, request: Mapping[str, Any]) -> dict[str, Any]:
    """What a request comes to."""
    try:
        return {"id": request["id"], "answer": getattr(worker, request["op"])(**request["with"])}
    except RefusedError as err:
        return {"id": request["id"], "error": {"kind": err.kind, "message": str(err)}}
    except Exception as err:
        traceback.print_exc()  # into the log
        return {"id": request["id"], "error": {"kind": "failed", "message": f"{type(err).__name__}: {err}"}}


def main() -> None:
    """Answer until there are no more requests."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # vLLM and what it starts print to stdout; from here on that is the log.
    os.dup2(2, 1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    worker = Worker()
    for line in requests:
        answers.write(json.dumps(answer(worker, json.loads(line))).encode() + b"\n")
        answers.flush()
    sys.stderr.flush()


if __name__ == "__main__":
    main()
