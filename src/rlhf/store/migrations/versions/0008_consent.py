"""Whether users agreed that what a server answered them is kept and trained on"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this version."""
    op.add_column("served_completions", sa.Column("consent", sa.Boolean(), nullable=True))


def downgrade() -> None:
    """Back to the one before."""
    with op.batch_alter_table("served_completions") as table:
        table.drop_column("consent")
