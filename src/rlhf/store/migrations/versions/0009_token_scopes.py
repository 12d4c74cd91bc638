"""What a program's token is for, and how many requests it may send"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this version."""
    op.add_column("api_tokens", sa.Column("scopes", sa.JSON(), nullable=True))
    op.add_column("api_tokens", sa.Column("requests", sa.String(32), nullable=True))


def downgrade() -> None:
    """Back to the one before."""
    with op.batch_alter_table("api_tokens") as table:
        table.drop_column("requests")
        table.drop_column("scopes")
