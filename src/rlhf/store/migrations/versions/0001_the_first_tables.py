"""The first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this version."""
    op.create_table(
        "annotators",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("secret_hash", sa.String(length=255), nullable=True),
        sa.Column("max_judgements", sa.Integer(), nullable=True),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("name"),
    )
    op.create_table(
        "events",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("completion_id", sa.String(length=255), nullable=True),
        sa.Column("model", sa.String(length=255), nullable=True),
        sa.Column("content", sa.JSON(), nullable=False),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("key"),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_events_completion_id"), ["completion_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_events_kind"), ["kind"], unique=False)

    op.create_table(
        "settings",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "tasks",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("prompt", sa.JSON(), nullable=False),
        sa.Column("gold", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("priority", sa.Double(), nullable=False),
        sa.Column("batch", sa.String(length=255), nullable=False),
        sa.Column("columns", sa.JSON(), nullable=False),
        sa.Column("added_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id"),
    )
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.create_index("tasks_by_priority", ["priority", "number"], unique=False)

    op.create_table(
        "assignments",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("annotator", sa.Integer(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=True),
        sa.Column("order", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("assigned_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["annotator"],
            ["annotators.number"],
        ),
        sa.ForeignKeyConstraint(
            ["task"],
            ["tasks.number"],
        ),
        sa.PrimaryKeyConstraint("number"),
    )
    with op.batch_alter_table("assignments", schema=None) as batch_op:
        batch_op.create_index("assignments_of_annotator", ["annotator", "state"], unique=False)
        batch_op.create_index(
            "one_live_assignment_a_person",
            ["task", "annotator"],
            unique=True,
            sqlite_where=sa.text("state IN ('open', 'done')"),
            postgresql_where=sa.text("state IN ('open', 'done')"),
        )
        batch_op.create_index(
            "one_live_assignment_a_slot",
            ["task", "slot"],
            unique=True,
            sqlite_where=sa.text("state IN ('open', 'done')"),
            postgresql_where=sa.text("state IN ('open', 'done')"),
        )

    op.create_table(
        "responses",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("text", sa.JSON(), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=True),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("columns", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["task"],
            ["tasks.number"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("task", "place"),
    )
    with op.batch_alter_table("responses", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_responses_task"), ["task"], unique=False)

    op.create_table(
        "judgements",
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("assignment", sa.Integer(), nullable=False),
        sa.Column("task", sa.Integer(), nullable=False),
        sa.Column("annotator", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("comment", sa.Text(), nullable=False),
        sa.Column("flags", sa.JSON(), nullable=False),
        sa.Column("spans", sa.JSON(), nullable=False),
        sa.Column("confidence", sa.Double(), nullable=True),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("replaces", sa.Integer(), nullable=True),
        sa.Column("made_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["annotator"],
            ["annotators.number"],
        ),
        sa.ForeignKeyConstraint(
            ["assignment"],
            ["assignments.number"],
        ),
        sa.ForeignKeyConstraint(
            ["replaces"],
            ["judgements.number"],
        ),
        sa.ForeignKeyConstraint(
            ["task"],
            ["tasks.number"],
        ),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("key"),
        sa.UniqueConstraint("replaces"),
    )
    with op.batch_alter_table("judgements", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_judgements_annotator"), ["annotator"], unique=False)
        batch_op.create_index(batch_op.f("ix_judgements_assignment"), ["assignment"], unique=False)
        batch_op.create_index(batch_op.f("ix_judgements_task"), ["task"], unique=False)


def downgrade() -> None:
    """Back to the one before."""
    with op.batch_alter_table("judgements", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_judgements_task"))
        batch_op.drop_index(batch_op.f("ix_judgements_assignment"))
        batch_op.drop_index(batch_op.f("ix_judgements_annotator"))

    op.drop_table("judgements")
    with op.batch_alter_table("responses", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_responses_task"))

    op.drop_table("responses")
    with op.batch_alter_table("assignments", schema=None) as batch_op:
        batch_op.drop_index(
            "one_live_assignment_a_slot",
            sqlite_where=sa.text("state IN ('open', 'done')"),
            postgresql_where=sa.text("state IN ('open', 'done')"),
        )
        batch_op.drop_index(
            "one_live_assignment_a_person",
            sqlite_where=sa.text("state IN ('open', 'done')"),
            postgresql_where=sa.text("state IN ('open', 'done')"),
        )
        batch_op.drop_index("assignments_of_annotator")

    op.drop_table("assignments")
    with op.batch_alter_table("tasks", schema=None) as batch_op:
        batch_op.drop_index("tasks_by_priority")

    op.drop_table("tasks")
    op.drop_table("settings")
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_events_kind"))
        batch_op.drop_index(batch_op.f("ix_events_completion_id"))

    op.drop_table("events")
    op.drop_table("annotators")
