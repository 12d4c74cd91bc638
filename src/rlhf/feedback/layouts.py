"""Names of the layouts that go in and out of a store, and what each is. Nothing else is imported here: `rlhf feedback formats`
answers at once, whatever is installed. What reads and writes them is in ``rlhf.feedback.exchange.formats``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

OURS = "rows"
"""The format that keeps everything, which `rlhf.feedback.tasks` reads and `rlhf.feedback.rows` makes."""
SAVED = "datasets"
"""The same rows as a folder."""
LABELS = "labels"
"""The format of labels of several classes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One of them. All can be imported."""

    about: str
    exports: bool


LAYOUTS: Mapping[str, Layout] = {
    OURS: Layout("rows of this library (JSONL, JSON, CSV, Parquet), TRL's and ShareGPT's and Alpaca's among them", exports=True),
    SAVED: Layout("the same rows as a folder for datasets.load_from_disk", exports=True),
    "label-studio": Layout("Label Studio: a JSON list of tasks, with the labeling configuration beside it", exports=True),
    "argilla": Layout("Argilla 2: a folder with records.json and .argilla/", exports=True),
    "argilla-flat": Layout("Argilla 2: flat rows with <question>.responses", exports=False),
    "ultrafeedback": Layout("UltraFeedback: an instruction and completions rated on four dimensions", exports=False),
    "helpsteer2": Layout("HelpSteer2: one completion a row, rated 0 to 4 on five dimensions", exports=False),
    "helpsteer2-preference": Layout("HelpSteer2's pairs, with a strength from -3 to 3", exports=False),
    "helpsteer3": Layout("HelpSteer3: pairs judged by several people, -3 to 3", exports=False),
    "nectar": Layout("Nectar: seven answers, ranked", exports=False),
    "shp": Layout("SHP: two comments to a post", exports=False),
    "pku-saferlhf": Layout("PKU-SafeRLHF: pairs with two verdicts, help and safety", exports=False),
    LABELS: Layout("one (item, annotator, label) a row: labels of any number of classes", exports=False),
    "openai": Layout("OpenAI's preference format (Fireworks, Together alike)", exports=True),
    "hh": Layout("HH-RLHF: two whole transcripts", exports=True),
    "trl": Layout("the columns of TRL's trainers and no others", exports=True),
    "sharegpt": Layout("ShareGPT: the better completions as demonstrations", exports=True),
    "alpaca": Layout("Alpaca: the same, of single turns", exports=True),
}  # fmt: skip
"""In the order in which they are listed."""
