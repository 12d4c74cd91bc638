"""Opening the database: SQLite in WAL mode with every commit on disk, or whatever else SQLAlchemy can reach."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.orm import Session

from rlhf.data.message_text import counted
from rlhf.errors import ConfigError, MissingExtraError, StorageError, pip_line
from rlhf.files import make_private
from rlhf.store.tables import JudgmentRow

log = logging.getLogger("rlhf.store")
READ_ONLY = "rlhf_read_only"
BUSY_SECONDS = 30
"""How long a writer waits for another before it gives up."""
SCHEME = re.compile(r"^[a-z][a-z0-9+]*://")
NUM_SHOWN_BYTES = 16
"""Of a file that is not a database, in the sentence that says so."""
BESIDE = ("-wal", "-shm", "-journal")
"""Ends of the files that SQLite keeps next to the database; it gives them the rights that the database has."""
SYNCHRONOUS = "FULL"
"""When SQLite waits for the disk: at every commit, so that what was acknowledged outlives a power cut."""
VERSION_TABLE = "alembic_version"
"""Where alembic keeps which tables a database has."""
MAX_TRIES = 50
"""Lost races before giving up; each lost one is one that somebody else won."""
LOST_RACES = frozenset({"40001", "40P01"})
"""SQLSTATE of what PostgreSQL says to the one of two transactions that has to begin again."""

T = TypeVar("T")


def open_engine(place: str | Path) -> Engine:
    """An engine for a file (SQLite) or a database URL such as ``postgresql://user@host/name``.

    Raises:
        ConfigError: The URL can't be read, or the file is there and is not a store.
        MissingExtraError: There is no driver of that database here.
        StorageError: The file's folder can't be made, or the file can't be read.
    """
    text = str(place)
    if SCHEME.match(text):
        try:
            url = make_url(text)
        except (sa.exc.ArgumentError, ValueError) as err:
            raise ConfigError(
                f"{text!r} is not a database URL ({err}); write postgresql://USER@HOST/NAME, or a file."
            ) from None
        if url.drivername in ("postgresql", "postgres"):
            url = url.set(drivername="postgresql+psycopg")
        if url.drivername.startswith("sqlite") and url.database and not url.database.startswith((":memory:", "file:")):
            _check_is_store(Path(url.database))
            close_to_others(*_files_of(Path(url.database)))
    else:
        path = Path(text)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise StorageError(f"The folder {path.parent} can't be made ({err.strerror}); name another file.") from None
        _check_is_store(path)
        close_to_others(*_files_of(path))
        url = URL.create("sqlite", database=str(path.absolute()))  # no text is parsed: a file may be called `what?.db`
    try:
        engine = sa.create_engine(url, pool_pre_ping=True)
    except ModuleNotFoundError as err:
        extra = "postgres" if "psycopg" in str(err) else "web"
        raise MissingExtraError(
            f"{url.drivername} needs the package {err.name!r}. Install it with: {pip_line(extra)}"
        ) from None
    if engine.dialect.name == "sqlite":
        _make_safe(engine)
    return engine


def check_own_tables(place: str, tables: Iterable[str]) -> None:
    """Refuse another program's database.

    Raises:
        ConfigError: It holds tables, and they are not a store's.
    """
    others = sorted(set(tables) - {VERSION_TABLE})
    if others and not {VERSION_TABLE, JudgmentRow.__tablename__} <= set(tables):
        raise ConfigError(
            f"{place} is a database of another program (it holds {counted(len(others), 'table')}, the first {others[0]!r}) and "
            "stays as it is; name another one for the store."
        )


def _files_of(path: Path) -> list[Path]:
    return [path, *(path.with_name(path.name + end) for end in BESIDE)]


def _check_is_store(path: Path) -> None:
    """Anyone who names a file of rows, or another program's database, is told so before a byte of it is changed.

    SQLite alone opens the file: to close it by other means would end the locks that this process holds on it.
    """
    if os.path.isdir(path):
        raise ConfigError(f"{path} is a folder, and a store is a file; name one in it: {path / 'annotations.db'}.")
    if not os.path.exists(path):
        return
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection:
            tables = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            )
            names = [name for (name,) in tables]
    except sqlite3.Error as err:
        if getattr(err, "sqlite_errorname", None) == "SQLITE_NOTADB":
            raise _no_database(path) from None
        raise StorageError(f"The store {path} can't be opened: {err}.") from None
    check_own_tables(str(path), names)


def close_to_others(*files: Path) -> None:
    """Take the rights of the machine's other users from files that they could read, and say so: there are names, comments and
    hashes of passwords in a store, and anyone who has its key can let people in."""
    closed = []
    for file in files:
        try:
            rights = make_private(file)
        except OSError as err:
            log.warning(
                "! Other users of this machine can read %s, and its rights can't be changed (%s); its owner can: chmod 600 %s",
                file, err.strerror, file,
            )  # fmt: skip
        else:
            closed += [] if rights is None else [f"{file} ({rights:03o})"]
    if closed:
        log.warning("! Other users of this machine could read %s; now only the owner can.", ", ".join(closed))


def _no_database(path: Path) -> ConfigError:
    with path.open("rb") as file:
        start = file.read(NUM_SHOWN_BYTES)
    rows = f" If it holds rows, bring them in: rlhf feedback import {path} --store NEW.db" if start[:1] in b"{[" else ""
    return ConfigError(f"{path} is not a store: it begins with {start!r}, and a store is an SQLite database.{rows}")


def _make_safe(engine: Engine) -> None:
    """SQLite as a server would be: readers alongside one writer, commits synced, foreign keys kept."""

    @event.listens_for(engine, "do_connect")
    def before_connect(_dialect: Any, _record: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        """SQLite would make the file with the rights that the umask leaves, and those next to it with the same."""
        if args[0] != ":memory:" and not named.get("uri"):
            with contextlib.suppress(OSError):  # it is there already, or SQLite says what is wrong with the place
                os.close(os.open(args[0], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours, below: the driver's own begins too late to be atomic
        cursor = connection.cursor()
        for pragma in (
            "journal_mode=WAL",
            f"synchronous={SYNCHRONOUS}",
            "foreign_keys=ON",
            f"busy_timeout={BUSY_SECONDS * 1000}",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        # a writer waits for its turn before it begins; one that began as a reader could not become a writer behind another's back
        connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get(READ_ONLY) else "BEGIN IMMEDIATE")


@contextmanager
def writing(engine: Engine) -> Iterator[Session]:
    """A transaction: all of it is on disk when the block is left, or none of it.

    Raises:
        StorageError: The database can't be written to.
    """
    try:
        with Session(engine, expire_on_commit=False) as session, session.begin():
            yield session
    except sa.exc.DBAPIError as err:
        if not _is_storage_trouble(err):
            raise
        raise _storage_error(engine, err) from err


def write(engine: Engine, step: Callable[[Session], T]) -> T:
    """Do ``step`` in a transaction, and do it again where somebody else got in between.

    SQLite has one writer at a time and never needs the second try. PostgreSQL lets writers look at the same moment, and its
    indices then refuse all but one of them: anyone who is refused looks again, and finds what the other one wrote.

    Raises:
        StorageError: The database can't be written to, or too many are in the way.
    """
    lost: sa.exc.DBAPIError | None = None
    for _ in range(MAX_TRIES):
        try:
            with Session(engine, expire_on_commit=False) as session, session.begin():
                return step(session)
        except sa.exc.IntegrityError as err:
            lost = err
        except sa.exc.DBAPIError as err:
            if getattr(err.orig, "sqlstate", None) in LOST_RACES:
                lost = err
                continue
            if not _is_storage_trouble(err):
                raise
            raise _storage_error(engine, err) from err
    raise StorageError(f"{MAX_TRIES} tries to write were in vain, so many write at once; try again.") from lost


def wait_for_turn(session: Session, name: str) -> None:
    """From here to the end of the transaction, be the only one in the database who waited for this name.

    In PostgreSQL each later query then sees all that the others before us have written (READ COMMITTED). A writer to SQLite
    has had its turn since its transaction began.
    """
    if session.get_bind().dialect.name == "postgresql":
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtextextended(f"rlhf {name}", 0))))


@contextmanager
def reading(engine: Engine) -> Iterator[Session]:
    """One consistent view, which keeps no writer waiting: all queries see what was there at the first of them."""
    options: dict[str, Any] = {READ_ONLY: True}
    if engine.dialect.name == "postgresql":  # whose default shows each query what was committed meanwhile
        options["isolation_level"] = "REPEATABLE READ"
    try:
        with engine.connect().execution_options(**options) as connection, Session(connection) as session:
            yield session
    except sa.exc.DBAPIError as err:
        if not _is_storage_trouble(err):
            raise
        raise _storage_error(engine, err) from err


def place_of(engine: Engine) -> str:
    """Where a store is, as it was named: the file, or the URL without its password."""
    if engine.dialect.name == "sqlite":
        return str(engine.url.database)
    return engine.url.render_as_string(hide_password=True)


def _is_storage_trouble(err: sa.exc.DBAPIError) -> bool:
    """Whether the database failed, and not what it was asked: a full disk, a damaged file, a lost connection."""
    return not isinstance(err, sa.exc.IntegrityError | sa.exc.ProgrammingError | sa.exc.DataError)


def _storage_error(engine: Engine, err: sa.exc.DBAPIError) -> StorageError:
    reason = (str(err.orig).strip() or type(err.orig).__name__).splitlines()[0]
    return StorageError(
        f"The store {place_of(engine)} can't be used: {reason}. Nothing that was acknowledged is lost; is the disk full, or another "
        "program holding it?"
    )
