"""Other tools' files and public data: one table of formats, each a reader, a writer, or both."""

from __future__ import annotations

from rlhf.feedback.exchange.formats import FORMATS, OURS, Format, detect, read_as, write_pairs

__all__ = ["FORMATS", "OURS", "Format", "detect", "read_as", "write_pairs"]
