"""The engine in the process that trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from typing_extensions import override

from rlhf.config.base import BaseConfig, InputPath
from rlhf.config.engines.engine import EngineConfig, MismatchConfig, kind_from_text

RolloutWeights = Literal["same", "bfloat16", "int8"]
"""What an engine multiplies with: the policy's weights, or a copy of them for sampling alone."""


class PromptLookupConfig(BaseConfig):
    """Guess what a completion says next from what followed the same tokens before (Saxena 2023, "Prompt lookup decoding"): in its
    prompt, in itself, or in another completion of the same prompt. Guesses change how fast is sampled, and not what."""

    kind: Literal["prompt_lookup"] = "prompt_lookup"
    ngram_tokens: int = Field(2, ge=1)
    """So many tokens must agree for what followed them to be guessed."""
    draft_tokens: int = Field(4, ge=1)
    """Most tokens guessed at once."""
    max_rows: int = Field(8, ge=1)
    """Guess only while at most so many completions are sampled side by side, as at the end of a rollout. With more, a pass is bound by
    arithmetic, and a wrong guess costs what a right one saves."""


class DraftModelConfig(BaseConfig):
    """Have a small model of the same vocabulary guess what comes next (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023,
    arXiv:2302.01318). Guesses change how fast is sampled, and not what."""

    kind: Literal["draft_model"] = "draft_model"
    model: InputPath
    """Folder, hub name or `stage:NAME` of the draft model, such as one that a `distill` stage made from the model it is to guess for."""
    draft_tokens: int = Field(4, ge=1)
    """Tokens guessed at once."""
    max_rows: int = Field(4, ge=1)
    """Guess only while at most so many completions are sampled side by side; with more, a pass is bound by arithmetic."""
    keeps: Literal["samples", "distribution"] = "samples"
    """What is as without a draft: every sample, or the distribution that samples come from. With `distribution` guesses are accepted by
    rejection sampling: more of them at a temperature above 0, and a sample depends on the draft model and on what is sampled beside it."""


SpeculateConfig = Annotated[
    PromptLookupConfig | DraftModelConfig, Field(discriminator="kind"), BeforeValidator(kind_from_text)
]
"""How an engine guesses tokens."""


class LocalEngineConfig(EngineConfig):
    """Sample in this process from the module that is trained."""

    builds = "rlhf.rollout.local:build_local"
    in_this_process = True
    free_to_change = frozenset({"mismatch"})

    kind: Literal["local"] = "local"
    weights: RolloutWeights = "same"
    """What linear layers multiply with while sampling: the policy's own weights, or a copy in a lower precision, made again for each
    rollout. What is sampled is then corrected by `importance`, and its distance from the policy measured in every rollout."""
    mismatch: MismatchConfig = MismatchConfig()
    """How far the engine's probabilities may lie from the trainer's, where its weights are a copy, or it plays episodes."""
    speculate: SpeculateConfig | None = None
    """How to guess tokens and check several in one pass of the model: `prompt_lookup`, or its settings, or `{kind: draft_model, model:
    FOLDER}`; null for a token at a time. See docs/speculative.md for when it pays."""
    compiled: bool = False
    """Do a decoding step's norms, rotations, attention and drawing in C, in bfloat16 on a processor with AMX its matrix products too, which a
    compiler of this machine (`cc`, `gcc`, `clang` or $CC) makes at the first rollout: for models of Llama's shape on a CPU, others are
    sampled from without it. Sums are added up in another order, so a
    completion may differ where its random number lies within rounding of the boundary between two tokens."""

    @property
    @override
    def lowered(self) -> str | None:
        """As ``weights`` says."""
        return None if self.weights == "same" else self.weights
