"""The conversation that a judgment came from, files that left the store, and people who were forgotten"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from rlhf.store.tables import Moment

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this version: judgments of before came from no trace, and what they left in files is not known."""
    op.add_column("judgements", sa.Column("trace", sa.JSON(none_as_null=True), nullable=True))
    op.create_table(
        "exports",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("layout", sa.String(64), nullable=False),
        sa.Column("num_rows", sa.Integer(), nullable=False),
        sa.Column("written_at", Moment(), nullable=False),
    )
    op.create_table(
        "forgotten",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("forgotten_at", Moment(), nullable=False),
    )


def downgrade() -> None:
    """Back to the one before."""
    op.drop_table("forgotten")
    op.drop_table("exports")
    op.drop_column("judgements", "trace")
