"""Step times that others have published, beside what `rlhf plan`'s formulas give; the second half of docs/results/pipelines.md.

Sources: NVIDIA-NeMo/RL 7ea279ab, docs/about/performance-summary.md (v0.6, and v0.4 of dense models) with the recipes in
examples/configs/recipes/llm/performance (how GPUs are divided); PrimeIntellect-ai/prime-rl 30bf494f, benchmarks/results/BENCHMARKS.md.
Model sizes are those of the models' config.json. Whatever a row leaves open is assumed, the same for all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

MOE = {"model_type": "qwen3_moe", "vocab_size": 151_936, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "Llama-3.1-8B": {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
                     "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256},
    "Qwen3-32B": {"model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 25_600, "num_hidden_layers": 64,
                  "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936},
    "Qwen3-30B-A3B": {**MOE, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
                      "num_attention_heads": 32, "num_key_value_heads": 4},
    "Qwen3-235B-A22B": {**MOE, "hidden_size": 4096, "intermediate_size": 12_288, "moe_intermediate_size": 1536, "num_hidden_layers": 94,
                        "num_attention_heads": 64, "num_key_value_heads": 4},
    "DeepSeek-V3": {"model_type": "deepseek_v3"},
    "Qwen3-0.6B": {"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
                   "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": True},
    "Qwen3-4B": {"model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
                 "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151_936, "tie_word_embeddings": True},
}  # fmt: skip
"""transformers' own defaults of deepseek_v3 are DeepSeek-V3."""


@dataclass(frozen=True, slots=True)
class RLStep:
    """A row of NeMo-RL's tables."""

    version: str
    model: str
    gpu: str
    pipeline: str
    gpus: int
    sampling: int
    """GPUs that only sample; 0 where all do everything in turns."""
    tensor: int
    """Of an engine."""
    completions: int
    longest: int
    mean: float
    seconds: float


RL_STEPS = [
    RLStep("0.4", "Llama-3.1-8B", "H100", "synchronous", 16, 0, 1, 2048, 4096, 1060, 97.7),
    RLStep("0.4", "Llama-3.1-8B", "H100", "one-step-off", 16, 8, 1, 2048, 4096, 1129, 74.6),
    RLStep("0.4", "Qwen3-32B", "H100", "synchronous", 32, 0, 4, 2048, 4096, 3206, 393),
    RLStep("0.4", "Qwen3-32B", "H100", "one-step-off", 64, 32, 4, 2048, 4096, 3207, 215),
    RLStep("0.6", "Qwen3-30B-A3B", "H100", "synchronous", 32, 0, 2, 2048, 4096, 3203, 192),
    RLStep("0.6", "Qwen3-30B-A3B", "H100", "one-step-off", 32, 16, 2, 2048, 4096, 3201, 152),
    RLStep("0.6", "Qwen3-30B-A3B", "H100", "8 steps off", 192, 64, 2, 2048, 4096, 3206, 34.5),
    RLStep("0.6", "Qwen3-235B-A22B", "H100", "synchronous", 128, 0, 16, 512, 8192, 5698, 395),
    RLStep("0.6", "Qwen3-235B-A22B", "H100", "synchronous", 256, 0, 16, 512, 8192, 5713, 312),
    RLStep("0.6", "Qwen3-235B-A22B", "H100", "one-step-off", 256, 128, 8, 512, 8192, 5721, 231),
    RLStep("0.6", "DeepSeek-V3", "H100", "synchronous", 256, 0, 32, 512, 1536, 701, 134),
    RLStep("0.6", "DeepSeek-V3", "H100", "synchronous", 512, 0, 32, 512, 1536, 697, 111),
    RLStep("0.6", "DeepSeek-V3", "H100", "one-step-off", 512, 256, 32, 512, 1536, 710, 64.1),
    RLStep("0.6", "Qwen3-30B-A3B", "GB200", "synchronous", 16, 0, 1, 2048, 4096, 3199, 221),
    RLStep("0.6", "Qwen3-30B-A3B", "GB200", "one-step-off", 16, 8, 1, 2048, 4096, 3197, 301),
]
TRAINER_STEPS: list[tuple[str, str, int, int, bool, float, float]] = [
    ("Qwen3-0.6B", "H100", 1, 16_384, False, 11_900, 12.5), ("Qwen3-0.6B", "H100", 1, 16_384, True, 13_340, 5.1),
    ("Qwen3-0.6B", "H100", 1, 65_536, False, 10_150, 19.6),
    ("Qwen3-4B", "H200", 8, 16_384, False, 27_440, 17.1), ("Qwen3-4B", "H200", 8, 16_384, True, 52_380, 10.3),
    ("Qwen3-4B", "H100", 8, 65_536, False, 28_970, 36.1), ("Qwen3-4B", "H100", 1, 65_536, True, 4_160, 42.0),
    ("Qwen3-30B-A3B", "H200", 8, 16_384, False, 5_940, 74.6), ("Qwen3-30B-A3B", "H200", 8, 16_384, True, 36_770, 31.6),
]  # fmt: skip
"""prime-rl's trainer, FlashAttention 3, recomputed activations: model, GPU, GPUs, tokens of a sequence, LoRA of rank 16, tokens/s, GiB."""
SPREAD = 0.5
"""Deviation of the logarithm of lengths, before they are cut at the longest."""
PROMPT = 100
GROUP = 32
PHASES = 3
PASSES = 2
"""Without gradient, over a rollout: the policy's own log-probabilities and the reference's (a KL penalty of 0.01)."""
SEEN = 128
"""Rows by which arithmetic of attention is reckoned."""


