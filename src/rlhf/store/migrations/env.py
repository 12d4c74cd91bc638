"""What alembic runs: our tables on the connection that it is given."""

from __future__ import annotations

from typing import Any, Literal

from alembic import context

from rlhf.store.tables import Base, Moment


def render_item(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """A migration must not change when our types do: it names the database's."""
    return "sa.DateTime(timezone=True)" if kind == "type" and isinstance(item, Moment) else False


def include_object(_object: Any, name: str | None, kind: str, _reflected: bool, _other: Any) -> bool:
    """What alembic compares: SQLite does not tell of an index that it descends, so this one would always seem to differ."""
    return not (kind == "index" and name == "tasks_by_priority")


context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite changes a column only by copying its table
    compare_type=True,
    render_item=render_item,
    include_object=include_object,
)
with context.begin_transaction():
    context.run_migrations()
