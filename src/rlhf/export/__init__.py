"""Models in the formats of other programs: written, read back, compared with the original, and only then given their name.

export_model       `export_model`: the one way through
format_table       the formats, a line each
source_model       what is exported: a policy or a reward model, adapters merged
format_writer      what a format must be able to do
output_comparison  what the written model answers, next to the original
"""

from __future__ import annotations
