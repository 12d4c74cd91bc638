"""What is measured: one ``Case`` is one row of the results, and names everything that two sides must agree on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

Method = Literal["sft", "reward", "dpo", "kto", "orpo", "simpo", "grpo", "ppo", "generate"]
Dtype = Literal["bf16", "fp32"]
METHODS: tuple[Method, ...] = ("sft", "reward", "dpo", "kto", "orpo", "simpo", "grpo", "ppo", "generate")
SAMPLED: tuple[Method, ...] = ("grpo", "ppo", "generate")
"""Methods whose completions the policy samples."""


MAX_POSITIONS = 2048


@dataclass(frozen=True, slots=True)
class Shape:
    """A llama with random weights."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    vocabulary: int
    tied: bool
    kv_heads: int | None = None
    """Of keys and values; None for as many as ``heads``."""
    positions: int = MAX_POSITIONS
    """Longest sequence."""

    @property
    def body_parameters(self) -> int:
        """Of the matrices every token passes through: attention and feed-forward, without norms, embeddings and head."""
        of_keys = self.hidden * (self.kv_heads or self.heads) // self.heads
        return self.layers * self.hidden * (2 * self.hidden + 2 * of_keys + 3 * self.intermediate)

    @property
    def head_parameters(self) -> int:
        """Of the matrix from hidden states to the vocabulary."""
        return self.hidden * self.vocabulary

    @property
    def parameters(self) -> int:
        """All of them but for the norms."""
        return self.body_parameters + self.head_parameters * (1 if self.tied else 2)


