"""Writes story openers for the story recipes: who, and what they did first. Train and test share no name.

python recipes/data/make_story_prompts.py
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

from rlhf.files import write_jsonl

NAMES = {
    "train": ["Lily", "Tom", "Sue", "Ben", "Anna", "Max", "Mia", "Sam", "Lucy", "Jack", "Amy", "Bob"],
    "test": ["Tim", "Sara", "Leo", "Jane"],
}
OPENERS = [
    "Once upon a time, there was a child named {name}. {name} liked to",
    "One day, {name} went to the park and saw a",
    "{name} had a small dog. The dog was very",
    "It was a rainy day. {name} looked out of the window and",
    "{name} lost a toy in the garden. {name} felt",
    "One day, {name} and a friend wanted to",
    "{name} found a box under the bed. In the box was",
    "At night, {name} heard a loud noise and",
    "{name}'s mom made a cake. {name} wanted to",
    "Once there was a big tree. {name} climbed the tree and",
    "{name} did not want to share the ball. The other children were",
    "One morning, {name} woke up and the sun was",
]

for split, names in NAMES.items():
    rows = [{"prompt": opener.format(name=name)} for opener, name in product(OPENERS, names)]
    write_jsonl(Path(__file__).parent / f"story_prompts_{split}.jsonl", rows)
