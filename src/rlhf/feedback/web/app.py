"""The labeling server as one FastAPI application, to be run by uvicorn or mounted in another."""

from __future__ import annotations

from fastapi import FastAPI

from rlhf.feedback.web import dashboard, pages, people
from rlhf.store import PreferenceStore
from rlhf.web import WebSettings, events
from rlhf.web.base_app import base_app


def create_annotation_app(
    store: PreferenceStore, settings: WebSettings | None = None, *, key: bytes | None = None
) -> FastAPI:
    """The server of a store.

    `rlhf annotate` runs it by ``rlhf.web.connections.serve``, which gives requests a time to arrive in and limits
    connections; anyone who runs it otherwise needs something before it that does.

    Args:
        store: Of tasks, people and judgments.
        settings: Addresses, rates and how long things last.
        key: That invitations are signed with; by default the file next to the store, made if it is not there.

    Raises:
        StorageError: The key can't be made or read.
    """
    routers = (pages.router, dashboard.router, people.router, events.router)
    return base_app(store, settings or WebSettings(), routers, key=key, static="rlhf.feedback.web")