MODELS = {
    "tiny": Shape(hidden=64, layers=2, heads=2, intermediate=128, vocabulary=2_000, tied=False),
    "A": Shape(hidden=256, layers=6, heads=8, intermediate=688, vocabulary=32_000, tied=False),
    "B": Shape(hidden=768, layers=12, heads=12, intermediate=2048, vocabulary=50_000, tied=True),
}
"""A and B are the issue's; ``tiny`` is for trying out the harness itself, its ratios mean nothing."""
GPU_MODELS = {
    "0.5B": Shape(
        hidden=896, layers=24, heads=14, kv_heads=2, intermediate=4864, vocabulary=151_936, tied=True, positions=4608
    ),
    "1.5B": Shape(
        hidden=1536, layers=28, heads=12, kv_heads=2, intermediate=8960, vocabulary=151_936, tied=True, positions=4608
    ),
}
"""The measures of Qwen2.5's 0.5B and 1.5B, as llamas: without their biases on queries, keys and values."""
PAD, EOS, UNKNOWN, FIRST_WORD = 0, 1, 2, 3
"""Token ids; all from ``FIRST_WORD`` on are ordinary words."""
COMPLETION_ENDS_AT = 68
"""1 / probability that a sampled token is EOS where the cap is 128, made so in the weights: completions have about 64 tokens on average
and a fifth of them is cut (the probability varies from place to place). It grows with the cap."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the results."""

    method: Method
    model: str = "A"
    dtype: Dtype = "bf16"
    threads: int = 1
    rows: int = 4
    """Texts, pairs or prompts in one optimizer step."""
    group: int = 1
    """Completions for each prompt, where they are sampled."""
    prompt_mean: int = 160
    completion_mean: int = 120
    max_new_tokens: int = 128
    vocabulary: int | None = None
    """In place of the model's own, for the curves."""
    epochs: int = 4
    """Passes over a rollout, for PPO."""
    kl_coef: float = 0.0
    """Of GRPO's penalty; TRL's default has none, and asks no reference then."""
    longest: int = 896
    """No prompt and no completion of given rows is longer."""
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def shape(self) -> Shape:
        """Of its model. One that is sampled from has a head of its own: a tied one reads what the embeddings hold, and could not be
        made to end completions."""
        shape = (MODELS | GPU_MODELS)[self.model]
        shape = replace(shape, tied=False) if self.is_sampled else shape
        return shape if self.vocabulary is None else replace(shape, vocabulary=self.vocabulary)

    @property
    def ends_after(self) -> int:
        """1 / probability that a sampled token is EOS."""
        return self.max_new_tokens * COMPLETION_ENDS_AT // 128

    @property
    def name(self) -> str:
        """Names its files: everything but what is at its default."""
        size = f"{self.rows}x{self.group}" if self.method in SAMPLED else str(self.rows)
        parts = [self.method, self.model, self.dtype, f"{self.threads}t", size]
        if self.vocabulary is not None:
            parts.append(f"v{self.vocabulary}")
        if self.kl_coef:
            parts.append(f"kl{self.kl_coef:g}")
        if (self.prompt_mean, self.completion_mean) != (160, 120):
            parts.append(f"l{self.prompt_mean}+{self.completion_mean}")
        if self.device != "cpu":
            parts.append(self.device)
        return "-".join(parts)

    @property
    def is_sampled(self) -> bool:
        """Whether its completions come from the policy, so that no two steps have the same ones."""
        return self.method in SAMPLED

    def to_json(self) -> dict[str, Any]:
        """For the other process."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Goal:
    """What the issue asks of a row, as ratios to TRL."""

    case: Case
    time: float
    memory: float | None = None
    """Peak memory above the loaded model, ours over theirs; at most this."""
    what: str = ""


def _step(method: Method, **settings: Any) -> Case:
    sizes: dict[str, dict[str, Any]] = {"grpo": {"rows": 2, "group": 8}, "ppo": {"rows": 8}}
    return Case(method, **{**sizes.get(method, {}), **settings})


GOALS: tuple[Goal, ...] = (
    Goal(_step("sft"), 6, 0.25, "SFT, variable lengths"),
    Goal(_step("reward"), 3.5, 0.6, "reward model"),
    Goal(_step("dpo"), 14, 0.15, "DPO"),
    Goal(_step("kto"), 12, 0.25, "KTO"),
    Goal(_step("orpo"), 10, 0.2, "ORPO"),
    Goal(_step("simpo"), 10, 0.2, "SimPO"),
    Goal(_step("grpo"), 16, 0.15, "GRPO, G = 8 (generation + training)"),
    Goal(_step("ppo"), 8, 0.4, "PPO (against TRL 1.12, the last that had it)"),
    Goal(_step("generate", rows=1, group=8), 6, None, "generation alone, 1 x 8"),
    Goal(_step("generate", rows=4, group=8), 10, None, "generation alone, 4 x 8"),
    Goal(_step("generate", rows=8, group=8), 12, None, "generation alone, 8 x 8"),
    Goal(_step("dpo", model="B", rows=2), 8, None, "DPO, model B"),
    Goal(_step("sft", model="B", rows=2), 4, None, "SFT, model B"),
    Goal(_step("reward", model="B", rows=2), 2.5, None, "reward model, model B"),
)
"""The issue's table; it is for bf16, and so is every case here."""
GPU_SPEED, GPU_MEMORY, GPU_GAP = 2.0, 0.5, 0.01
"""What the issue asks for on a GPU: TRL's tokens a second times this, its peak memory times this at most, and nats between the
log-probabilities of engine and trainer."""


def gpu_cases(*, device: Literal["cpu", "cuda"], large: bool = False, tiny: bool = False) -> tuple[Case, ...]:
    """SFT, DPO and GRPO with sequences of up to 4,096 tokens; ``tiny`` tries out the harness, its ratios mean nothing."""
    sizes: dict[str, Any] = {
        "model": "1.5B" if large else "0.5B", "prompt_mean": 700, "completion_mean": 500, "longest": 2048,
        "max_new_tokens": 512, "threads": 4,
    }  # fmt: skip
    if tiny:
        sizes = {"model": "tiny", "prompt_mean": 24, "completion_mean": 16, "longest": 64, "max_new_tokens": 16}
    return (
        Case("sft", rows=8, device=device, **sizes),
        Case("dpo", rows=4, device=device, **sizes),
        Case("grpo", rows=4, group=8, device=device, **sizes),
    )


SHARE_GOALS: dict[Dtype, float] = {"fp32": 0.75, "bf16": 0.50}
"""Useful work as a share of the measured matrix-multiply peak, on model B."""

