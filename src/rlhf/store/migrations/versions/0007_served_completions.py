"""Completions that a server of ours answered with, so that feedback needs only their ids"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from rlhf.store.tables import Moment

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this version."""
    op.create_table(
        "served_completions",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("completion_id", sa.String(255), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("program", sa.String(64), nullable=False),
        sa.Column("user", sa.String(64), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("weights", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("prompt", sa.JSON(), nullable=False),
        sa.Column("completion", sa.Text(), nullable=False),
        sa.Column("finish_reason", sa.String(16), nullable=False),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("template_kwargs", sa.JSON(), nullable=False),
        sa.Column("answered_at", Moment(), nullable=False),
        sa.UniqueConstraint("completion_id", "place", name="one_completion_a_place"),
    )
    op.create_index("ix_served_completions_user", "served_completions", ["user"])
    op.create_index("ix_served_completions_answered_at", "served_completions", ["answered_at"])


def downgrade() -> None:
    """Back to the one before."""
    op.drop_table("served_completions")
