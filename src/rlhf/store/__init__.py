"""Where judgments lie: SQLite by default, PostgreSQL by giving a URL. Nothing that was acknowledged is ever lost or changed."""

from __future__ import annotations

from rlhf.errors import require_all

require_all("sqlalchemy", "alembic", extra="web", needed_for="The preference store")

from rlhf.store.assign import AssignmentRules  # noqa: E402 (only where the packages are there)
from rlhf.store.store import PreferenceStore  # noqa: E402
from rlhf.store.values import (  # noqa: E402
    Assignment,
    Judgment,
    Progress,
    Response,
    Submission,
    Task,
    TaskKind,
    check_value,
)

__all__ = [
    "Assignment",
    "AssignmentRules",
    "Judgment",
    "PreferenceStore",
    "Progress",
    "Response",
    "Submission",
    "Task",
    "TaskKind",
    "check_value",
]
