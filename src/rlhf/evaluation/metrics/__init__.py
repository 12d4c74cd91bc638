"""Metrics of a model, one file each; ``rlhf.config.metric_table.METRICS`` is their table.

metric_inputs    what a metric is given: completions, models, judges, rows; what is expensive is computed once
unit_statistics  a number over prompts, its interval, and its difference from another
"""

from __future__ import annotations