def shape_named(name: str, **settings: Any) -> Any:
    """A model of the table."""
    from rlhf.config.model import ModelConfig
    from rlhf.scale.shape import shape_of

    return shape_of(ModelConfig.of({"init": dict(MODELS[name]), "tokenizer": "none", **settings}))


def lengths_of(step: RLStep, count: int, seed: int) -> list[int]:
    """Lengths of completions with the published mean: log-normal ones, cut at the longest."""
    draw = np.random.default_rng(seed)
    noise = np.exp(SPREAD * draw.standard_normal(count))
    most, mean = step.longest - PROMPT, step.mean - PROMPT
    low, high = 1.0, 100.0 * most
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if np.minimum(middle * noise, most).mean() < mean else (low, middle)
    lengths: list[int] = np.maximum(1, np.minimum(low * noise, most)).astype(int).tolist()
    return lengths


def predicted_step(step: RLStep) -> tuple[float, float, float]:
    """Seconds of a step, of them sampling and learning (scores included), each by itself."""
    from rlhf.data.pack import Branch, Group
    from rlhf.scale.costs import Roofline
    from rlhf.scale.engine_speed import Row, dealt, published_speed, rollout_seconds
    from rlhf.scale.gpus import gpu
    from rlhf.scale.layout_seconds import faster
    from rlhf.scale.pipelines import PipelineSpec, simulate

    shape = shape_named(step.model, dtype="bfloat16")
    machine = gpu(step.gpu)
    engines = (step.sampling or step.gpus) // step.tensor
    speed = published_speed(shape, machine, tensor_size=step.tensor, weight_width=2.0, taken_bytes=0.0)

    def batch(seed: int) -> list[list[Row]]:
        lengths = lengths_of(step, step.completions, seed)
        return [[Row(0, PROMPT, n) for n in lengths[i : i + GROUP]] for i in range(0, len(lengths), GROUP)]

    first = batch(0)
    sampling = max(
        rollout_seconds(speed, rows) for rows in dealt([[row] for group in first for row in group], engines) if rows
    )
    some = [row for group in first for row in group][:SEEN]
    ids = list(range(step.longest))
    groups = [Group(ids[:PROMPT], [Branch(ids[: row.length])]) for row in some]
    cost = Roofline(shape, groups, faster(machine, step.gpus - step.sampling), autocast="none", head="logprobs")
    tokens = sum(row.length + PROMPT for group in first for row in group)
    learned = cost.learn(tokens)
    learning = learned.forward + learned.backward + PASSES * cost.read(tokens) + cost.optimize()
    if not step.sampling:
        return sampling + learning, sampling, learning
    staleness = 8 if step.pipeline.startswith("8") else 1
    spec = PipelineSpec(
        kind="asynchronous" if staleness > 1 else "one-step-off", max_staleness=staleness, num_engines=engines, speed=speed,
        score_seconds=lambda _: 0.0, learn_seconds=lambda _: learning, push_seconds=0.0,
    )  # fmt: skip
    batches = [[[row] for group in batch(seed) for row in group] for seed in range(staleness + PHASES)]
    return simulate(spec, batches).seconds_per_phase, sampling, learning


def predicted_trainer(model: str, gpu: str, gpus: int, tokens: int, lora: bool) -> tuple[float, float]:
    """Tokens per second of all GPUs, and GiB of one, of micro-batches of one sequence on each."""
    from rlhf.config.fsdp import FSDPConfig
    from rlhf.data.pack import Branch, Group
    from rlhf.scale.clusters import read_cluster
    from rlhf.scale.layout_seconds import LayoutSeconds
    from rlhf.scale.layouts import Layout, Models, layout_memory
    from rlhf.scale.plan import StageFacts
    from rlhf.scale.work import Pass, Work

    shape = shape_named(model, dtype="bfloat16" if lora else "float32", **({"lora": {"rank": 16}} if lora else {}))
    ids = list(range(tokens))
    work = Work(1.0, [Pass("forward", "policy", float(gpus * tokens), tokens)], [], {})
    facts = StageFacts(
        work=work, groups=[Group(ids[:1], [Branch(ids[1:])])], steps=1, said="", parts={}, scored_share=1.0
    )
    cluster = read_cluster(f"{gpus}x{gpu}")
    layout = Layout(num_gpus=gpus, sharding="full_shard" if gpus > 1 else "replicated", gradient_checkpointing=True)
    stage = SimpleNamespace(
        autocast="bfloat16", ema_decay=None, early_stopping=None, l2_coef=0, model=shape.settings, fsdp=FSDPConfig()
    )  # fmt: skip
    spent = LayoutSeconds(facts, {"policy": shape}, layout, cluster, stage).learning()
    models = Models(trained=(shape,), copies=1, reference=None, rewards=())
    held, _ = layout_memory(models, layout, cluster, parts={}, tokens=tokens, scored_share=1.0, stage=stage)
    return gpus * tokens / sum(spent.values()), sum(held.values()) / (1 << 30)


