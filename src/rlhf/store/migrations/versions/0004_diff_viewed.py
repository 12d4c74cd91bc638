"""Whether the view with the differences marked was open when a judgement was made"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this version. Of older judgements it is not known."""
    op.add_column("judgements", sa.Column("diff_viewed", sa.Boolean(), nullable=True))


def downgrade() -> None:
    """Back to the one before."""
    with op.batch_alter_table("judgements") as batch_op:
        batch_op.drop_column("diff_viewed")
