"""Keys of events belong to the program that sent them; a person's links are numbered, and only the newest works"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

NAMES = {"uq": "uq_%(table_name)s_%(column_0_name)s"}
"""What SQLite's nameless constraint is called while its table is copied."""
EVENTS = sa.table(
    "events", sa.column("number", sa.Integer), sa.column("program", sa.String), sa.column("key", sa.String),
    sa.column("content", sa.JSON),
)  # fmt: skip


def _old_name(connection: sa.Connection) -> str:
    """Of the constraint that let a key be used by one program only."""
    return "uq_events_key" if connection.dialect.name == "sqlite" else "events_key_key"


def upgrade() -> None:
    """To this version. Events have told their program in their content so far."""
    op.add_column("annotators", sa.Column("invitations", sa.Integer(), nullable=False, server_default="0"))
    connection = op.get_bind()
    op.add_column("events", sa.Column("program", sa.String(length=64), nullable=False, server_default=""))
    for row in connection.execute(sa.select(EVENTS.c.number, EVENTS.c.content)).all():
        program = str((row.content or {}).get("program", ""))[:64]
        if program:
            connection.execute(sa.update(EVENTS).where(EVENTS.c.number == row.number).values(program=program))
    with op.batch_alter_table("events", naming_convention=NAMES) as batch_op:
        batch_op.drop_constraint(_old_name(connection), type_="unique")
        batch_op.create_unique_constraint("one_event_a_key", ["program", "key"])


def downgrade() -> None:
    """Back to the one before: of events with one key the later ones get a key of their own."""
    connection = op.get_bind()
    seen: set[str] = set()
    for row in connection.execute(sa.select(EVENTS.c.number, EVENTS.c.key).order_by(EVENTS.c.number)).all():
        if row.key in seen:
            connection.execute(sa.update(EVENTS).where(EVENTS.c.number == row.number).values(key=f"event-{row.number}"))
        seen.add(row.key)
    with op.batch_alter_table("events") as batch_op:
        batch_op.drop_constraint("one_event_a_key", type_="unique")
        batch_op.create_unique_constraint(_old_name(connection), ["key"])
        batch_op.drop_column("program")
    with op.batch_alter_table("annotators") as batch_op:
        batch_op.drop_column("invitations")
