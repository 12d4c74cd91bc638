"""Accepted revisions as preference rows: what a draft became is preferred to the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.data.contracts import Prompt
from rlhf.rewards.types import Scorer
from rlhf.rollout.types import RolloutEngine
from rlhf.search.contract import SearchResult
from rlhf.search.critics import Critic, judge_identities
from rlhf.search.strategies.refinement import ACCEPTED


def refined_pairs(
    answered: Sequence[tuple[Prompt, SearchResult]], lineage: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Rows of the kind ``preference``, one for each revision that was kept and gained more than ``min_pair_gain``.

    Args:
        answered: Each prompt with its result.
        lineage: Who made the pairs (``refinement_lineage``); each row has it in the column ``lineage``.

    Returns:
        Texts for people and ids as they were sampled for training, the critique, and the judge's two scores, the draft's first.
    """
    rows: list[dict[str, Any]] = []
    for prompt, result in answered:
        for number, pair in enumerate(result.details.get(ACCEPTED, [])):
            if not pair["is_pair"]:
                continue
            rows.append(
                {
                    "id": f"{result.prompt_id}/{number}",
                    "prompt": prompt.text,
                    "chosen": pair["after"],
                    "rejected": pair["before"],
                    "prompt_ids": list(prompt.ids),
                    "chosen_ids": pair["after_ids"],
                    "rejected_ids": pair["before_ids"],
                    "critique": pair["critique"],
                    "judge_scores": pair["scores"],
                    **({"lineage": dict(lineage)} if lineage else {}),
                }
            )
    return rows


def refinement_lineage(
    engine: RolloutEngine, scorer: Scorer, critic: Critic, *, strategy: str, seed: int
) -> dict[str, Any]:
    """Who made refined pairs: weights by their hashes, functions by file and name."""
    return {
        "policy": engine.fingerprint(),
        "critic": critic.name,
        "critic_identity": critic.identity,
        "judge": scorer.name,
        "judge_identity": sorted(judge_identities(scorer)),
        "strategy": strategy,
        "seed": seed,
    }
