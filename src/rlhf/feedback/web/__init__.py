"""The labeling server: pages for annotators and a dashboard for the owner, on the foundation of ``rlhf.web``."""

from __future__ import annotations

from rlhf.errors import require_all

require_all("markdown_it", "nh3", extra="web", needed_for="The labeling server")

from rlhf.feedback.web.app import create_annotation_app  # noqa: E402 (only where the packages are there)

__all__ = ["create_annotation_app"]
