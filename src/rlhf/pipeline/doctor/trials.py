"""Tests that run something: the embedded model scored both ways, a step repeated, a matrix product, a worker that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, PackedBatch, pack
from rlhf.errors import TrainingError
from rlhf.models.folders import module_fingerprint
from rlhf.models.policy import PolicyModel
from rlhf.models.score import base_model, score
from rlhf.native.compiled_mode import in_c
from rlhf.rewards.function_process import FunctionProcess
from rlhf.rewards.worker import CallError
from rlhf.rollout.compiled import CompiledModel
from rlhf.rollout.fused_selection import FusedChoice
from rlhf.rollout.local import LocalEngine

TEXTS = (
    ("Question: What does the cow eat?\nAnswer:", (" The cow eats grass.", " Hay. That is wrong, as far as I know.")),
    ("Question: Where does the fox live?\nAnswer:", (" The fox lives in a den. I hope this helps!", " No idea.")),
)
"""Prompts of uneven length, each with completions of uneven length: pads and shared prefixes both occur."""
MATRIX = 768
MATMUL_SECONDS = 0.3
HANG_SECONDS = 0.5
"""Given to a function that hangs before it has to be killed."""
LEARNING_RATE = 1e-3
SAMPLED_TOKENS = 16


@dataclass(frozen=True, slots=True)
class WorkerTrial:
    """What became of the process that reward functions run in."""

    answered: bool
    killed: bool
    seconds: float
    """From nothing to the first verdict."""
    reason: str = ""


def load_embedded() -> PolicyModel:
    """The tiny model of this package, where models go."""
    policy = PolicyModel.from_pretrained("embedded")
    policy.choose_path(_groups(policy))
    return policy


def scoring_difference(policy: PolicyModel, *, half: bool) -> float:
    """Largest difference, in nats, of the packed row from padded rows and from the family's own head; ``half``: in bfloat16."""
    batch = pack(_groups(policy)).to(policy.device)

    def logprobs(path: str) -> torch.Tensor:
        with torch.no_grad(), torch.autocast(policy.device.type, dtype=torch.bfloat16, enabled=half):
            return score(policy.model, batch, path=path).logprobs.float()  # type: ignore[arg-type]  # literals below

    packed = logprobs("packed")
    return max(float((packed - logprobs(path)).abs().max()) for path in ("padded", "logits"))


def compiled_difference(policy: PolicyModel, *, half: bool) -> float:
    """Largest difference, in nats, of the packed row in C from the same by torch; ``half``: in bfloat16.

    Attention, norms, rotations and gates are compared with torch's before their first use, gradients too.

    Raises:
        ConfigError: The compiler failed.
        TrainingError: What it made was found to be wrong before its first use.
    """
    batch = pack(_groups(policy)).to(policy.device)

    def logprobs(*, native: bool) -> torch.Tensor:
        with torch.no_grad(), in_c(native), torch.autocast(policy.device.type, dtype=torch.bfloat16, enabled=half):
            return score(policy.model, batch, path="packed").logprobs.float()

    return float((logprobs(native=True) - logprobs(native=False)).abs().max())


def sampled_difference(policy: PolicyModel) -> float:
    """Largest difference, in nats, between the log-probabilities of an engine that decodes in C and those of scoring.

    Raises:
        ConfigError: The compiler failed.
        TrainingError: In float32 or in bfloat16 C gives other logits than the model, and a run would sample without it.
    """
    prompts = [Prompt(str(i), policy.tokenizer.encode(text), "") for i, (text, _) in enumerate(TEXTS)]
    for dtype in (torch.float32, torch.bfloat16):
        with torch.no_grad():
            built = FusedChoice(compiled=True).build(
                base_model(policy.model), [prompt.ids for prompt in prompts], dtype, max_new_tokens=SAMPLED_TOKENS
            )
        if not isinstance(built, CompiledModel):
            raise TrainingError(
                f"Decoding in C gives other logits than the model ({dtype}): leave engine.compiled out, or name another compiler in $CC."
            )
    sampling = SamplingConfig(max_new_tokens=SAMPLED_TOKENS)
    sampled = LocalEngine(policy, compiled=True).generate(
        prompts, num_samples=2, sampling=sampling, seed=0, rollout_index=0
    )
    batch = pack([Group(p.ids, [Branch(c.tokens) for c in own]) for p, own in zip(prompts, sampled, strict=True)])
    said = torch.tensor([number for own in sampled for completion in own for number in completion.logprobs])
    with torch.no_grad():
        return float((said - policy.logprobs(batch.to(policy.device)).cpu()).abs().max())


def step_repeats(policy: PolicyModel) -> bool:
    """Whether a training step, taken twice from the same weights, leaves the same bits; the weights are put back."""
    batch = pack(_groups(policy)).to(policy.device)
    before = {name: value.detach().clone() for name, value in policy.model.state_dict().items()}

    def after_a_step() -> str:
        policy.model.load_state_dict(before)
        _take_step(policy, batch)
        return module_fingerprint(policy.model)

    try:
        return after_a_step() == after_a_step()
    finally:
        policy.model.load_state_dict(before)


def matmul_gflops(clock: Callable[[], float] = time.perf_counter) -> float:
    """Billions of float32 operations a second in a square matrix product."""
    left = torch.ones(MATRIX, MATRIX)
    right = torch.ones(MATRIX, MATRIX)
    torch.mm(left, right)  # the first one allocates and chooses kernels
    count, began = 0, clock()
    while (taken := clock() - began) < MATMUL_SECONDS:
        torch.mm(left, right)
        count += 1
    return 2 * MATRIX**3 * count / taken / 1e9


def try_worker() -> WorkerTrial:
    """Start a reward worker, have it answer, then have another hang and see it die."""
    arguments = {"prompts": ["p"], "completions": ["four"]}
    began = time.monotonic()
    process = FunctionProcess("rlhf.pipeline.doctor.trial_rewards:length")
    try:
        answered = process.call(arguments, timeout_seconds=30.0) == [4.0]
        seconds = time.monotonic() - began
    except CallError as err:
        return WorkerTrial(answered=False, killed=False, seconds=time.monotonic() - began, reason=str(err))
    finally:
        process.close()
    hanging = FunctionProcess("rlhf.pipeline.doctor.trial_rewards:never")
    killed = False
    try:
        hanging.call(arguments, timeout_seconds=HANG_SECONDS)
    except CallError as err:
        killed = "killed" in str(err)
    finally:
        hanging.close()
    return WorkerTrial(answered, killed, seconds)


def _groups(policy: PolicyModel) -> list[Group]:
    encode = policy.tokenizer.encode
    return [
        Group(
            encode(prompt, add_special_tokens=False), [Branch(encode(text, add_special_tokens=False)) for text in texts]
        )
        for prompt, texts in TEXTS
    ]


def _take_step(policy: PolicyModel, batch: PackedBatch) -> None:
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE)
    (-policy.score(batch).logprobs.mean()).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
