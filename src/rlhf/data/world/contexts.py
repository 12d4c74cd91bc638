"""Contexts of the embedded world: claims drawn at random, and a question about one of them.

A claim gives a subject a value of its relation by chance ("A cow eats coal."), so what a model knows by heart does not answer the
question: it has to read.
"""

from __future__ import annotations

import random
from pathlib import Path

from rlhf.data.world.facts import FACTS, VALUES
from rlhf.data.world.language import prompt_text, questions, statement
from rlhf.files import write_jsonl
from rlhf.seeds import derive_seed


def context_row(draw: random.Random, num_claims: int) -> dict[str, str]:
    """``context``, ``prompt``, the ``completion`` that the context makes right, and ``fact``, which of the world's it is about."""
    facts = draw.sample(FACTS, num_claims)
    claims = [statement(fact, draw.choice(VALUES[fact.relation])) for fact in facts]
    asked = draw.randrange(num_claims)
    return {
        "context": " ".join(claims) + "\n",
        "prompt": prompt_text(draw.choice(questions(facts[asked]))),
        "completion": " " + claims[asked],
        "fact": facts[asked].id,
    }


def build_contexts(
    seed: int, out_dir: Path | str, *, num_rows: int, num_test_rows: int, num_claims: int
) -> dict[str, int]:
    """Write all files; the same seed gives the same bytes.

    Args:
        seed: Of the run.
        out_dir: Folder to write to; made where it does not exist.
        num_rows: Contexts to learn from, with 1 to ``num_claims`` claims: reading is learned from short ones first.
        num_test_rows: Contexts for tests, each with ``num_claims`` claims.
        num_claims: At most as many as the world has facts.

    Returns:
        Rows of each file: ``contexts.jsonl``, ``test_contexts.jsonl``, and ``sft.jsonl``, the first of these with the context in
        the prompt.
    """
    draw = random.Random(derive_seed(seed, "world", "contexts"))
    rows = [context_row(draw, min(draw.randint(1, num_claims), draw.randint(1, num_claims))) for _ in range(num_rows)]
    test_draw = random.Random(derive_seed(seed, "world", "test contexts"))
    test = [context_row(test_draw, num_claims) for _ in range(num_test_rows)]
    in_prompt = [{"prompt": row["context"] + row["prompt"], "completion": row["completion"]} for row in rows]
    tables = {"contexts.jsonl": rows, "test_contexts.jsonl": test, "sft.jsonl": in_prompt}
    for name, table in tables.items():
        write_jsonl(Path(out_dir) / name, table)
    return {name: len(table) for name, table in tables.items()}
