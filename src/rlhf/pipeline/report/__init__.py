"""The report of a run: one page that says what became better, how sure that is, and shows everything behind it.

It reads a run folder and nothing else, needs no network and no scripts, and says of everything missing that it is.

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
