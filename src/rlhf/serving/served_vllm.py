"""A model that vLLM samples: its weights are read here once, for their hash and for what vLLM loads."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from shutil import rmtree
from typing import Any

from peft import PeftModel
from safetensors import safe_open

from rlhf.config.engines import VLLMEngineConfig
from rlhf.config.engines.vllm import LOWEST_TEMPERATURE
from rlhf.config.policy import SamplingConfig
from rlhf.config.serving import ServingConfig
from rlhf.errors import ModelError
from rlhf.models.policy import PolicyModel
from rlhf.models.score import base_model
from rlhf.rollout.stopping import eos_ids
from rlhf.rollout.vllm_weights import PushedWeights, write_weights
from rlhf.serving.served_policy import DEFAULT_CONTEXT, ServedPolicy
from rlhf.serving.vllm_batch import VLLMBatch, VLLMHost


class ServedVLLM(ServedPolicy):
    """One version of a model.

    Args:
        source: Folder or hub name.
        config: Of the server, with ``engine: vllm``.
        replaced: The version that this one comes after, whose process it goes on with; None for a process of its own.

    Raises:
        RLHFError: The model is not available or damaged, is not of the replaced one's shape, or vLLM does not start with it.
    """

    constraints = None

    def __init__(self, source: str, config: ServingConfig, replaced: ServedVLLM | None = None) -> None:
        assert isinstance(config.engine, VLLMEngineConfig)
        self.source = source
        policy = PolicyModel.from_pretrained(source)
        self.tokenizer = policy.tokenizer
        model = base_model(policy.model)
        text = model.config.get_text_config()
        limits = (config.context_length, config.engine.max_model_len, getattr(text, "max_position_embeddings", None))
        self.context = min(filter(None, limits), default=DEFAULT_CONTEXT)
        self.vocabulary = int(text.vocab_size)
        self.ends = eos_ids(model, self.tokenizer)
        self.max_prefill_tokens = config.max_cache_tokens
        if isinstance(policy.model, PeftModel):
            policy = PolicyModel(policy.model.merge_and_unload(), policy.tokenizer)
        self.fingerprint = policy.fingerprint()
        dtype = config.engine.dtype if config.engine.dtype != "auto" else config.products
        options = {
            "max_model_len": self.context, "max_num_seqs": config.max_batch_size, "logprobs_mode": "raw_logprobs",
        }  # fmt: skip
        # the engine's own limit was taken into account above
        engine = config.engine.model_copy(update={"max_model_len": None})
        self.host: VLLMHost = VLLMHost(engine, dtype=dtype, options=options) if replaced is None else replaced.host
        self._folder = Path(tempfile.mkdtemp(prefix="rlhf-serve-weights-"))
        self._remove = weakref.finalize(self, rmtree, self._folder, ignore_errors=True)
        weights = write_weights(policy, self._folder / "weights", fingerprint=self.fingerprint, untied=self.host.on_cpu)
        self._weights, self._number = weights, self.host.number()
        if replaced is None:
            self.host.load(weights, self._number)
        else:
            check_same_shape(replaced, self)
        self.batch = self._new_batch()

    @property
    def how(self) -> str:
        """Which vLLM, and in which type."""
        return f"vLLM {self.host.vllm}, {self.host.dtype}"

    def complaint(self, sampling: SamplingConfig) -> str | None:
        """Temperatures that vLLM would change."""
        if 0 < sampling.temperature < LOWEST_TEMPERATURE:
            return f"temperature is {sampling.temperature:g}; vLLM samples at {LOWEST_TEMPERATURE} at least, or at 0"
        return None

    def reset(self) -> None:
        """A new process with the next request: what the old one still does is not known."""
        self.host.close()
        self.batch = self._new_batch()

    def close(self) -> None:
        """End the process."""
        self.host.close()

    def _new_batch(self) -> VLLMBatch:
        return VLLMBatch(self.host, self._weights, self._number, self.fingerprint, self.tokenizer, self.ends)


def check_same_shape(old: ServedVLLM, new: ServedVLLM) -> None:
    """Refuse weights that a running vLLM can't take in the place of its own.

    Raises:
        ModelError: Names, shapes or the room for tokens differ.
    """
    if new.context > old.context or new.vocabulary != old.vocabulary:
        raise ModelError(
            f"it takes {new.context} tokens of a vocabulary of {new.vocabulary:,}, and vLLM was started for {old.context} of "
            f"{old.vocabulary:,}; start the server again with it"
        )
    first, second = _shapes(old._weights), _shapes(new._weights)
    different = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    if different:
        name = different[0]
        raise ModelError(
            f"its tensor {name} is {second.get(name, 'missing')}, and that of the weights before is {first.get(name, 'missing')}: "
            "vLLM takes other weights of the same shapes only; start the server again with it"
        )


def _shapes(weights: PushedWeights) -> dict[str, Any]:
    shapes: dict[str, Any] = {}
    for file in weights.files:
        with safe_open(weights.folder / file, framework="pt") as opened:
            shapes |= {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118
    return shapes
