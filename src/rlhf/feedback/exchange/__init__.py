"""Other tools' files and public data: one table of formats, each a reader, a writer, or both."""

from __future__ import annotations

from rlhf.feedback.exchange.formats import FORMATS, Format, detect, read_as, write_pairs
from rlhf.feedback.exchange.saved import write_dataset
from rlhf.feedback.layouts import OURS, SAVED

__all__ = ["FORMATS", "OURS", "SAVED", "Format", "detect", "read_as", "write_dataset", "write_pairs"]
