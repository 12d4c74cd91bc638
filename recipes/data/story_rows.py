"""Rows of recipes/speculative.yaml, from the lower-cased stories of the assets."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

STORIES = Path(os.environ.get("RLHF_ASSETS", "../shared/assets")) / "tinystories" / "tinystories_lower_4M.txt.gz"
TRAINING_STORIES = 4800
PROMPT_WORDS = 12


def training_stories() -> list[dict[str, str]]:
    """``{"text": ...}``, a story each."""
    return [{"text": story} for story in stories()[:TRAINING_STORIES]]


def story_openings() -> list[dict[str, str]]:
    """``{"prompt": ...}``, the first words of stories that are trained on."""
    return [{"prompt": opening(story)} for story in stories()[:TRAINING_STORIES]]


def held_out_openings() -> list[dict[str, str]]:
    """The same of stories that are not trained on."""
    return [{"prompt": opening(story)} for story in stories()[TRAINING_STORIES:]]


def opening(story: str) -> str:
    """Its first words."""
    return " ".join(story.split()[:PROMPT_WORDS])


def stories() -> list[str]:
    """Stories of at least 200 characters in the order of the file, paragraphs joined by a space: a story ends with a single newline
    there, a paragraph with two."""
    with gzip.open(STORIES, "rt", encoding="utf-8") as file:
        parts = re.split(r"(?<!\n)\n(?!\n)", file.read())
    return [" ".join(part.split()) for part in parts if len(part) >= 200]
