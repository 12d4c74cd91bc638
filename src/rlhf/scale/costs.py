"""Seconds and bytes of a model's work: the contract, and the estimate from published figures.

``rlhf.scale.probe`` measures the same on this machine. Another machine is estimated by a roofline (Williams, Waterman &
Patterson 2009, doi:10.1145/1498765.1498785): work takes as long as its arithmetic or its memory traffic, whichever is longer, plus a
launch for each kernel. How near a run comes to the published figures is assumed, by the shares below; nothing was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rlhf.config.model import DType
from rlhf.config.training import Autocast
from rlhf.data.pack import Group
from rlhf.models.vocabulary_tiles import GPU_TILE, KEPT_BYTES, TILE
from rlhf.scale.machine import Machine
from rlhf.scale.shape import WIDTH, ModelShape

Head = Literal["logprobs", "scalar"]
MATMUL_SHARE = 0.5
"""Of the published throughput that training reaches in its matrix products; 0.4 to 0.6 is what large runs report (PaLM 46 %,
arXiv:2204.02311; Llama 3 38 to 43 %, arXiv:2407.21783, table 4)."""
BANDWIDTH_SHARE = 0.7
"""Of the published bandwidth."""
LAUNCH_SECONDS = 6e-6
"""Of a kernel that is launched from Python."""
KERNELS_PER_LAYER = 24
"""Of a forward pass; twice as many of a backward pass."""
TRAFFIC_PER_LAYER = 40
"""Reads and writes of H numbers that elementwise work of a layer makes for each token."""
SAVED_PER_LAYER = 18
"""H numbers that a layer keeps of each token for the backward pass, and the inner width of its MLP this often:"""
SAVED_INNER = 4
MAX_PREFILL_TOKENS = 8192
"""Prompt tokens that the rollout engine reads at once, see ``rlhf.rollout.local.LocalEngine``."""
DRAWN = 6
"""float32 numbers for each entry of the vocabulary and row while a token is drawn."""


@dataclass(frozen=True, slots=True)
class Learned:
    """One pass forward and back."""

    packing: float
    """Seconds."""
    forward: float
    backward: float
    peak_bytes: float
    """Above weights and optimizer, with the gradients that it leaves: at its highest, as the first micro-batch of a step."""
    peak_bytes_again: float
    """The same with the gradients of an earlier micro-batch in memory."""
    kept_bytes: float
    """What libraries keep of a pass over another number of tokens: the kernels that they made for its shapes."""


def tile_bytes(scored_tokens: float, vocabulary: int, *, is_gpu: bool) -> float:
    """Logits, probabilities and gradients of the tile at work, and the probabilities that wait for the backward pass, in float32; see
    ``rlhf.models.vocabulary_tiles``."""
    width = WIDTH["float32"]
    return 3 * width * min(scored_tokens * vocabulary, GPU_TILE if is_gpu else TILE) + min(
        width * scored_tokens * vocabulary, KEPT_BYTES
    )


def activation_bytes(tokens: float, *, num_layers: int, hidden: int, inner: int, width: int, recomputed: bool) -> float:
    """What layers keep of a micro-batch for the backward pass, without attention scores, which are never in memory.

    Per token and layer ``SAVED_PER_LAYER`` * H + ``SAVED_INNER`` * I numbers: 34 H for I = 4 H, where Korthikanti et al. 2022
    (arXiv:2205.05198, eq. 2 without its term in s) count 34 H bytes in half precision, with dropout's masks and without a gate.

    Args:
        tokens: Of the micro-batch.
        num_layers: L.
        hidden: H.
        inner: I, the inner width of an MLP.
        width: Bytes of a number.
        recomputed: Whether gradient checkpointing keeps only the inputs of layers; one layer is at work then.
    """
    if recomputed:
        return tokens * hidden * (num_layers + SAVED_PER_LAYER) * width
    return tokens * num_layers * (SAVED_PER_LAYER * hidden + SAVED_INNER * inner) * width


class Costs(Protocol):
    """What a model of some shape takes, with rows of some lengths."""

    def learn(self, tokens: float) -> Learned:
        """A micro-batch of so many distinct tokens, packed, forward and back."""
        ...

    def read(self, tokens: float) -> float:
        """Seconds of packing a batch and of a forward pass without gradient."""
        ...

    def reading_bytes(self, tokens: float) -> float:
        """What such a pass takes above the weights, at its highest."""
        ...

    def optimize(self) -> float:
        """Seconds of clipping and of one step of AdamW."""
        ...


class SamplingCosts(Protocol):
    """What sampling from a model takes."""

    def decode(self, prompt_tokens: float, num_prompts: int, lengths: Sequence[int]) -> tuple[float, float]:
        """Seconds of reading prompts once each, and of sampling completions of these lengths side by side."""
        ...

    def sampling_bytes(self, prompts: Sequence[int], rows: int) -> float:
        """Memory for prefilling prompts of these lengths and sampling this many rows, in addition to keys and values."""
        ...

    def kernel_bytes(self, lengths: Sequence[int], rollouts: int) -> float:
        """What libraries keep of so many rollouts with such lengths: the kernels that they made for each number of rows."""
        ...


class Roofline:
    """See the top of this file.

    Args:
        shape: Of the model.
        groups: Rows as they will come; only their lengths count.
        machine: Which.
        autocast: Type of the matrix products.
        head: Whether the rows' tokens are scored, or the rows by one number each.
    """

    def __init__(
        self, shape: ModelShape, groups: Sequence[Group], machine: Machine, *, autocast: Autocast, head: Head
    ) -> None:
        self.shape, self.machine = shape, machine
        self.dtype: DType = shape.settings.dtype if autocast == "none" else autocast
        tokens = sum(group.num_tokens for group in groups)
        self.scored_share = sum(group.num_scored for group in groups) / tokens if head == "logprobs" else 0.0
        pairs = sum(
            len(g.prefix) ** 2 + sum(len(b.tokens) * (2 * len(g.prefix) + len(b.tokens)) for b in g.branches)
            for g in groups
        )
        self.keys_per_token = pairs / 2 / tokens
        share = 1.0 if not machine.is_gpu else MATMUL_SHARE
        self.flops = machine.flops(self.dtype) * share
        self.bandwidth = machine.copy_bytes_per_second * (BANDWIDTH_SHARE if machine.is_gpu else 1.0)
        self.launch = LAUNCH_SECONDS

    def learn(self, tokens: float) -> Learned:
        """A micro-batch of so many distinct tokens, packed, forward and back."""
        once = self._arithmetic(tokens)
        frozen = self.shape.settings.lora is not None
        recomputed = 1.0 if self.shape.settings.gradient_checkpointing is True else 0.0
        forward = self._longer(once, self._traffic(tokens), 1)
        # backward: by inputs and by weights, the latter only where weights are trained
        backward = self._longer(once * ((1 if frozen else 2) + recomputed), 2 * self._traffic(tokens), 2)
        gradients = self.shape.num_trainable * self.shape.trained_width
        held = self._saved_bytes(tokens) + self._tile_bytes(tokens)
        return Learned(0.0, forward, backward, max(held, held * 0.5 + gradients), held + gradients, 0.0)

    def read(self, tokens: float) -> float:
        """Seconds of packing a batch and of a forward pass without gradient."""
        return self._longer(self._arithmetic(tokens), self._traffic(tokens), 1)

    def reading_bytes(self, tokens: float) -> float:
        """What such a pass takes above the weights, at its highest. The activations of one layer, and the logits of a tile."""
        return self._saved_bytes(tokens) / self.shape.num_layers + self._tile_bytes(tokens)

    def optimize(self) -> float:
        """Seconds of clipping and of one step of AdamW. Weight, gradient and two averages are read, three of them written, and the
        gradient read once for its norm."""
        return 8 * self.shape.num_trainable * self.shape.trained_width / self.bandwidth + 50 * self.launch

    def decode(self, prompt_tokens: float, num_prompts: int, lengths: Sequence[int]) -> tuple[float, float]:
        """See ``Costs``: each step reads all weights, and the keys and values of what is alive."""
        shape, width = self.shape, WIDTH[self.dtype]
        weights = (shape.num_body + shape.num_head) * WIDTH[shape.settings.dtype]
        per_token = shape.cached_numbers_per_token * width
        seconds = 0.0
        for time in range(max(lengths)):
            alive = sum(length > time for length in lengths)
            cached = (prompt_tokens + alive * time) * per_token
            work = 2 * alive * (shape.num_active + shape.num_head)
            sampling = 6 * alive * shape.vocabulary * 4
            seconds += max(work / self.flops, (weights + cached + sampling) / self.bandwidth)
            seconds += self.launch * (KERNELS_PER_LAYER * shape.num_layers + 30)
        return self.read(prompt_tokens), seconds

    def sampling_bytes(self, prompts: Sequence[int], rows: int) -> float:
        """Memory for prefilling prompts of these lengths and sampling this many rows, in addition to keys and values."""
        prefill = self._saved_bytes(min(sum(prompts), MAX_PREFILL_TOKENS)) / self.shape.num_layers
        return max(prefill, rows * self.shape.vocabulary * WIDTH["float32"] * DRAWN)

    def kernel_bytes(self, lengths: Sequence[int], rollouts: int) -> float:
        """What libraries keep of so many rollouts with such lengths: the kernels that they made for each number of rows. None are made."""
        return 0.0

    def _arithmetic(self, tokens: float) -> float:
        """Seconds of a forward pass's products: two operations a weight and token, and attention's own."""
        shape = self.shape
        attention = 4 * tokens * self.keys_per_token * shape.num_layers * shape.attention_width
        work = 2 * tokens * shape.num_active + 2 * tokens * self.scored_share * shape.num_head + attention
        return work / self.flops

    def _traffic(self, tokens: float) -> float:
        """Seconds of moving weights, activations and logits once."""
        shape, width = self.shape, WIDTH[self.dtype]
        moved = (shape.num_body + shape.num_head) * WIDTH[shape.settings.dtype]
        moved += int(tokens * shape.num_layers * shape.hidden * TRAFFIC_PER_LAYER * width)
        moved += int(tokens * self.scored_share * shape.vocabulary * 3 * 4)
        return moved / self.bandwidth

    def _longer(self, arithmetic: float, traffic: float, kernels: int) -> float:
        return max(arithmetic, traffic) + self.launch * kernels * KERNELS_PER_LAYER * self.shape.num_layers

    def _saved_bytes(self, tokens: float) -> float:
        shape = self.shape
        return activation_bytes(
            tokens, num_layers=shape.num_layers, hidden=shape.hidden, inner=shape.inner, width=WIDTH[self.dtype],
            recomputed=shape.settings.gradient_checkpointing is True,  # `selective` keeps most of it
        )  # fmt: skip

    def _tile_bytes(self, tokens: float) -> float:
        return tile_bytes(tokens * self.scored_share, self.shape.vocabulary, is_gpu=self.machine.is_gpu)
