"""Bringing a database to the tables of this version, one numbered step after another."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy.engine import Connection, Engine

from rlhf.errors import StorageError
from rlhf.store.database import check_own_tables, place_of

SCRIPTS = Path(__file__).with_name("migrations")
LOCK_NUMBER = 0x726C6866
"""What everybody agrees on who changes tables in PostgreSQL: `rlhf` in ASCII."""


def alembic_config(connection: Connection) -> Config:
    """Settings for alembic's commands on an open connection."""
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(engine: Engine) -> None:
    """Make the tables, or change older ones into today's; nothing where they are today's.

    Raises:
        StorageError: The database was made by a newer version, or can't be opened.
        ConfigError: It is another program's database.
    """
    try:
        with engine.begin() as connection:
            if (
                engine.dialect.name == "postgresql"
            ):  # SQLite has one writer anyway: of two servers that start one makes the tables
                connection.execute(sa.text("SELECT pg_advisory_xact_lock(:number)"), {"number": LOCK_NUMBER})
            config = alembic_config(connection)
            scripts = ScriptDirectory.from_config(config)
            current = MigrationContext.configure(connection).get_current_revision()
            if current == scripts.get_current_head():
                return
            check_own_tables(place_of(engine), sa.inspect(connection).get_table_names())
            if current is not None and current not in {script.revision for script in scripts.walk_revisions()}:
                raise StorageError(
                    f"The store {place_of(engine)} was made by a newer version of rlhf (its tables "
                    f"are at {current!r}); update rlhf, or name another file."
                )
            command.upgrade(config, "head")
    except (sa.exc.DatabaseError, CommandError) as err:
        reason = str(getattr(err, "orig", None) or err).strip().splitlines()[0]
        hint = ""
        if engine.dialect.name == "postgresql" and isinstance(err, sa.exc.OperationalError):
            hint = (
                " Is the server running, and do this user and database exist? The password is taken from the URL, from the "
                "environment (export PGPASSWORD=...) or from ~/.pgpass."
            )
        raise StorageError(f"The store {place_of(engine)} can't be opened: {reason.rstrip('.')}.{hint}") from None
