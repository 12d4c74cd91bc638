"""How sure an annotator was, as the probability that the judgment is right"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this version: 0 for a guess becomes 0.5, 1 stays 1."""
    op.execute("ALTER TABLE judgements RENAME COLUMN confidence TO label_probability")
    op.execute(
        "UPDATE judgements SET label_probability = (1 + label_probability) / 2 WHERE label_probability IS NOT NULL"
    )


def downgrade() -> None:
    """Back to the one before."""
    op.execute(
        "UPDATE judgements SET label_probability = 2 * label_probability - 1 WHERE label_probability IS NOT NULL"
    )
    op.execute("ALTER TABLE judgements RENAME COLUMN label_probability TO confidence")