CURVES: dict[str, tuple[Case, ...]] = {
    "vocabulary": tuple(_step("dpo", rows=2, vocabulary=size) for size in (4_000, 16_000, 32_000, 64_000, 100_000)),
    "length": tuple(
        _step("dpo", rows=2, prompt_mean=mean, completion_mean=mean * 3 // 4) for mean in (80, 160, 320, 640)
    ),
    "group": tuple(_step("grpo", rows=2, group=size) for size in (2, 4, 8, 16)),
}
"""What each curve is over, and its points."""
TOO_LONG_FOR_PEER = 640
"""Mean prompt length from which a point is measured for our side alone."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of setting the peer up; the fastest in a short run before is the one we compare with."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    """Of loading its model."""
    needs: tuple[str, ...] = ()
    """Packages without which it can't be tried."""


PLAIN = Candidate("fused AdamW, SDPA, no gradient checkpointing")
CANDIDATES: dict[Method, tuple[Candidate, ...]] = {
    "dpo": (PLAIN, Candidate("precompute_ref_log_probs", {"precompute_ref_log_probs": True})),
    "kto": (PLAIN, Candidate("precompute_ref_log_probs", {"precompute_ref_log_probs": True})),
    "grpo": (PLAIN, Candidate("pad_to_multiple_of=64", {"pad_to_multiple_of": 64})),
    "generate": (Candidate("autocast over float32 weights, as TRL calls it"), Candidate("weights in bf16", {"cast_weights": True})),
}  # fmt: skip


FLASH = {"attn_implementation": "flash_attention_2"}
HUB_FLASH = {"attn_implementation": "kernels-community/flash-attn2"}
LIGER = {"use_liger_kernel": True}
KERNELS = (
    PLAIN,
    Candidate("Liger", LIGER, needs=("liger_kernel",)),
    Candidate("kernels of the hub", model={"use_kernels": True}, needs=("kernels",)),
    Candidate("flash attention 2", model=FLASH, needs=("flash_attn",)),
    Candidate("flash attention 2, Liger", LIGER, FLASH, ("flash_attn", "liger_kernel")),
    Candidate("flash attention 2 of the hub", model=HUB_FLASH, needs=("kernels",)),
    Candidate("flash attention 2 of the hub, Liger", LIGER, HUB_FLASH, ("kernels", "liger_kernel")),
    Candidate("gradient checkpointing", {"gradient_checkpointing": True}),
)
"""What TRL can run on a GPU."""
GPU_OPTIONS: dict[Method, tuple[Candidate, ...]] = {
    "sft": (Candidate("padding-free", {"padding_free": True}, needs=("flash",)),),
    "dpo": (Candidate("precompute_ref_log_probs", {"precompute_ref_log_probs": True}),),
    "grpo": (
        Candidate(
            "vLLM in the same process",
            {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3},
            needs=("vllm",),
        ),
    ),
}
"""What a method has besides: each with each of the kernels. ``packing`` is not among them: it makes other steps of the rows. DPO's
``padding_free`` is switched off in TRL 1.16."""


def gpu_candidates(method: Method) -> list[Candidate]:
    """All kernels, alone and with what the method has besides; rows without padding are for flash attention alone."""
    candidates = list(KERNELS)
    for option in GPU_OPTIONS.get(method, ()):
        for kernel in KERNELS:
            if option.needs == ("flash",) and kernel.model not in (FLASH, HUB_FLASH):
                continue
            needs = tuple(name for name in (*kernel.needs, *option.needs) if name != "flash")
            name = f"{kernel.name}, {option.name}"
            candidates.append(Candidate(name, kernel.settings | option.settings, kernel.model, needs))
    return candidates


def candidates_of(case: Case) -> Sequence[Candidate]:
    """What the peer may be set to for a case; always at least one."""
    if case.device == "cuda":
        return gpu_candidates(case.method)
    if case.method == "generate" and case.dtype == "fp32":
        return (PLAIN,)
    return CANDIDATES.get(case.method, (PLAIN,))
