"""The report of a run: one page with what improved, how certain that is, and the evidence.

It reads only a run folder, needs no network and no scripts, and lists everything that is missing.

page         the page, section by section
data         the run folder as a record, with what could not be read and why
words        the headline, from the verdicts of ``rlhf.evaluation.verdict``
views        rows and plots of each section
alarms       alarms with the samples that raised them
plots        inline SVG in the colors of the page
templates/   one file a section; template_cache keeps them compiled
"""

from __future__ import annotations

from rlhf.pipeline.report.page import FILE_NAME, write_report

__all__ = ["FILE_NAME", "write_report"]
