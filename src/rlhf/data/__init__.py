"""Data: contracts, readers, chat rendering, tokenization, packing. Knows no model.

    contracts     PreferenceSample, RankingSample, RatingSample, the ten kinds of row, Prompt
    sources       files, folders, hub names, lists -> raw rows          formats, cells   raw rows -> checked rows
    readers       json_rows, csv_rows, arrow_rows, saved                strict_json      no NaN, no key twice, no endless nest
    message_text  how messages call what they found                     file_fingerprints  a file that changes while it is read
    read          read_rows, open_rows                                  write            write_rows
    expand        one kind of row to another                            dedup            equal and near-equal rows
    chat          dialogues -> text, with the assistant's exact places
    tokenize      rows -> token ids, with the exact boundary            truncate         what is too long
    datasets      SFTDataset, PreferenceDataset, ComparisonDataset, RankingDataset, RatingDataset, KTODataset, StepwiseDataset,
                  GRPODataset
    steps         where the steps of a sampled solution end             verifiable       rows that no verifier judges
    streaming     the same as streams with a cursor                   dataset_options  the keywords of both, checked once
    pack          Group -> PackedBatch
    inspect       run_check, run_stats, run_convert, run_dedup
    world         the embedded world

A reader follows a row downwards: sources -> formats -> expand -> chat -> tokenize -> datasets -> pack. Names are loaded
when they are asked for, because ``world`` must not cost an import of torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlhf.data.contracts import ComparisonType as ComparisonType
    from rlhf.data.contracts import PreferenceSample as PreferenceSample
    from rlhf.data.contracts import Prompt as Prompt
    from rlhf.data.contracts import RankingSample as RankingSample
    from rlhf.data.contracts import RatingSample as RatingSample
    from rlhf.data.datasets import ComparisonDataset as ComparisonDataset
    from rlhf.data.datasets import GRPODataset as GRPODataset
    from rlhf.data.datasets import KTODataset as KTODataset
    from rlhf.data.datasets import PreferenceDataset as PreferenceDataset
    from rlhf.data.datasets import RankingDataset as RankingDataset
    from rlhf.data.datasets import RatingDataset as RatingDataset
    from rlhf.data.datasets import SFTDataset as SFTDataset
    from rlhf.data.datasets import StepwiseDataset as StepwiseDataset
    from rlhf.data.read import read_rows as read_rows
    from rlhf.data.streaming import StreamingGRPODataset as StreamingGRPODataset
    from rlhf.data.streaming import StreamingKTODataset as StreamingKTODataset
    from rlhf.data.streaming import StreamingPreferenceDataset as StreamingPreferenceDataset
    from rlhf.data.streaming import StreamingSFTDataset as StreamingSFTDataset
    from rlhf.data.write import write_rows as write_rows

HOME = {
    "ComparisonDataset": "datasets",
    "ComparisonType": "contracts",
    "GRPODataset": "datasets",
    "KTODataset": "datasets",
    "PreferenceDataset": "datasets",
    "PreferenceSample": "contracts",
    "Prompt": "contracts",
    "RankingDataset": "datasets",
    "RankingSample": "contracts",
    "RatingDataset": "datasets",
    "RatingSample": "contracts",
    "SFTDataset": "datasets",
    "StepwiseDataset": "datasets",
    "StreamingGRPODataset": "streaming",
    "StreamingKTODataset": "streaming",
    "StreamingPreferenceDataset": "streaming",
    "StreamingSFTDataset": "streaming",
    "read_rows": "read",
    "write_rows": "write",
}
"""Public name -> module of this room."""

__all__ = [*HOME]


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module 'rlhf.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rlhf.data.{HOME[name]}"), name)
