"""Builds the embedded world's data files from a seed.

world        sft.jsonl                    prompt, completion, fact    demonstrations of uneven quality
             prompts.jsonl                prompt, fact                for preference pairs and RL
             test_prompts.jsonl           prompt, fact                wordings no training stage sees
             heldout_fact_prompts.jsonl   prompt, fact                facts no preference or RL stage sees
             pretrain.jsonl               text                        what the base model is trained on
             world.json                   specification, counts, sha256 of each file
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.data.world import language
from rlhf.data.world.facts import FACTS
from rlhf.data.world.judge import RUBRIC
from rlhf.data.world.language import PROMPTS, Prompt, demonstration, document
from rlhf.errors import ConfigError
from rlhf.files import sha256, write_json, write_jsonl
from rlhf.seeds import derive_seed

TEST_FRAC = 0.15
NUM_HELDOUT_FACTS = 10
NUM_DOCUMENTS = 6000

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Split:
    """Which prompts each stage may see. Only prompts with a prefix are held out, because bare questions occur in
    pre-training documents."""

    train: tuple[Prompt, ...]
    """For preference pairs and RL: no test wording, no held-out fact."""
    demonstrated: tuple[Prompt, ...]
    """For SFT: ``train`` and the prompts about held-out facts that are not kept for testing."""
    test: tuple[Prompt, ...]
    """Wordings that no stage trains on, about facts that all stages know."""
    heldout_fact_test: tuple[Prompt, ...]
    """Wordings that no stage trains on, about facts that preference and RL never see."""


def split_prompts(seed: int) -> Split:
    """Hold out ten facts, and 15 % of the prompts of the held-out and of the other facts each."""
    heldout = set(random.Random(derive_seed(seed, "world", "held-out facts")).sample(FACTS, NUM_HELDOUT_FACTS))
    draw = random.Random(derive_seed(seed, "world", "test prompts"))
    test = _hold_out([prompt for prompt in PROMPTS if prompt.fact not in heldout], draw)
    heldout_fact_test = _hold_out([prompt for prompt in PROMPTS if prompt.fact in heldout], draw)
    demonstrated = [prompt for prompt in PROMPTS if prompt not in test and prompt not in heldout_fact_test]
    return Split(
        train=tuple(prompt for prompt in demonstrated if prompt.fact not in heldout),
        demonstrated=tuple(demonstrated),
        test=_shuffled(test, draw),
        heldout_fact_test=_shuffled(heldout_fact_test, draw),
    )


def build_world(
    seed: int, out_dir: Path | str, *, split_seed: int | None = None, num_documents: int = NUM_DOCUMENTS
) -> dict[str, Any]:
    """Write all files of the world; the same seeds give the same bytes.

    Args:
        seed: The run's seed: demonstrations, documents, orders.
        split_seed: Which prompts and facts are held out; by default ``seed`` too.
        out_dir: Folder to write to; made where it does not exist.
        num_documents: Pre-training documents; 0 where the base model is already there.

    Returns:
        What is in world.json, which is written last: where it exists, all files are complete.
    """
    if num_documents < 0:
        raise ConfigError(f"num_documents is {num_documents}; 0 or more is wanted.")
    out_dir = Path(out_dir)
    split_seed = seed if split_seed is None else split_seed
    split = split_prompts(split_seed)
    tables = {
        "sft.jsonl": demonstration_rows(split.demonstrated, seed),
        "prompts.jsonl": _prompt_rows(_shuffled(split.train, random.Random(derive_seed(seed, "world", "prompts")))),
        "test_prompts.jsonl": _prompt_rows(split.test),
        "heldout_fact_prompts.jsonl": _prompt_rows(split.heldout_fact_test),
        "pretrain.jsonl": pretraining_rows(num_documents, seed),
    }
    for name, rows in tables.items():
        write_jsonl(out_dir / name, rows)
    world = {
        "seed": seed,
        "split_seed": split_seed,
        "specification": _specification(),
        "heldout_facts": sorted({prompt.fact.id for prompt in split.heldout_fact_test}),
        "rows": {name: len(rows) for name, rows in tables.items()},
        "sha256": {name: sha256(out_dir / name) for name in tables},
    }
    write_json(out_dir / "world.json", world)
    return world


def demonstration_rows(prompts: tuple[Prompt, ...], seed: int) -> list[Row]:
    """One demonstration for each prompt, in random order."""
    draw = random.Random(derive_seed(seed, "world", "demonstrations"))
    return [
        {"prompt": prompt.text, "completion": demonstration(prompt.fact, draw), "fact": prompt.fact.id}
        for prompt in _shuffled(prompts, draw)
    ]


def pretraining_rows(num_documents: int, seed: int) -> list[Row]:
    """Pre-training documents."""
    draw = random.Random(derive_seed(seed, "world", "documents"))
    return [{"text": document(draw)} for _ in range(num_documents)]


def _prompt_rows(prompts: tuple[Prompt, ...]) -> list[Row]:
    return [{"prompt": prompt.text, "fact": prompt.fact.id} for prompt in prompts]


def _hold_out(prompts: list[Prompt], draw: random.Random) -> set[Prompt]:
    return set(draw.sample([prompt for prompt in prompts if prompt.prefix], round(TEST_FRAC * len(prompts))))


def _shuffled(prompts: tuple[Prompt, ...] | set[Prompt], draw: random.Random) -> tuple[Prompt, ...]:
    """In random order. A set is first put into the fixed order, since its own changes from process to process."""
    ordered = [prompt for prompt in PROMPTS if prompt in prompts] if isinstance(prompts, set) else list(prompts)
    draw.shuffle(ordered)
    return tuple(ordered)


def _specification() -> dict[str, Any]:
    return {
        "facts": len(FACTS),
        "prompts": len(PROMPTS),
        "test_frac": TEST_FRAC,
        "heldout_facts": NUM_HELDOUT_FACTS,
        "demonstrations": {
            "correct_frac": language.CORRECT_FRAC,
            "evasive_frac": language.EVASIVE_FRAC,
            "wrong_frac": language.WRONG_FRAC,
            "polite_frac": language.POLITE_FRAC,
            "rude_frac": language.RUDE_FRAC,
            "rambling_frac": language.RAMBLING_FRAC,
            "max_fillers": language.MAX_FILLERS,
        },
        "documents": language.DOCUMENT_KINDS,
        "judge": RUBRIC,
    }
