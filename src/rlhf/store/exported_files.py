"""Files that left the store: where they are and what they held, so that forgetting somebody can reach them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from rlhf.files import sha256
from rlhf.store.database import reading, write
from rlhf.store.tables import ExportRow


@dataclass(frozen=True, slots=True)
class Export:
    """One file, with every content it was written with."""

    path: Path
    layout: str
    hashes: Sequence[str]
    """sha256, the oldest first; none of a folder."""


def keep_export(engine: Engine, path: Path, layout: str, num_rows: int) -> None:
    """Remember a file that was written; the same content is remembered once."""
    place, digest = str(path.absolute()), sha256(path) if path.is_file() else ""

    def keep(session: Session) -> None:
        known = sa.select(ExportRow).where(ExportRow.path == place).order_by(ExportRow.number.desc()).limit(1)
        last = session.scalar(known)
        if last is None or (last.sha256, last.layout) != (digest, layout):
            session.add(
                ExportRow(path=place, sha256=digest, layout=layout, num_rows=num_rows, written_at=datetime.now(UTC))
            )

    write(engine, keep)


def exports_of(engine: Engine) -> list[Export]:
    """All files, in the order in which they were first written."""
    with reading(engine) as session:
        rows = list(session.scalars(sa.select(ExportRow).order_by(ExportRow.number)))
    by_path: dict[str, list[ExportRow]] = {}
    for row in rows:
        by_path.setdefault(row.path, []).append(row)
    return [
        Export(Path(path), same[-1].layout, tuple(dict.fromkeys(row.sha256 for row in same if row.sha256)))
        for path, same in by_path.items()
    ]
