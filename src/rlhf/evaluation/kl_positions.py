"""Where two models differ: exact next-token KL by completion and by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import Estimate, finite_or_none, mean_interval
from rlhf.evaluation.measures import exact_token_kls, why_no_kl
from rlhf.evaluation.sampled_completions import sample_completions
from rlhf.models.policy import PolicyModel
from rlhf.rollout.local import LocalEngine
from rlhf.seeds import derive_seed

CONTEXT_TOKENS = 6
"""Shown before a token at which the models differ much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KLPositions:
    """What was found; ``to_dict`` is what `rlhf debug kl --json` prints."""

    per_sequence: Estimate
    """Nats; the prompt is the unit."""
    per_token: float
    """Sum over all tokens by their number."""
    by_position: Sequence[tuple[int, float, int]]
    """Position in the completion from 0, mean nats there, completions that are so long."""
    sequences: Sequence[dict[str, Any]]
    """Those with the largest sums, largest first: prompt, completion, nats, tokens."""
    tokens: Sequence[dict[str, Any]]
    """Positions with the largest KL: prompt_id, position, token, before, nats."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "per_sequence": self.per_sequence.to_dict(),
            "per_token": finite_or_none(self.per_token),
            "by_position": [{"position": p, "mean": m, "completions": n} for p, m, n in self.by_position],
            "sequences": list(self.sequences),
            "tokens": list(self.tokens),
        }


def kl_positions(
    policy: PolicyModel,
    ref_model: PolicyModel,
    prompts: Sequence[Prompt],
    *,
    sampling: SamplingConfig,
    seed: int = 0,
    num_shown: int = 5,
) -> KLPositions:
    """Sample one completion of each prompt from the policy, and look where it left the reference.

    Raises:
        ConfigError: Samples drawn so can't measure a KL.
        ModelError: The models read other token ids.
    """
    if (reason := why_no_kl(sampling)) is not None:
        raise ConfigError(f"KL can't be measured: {reason}.")
    completions = sample_completions(
        LocalEngine(policy), prompts, num_samples=1, sampling=sampling, seed=derive_seed(seed, "evaluation", 1)
    )
    kls = exact_token_kls(policy, ref_model, prompts, completions, temperature=sampling.temperature)
    flat = [group[0] for group in completions]
    sums = np.array([each.sum() for each in kls])
    longest = max(len(each) for each in kls)
    at = [np.array([each[p] for each in kls if len(each) > p]) for p in range(longest)]
    worst = np.argsort(-sums, kind="stable")[:num_shown].tolist()
    places = sorted(((float(kl), s, p) for s, each in enumerate(kls) for p, kl in enumerate(each)), reverse=True)

    def text(ids: Sequence[int]) -> str:
        return str(policy.tokenizer.decode(list(ids)))

    return KLPositions(
        per_sequence=mean_interval(sums),
        per_token=float(sums.sum() / sum(map(len, kls))),
        by_position=[(p, float(values.mean()), len(values)) for p, values in enumerate(at)],
        sequences=[
            {
                "prompt_id": prompts[s].id, "prompt": prompts[s].text, "completion": flat[s].text, "nats": float(sums[s]),
                "num_tokens": len(kls[s]),
            }
            for s in worst
        ],
        tokens=[
            {
                "prompt_id": prompts[s].id, "position": p, "token": text(flat[s].sampled_tokens[p : p + 1]),
                "before": text([*prompts[s].ids, *flat[s].sampled_tokens[:p]][-CONTEXT_TOKENS:]), "nats": kl,
            }
            for kl, s, p in places[:num_shown]
        ],
    )  # fmt: skip
