"""Compiled templates of the report, kept between processes: compiling them takes as long as everything else about a page."""

from __future__ import annotations

import contextlib
import importlib.metadata
import pickle

import jinja2

from rlhf.files import user_cache


class _Cache(jinja2.FileSystemBytecodeCache):
    """Jinja's, which compares the source of a template with what was compiled; a disk that can't take it is not an error."""

    def load_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        """Into the bucket, where there is something."""
        with contextlib.suppress(OSError, ValueError, EOFError, TypeError, pickle.UnpicklingError):
            super().load_bytecode(bucket)

    def dump_bytecode(self, bucket: jinja2.bccache.Bucket) -> None:
        """From the bucket."""
        with contextlib.suppress(OSError):
            super().dump_bytecode(bucket)


def kept_templates() -> jinja2.BytecodeCache | None:
    """In the user's cache, for this version of jinja; None where there is to be no cache, or it can't be written."""
    folder = user_cache(f"report-{importlib.metadata.version('jinja2')}")
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return None
    return _Cache(str(folder))