def published_lines() -> Iterator[str]:
    """The tables."""
    yield from NOTES
    yield ""
    yield (
        "| NeMo-RL | model | GPUs | pipeline | completions, mean (longest) tokens | seconds of a step: predicted | published | off by | "
        "of it sampling | learning |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for step in RL_STEPS:
        seconds, sampling, learning = predicted_step(step)
        where = f"{step.gpus} {step.gpu}" + (f", {step.sampling} of them sample" if step.sampling else "")
        yield (
            f"| {step.version} | {step.model} | {where} | {step.pipeline} | {step.completions:,}, {step.mean:,.0f} ({step.longest:,}) | "
            f"{seconds:,.0f} | {step.seconds:g} | {_off(seconds, step.seconds)} | {sampling:,.0f} | {learning:,.0f} |"
        )
    yield ""
    yield from ratio_lines()
    yield ""
    yield "| prime-rl's trainer | GPUs | sequence | trained | tokens/s: predicted | published | off by | GiB: predicted | published | off by |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for model, gpu, gpus, tokens, lora, rate, gib in TRAINER_STEPS:
        fast, held = predicted_trainer(model, gpu, gpus, tokens, lora)
        what = "LoRA, rank 16" if lora else "all weights"
        speed = f"{fast:,.0f} | {rate:,.0f} | {_off(fast, rate)}"
        yield f"| {model} | {gpus} {gpu} | {tokens:,} | {what} | {speed} | {held:.1f} | {gib} | {_off(held, gib)} |"
    yield ""
    yield from LEFT_OUT


def ratio_lines() -> Iterator[str]:
    """What a pipeline or more GPUs gain, in which shares that are assumed matter less."""
    pairs = (("16 H100, 8B: one step off instead of in turns", 0, 1), ("32 H100, 30B-A3B: one step off instead of in turns", 4, 5),
             ("235B: 256 GPUs instead of 128, in turns", 7, 8), ("235B, 256 GPUs: one step off instead of in turns", 8, 9),
             ("DeepSeek-V3: 512 GPUs instead of 256, in turns", 10, 11), ("DeepSeek-V3, 512 GPUs: one step off instead of in turns", 11, 12),
             ("16 GB200, 30B-A3B: one step off instead of in turns", 13, 14))  # fmt: skip
    yield "| what changes | gain: predicted | published | off by |"
    yield "|---|---|---|---|"
    for said, before, after in pairs:
        predicted = predicted_step(RL_STEPS[before])[0] / predicted_step(RL_STEPS[after])[0]
        real = RL_STEPS[before].seconds / RL_STEPS[after].seconds
        yield f"| {said} | {predicted:.2f}x | {real:.2f}x | {_off(predicted, real)} |"


def _off(predicted: float, real: float) -> str:
    off = predicted / real - 1
    return f"{off:+.0%}" if abs(off) <= 0.2 else f"**{off:+.0%}**"


NOTES: Sequence[str] = (
    "Step times of NeMo-RL and prime-rl that come with model, accelerators, batch and lengths. Nothing was run on these accelerators by us.",
    "The formulas are those of `rlhf plan --cluster`, with their assumed shares (half of the published TFLOP/s, 70 % of the bandwidth, 80 % of",
    f"links). Assumed for all rows: lengths are log-normal (deviation of the logarithm {SPREAD}) and cut at the longest, with the published",
    f"mean; prompts of {PROMPT} tokens; {PASSES} passes without gradient over each rollout. NeMo-RL trains with Megatron's pipeline and expert",
    "parallelism, of which these formulas know nothing: communication inside a training step is not counted in the first table, and neither",
    "is moving weights and models. What they give is a best case: what limits a step, and what more GPUs or an overlap can gain at most.",
)
LEFT_OUT: Sequence[str] = (
    "Left out, because something that decides is not published there:",
    "",
    "* verl (one step off, fully asynchronous, V1): mean lengths of completions, and in one table the number of nodes; OpenRLHF: only ratios.",
    "* AReaL, LlamaRL, NeMo-Aligner, DeepSpeed-Chat, TRL, slime, ROLL: mean lengths, batch or GPUs.",
    "* NeMo-RL in FP8 and its software-engineering row (a hybrid model, an environment), SkyRL (speculative decoding): the formulas know",
    "  nothing of these.",
)
