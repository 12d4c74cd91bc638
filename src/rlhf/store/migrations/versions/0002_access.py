"""Who is signed in, which links were used, which programs may send events; indices in the order tasks are handed out"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this version."""
    op.create_table(
        "sessions",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("annotator", sa.Integer(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["annotator"], ["annotators.number"]),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("secret_hash"),
    )
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_sessions_annotator"), ["annotator"], unique=False)
    op.create_table(
        "used_links",
        sa.Column("nonce", sa.String(length=64), nullable=False),
        sa.Column("annotator", sa.Integer(), nullable=False),
        sa.Column("used_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["annotator"], ["annotators.number"]),
        sa.PrimaryKeyConstraint("nonce"),
    )
    op.create_table(
        "api_tokens",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sa.UniqueConstraint("secret_hash"),
    )
    op.drop_index("tasks_by_priority", table_name="tasks")
    op.create_index("tasks_by_priority", "tasks", [sa.text("priority DESC"), "number"])
    op.create_index(
        "open_assignments_by_time",
        "assignments",
        ["expires_at"],
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    )


def downgrade() -> None:
    """Back to the one before: everybody is signed out, and used links would work again until they are too old."""
    op.drop_index("open_assignments_by_time", table_name="assignments")
    op.drop_index("tasks_by_priority", table_name="tasks")
    op.create_index("tasks_by_priority", "tasks", ["priority", "number"])
    op.drop_table("api_tokens")
    op.drop_table("used_links")
    with op.batch_alter_table("sessions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_sessions_annotator"))
    op.drop_table("sessions")
