"""The labeling server: pages for annotators, a dashboard for the owner, and a door for production feedback."""

from __future__ import annotations

from rlhf.errors import require_all

require_all(
    "fastapi", "itsdangerous", "argon2", "limits", "markdown_it", "nh3", "python_multipart",
    extra="web", needed_for="The labeling server",
)  # fmt: skip

from rlhf.feedback.web.app import create_annotation_app  # noqa: E402 (only where the packages are there)
from rlhf.feedback.web.auth import invitation_link  # noqa: E402
from rlhf.feedback.web.server_settings import WebSettings  # noqa: E402

__all__ = ["WebSettings", "create_annotation_app", "invitation_link"]
