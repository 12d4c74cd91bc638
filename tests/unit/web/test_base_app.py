"""A server with one page of its own on the foundation: who comes in, what is refused, and that nothing of labeling is there."""

from __future__ import annotations

from typing import Annotated

import pytest
from fastapi import APIRouter, Depends
from fastapi.testclient import TestClient

from rlhf.store import PreferenceStore
from rlhf.web import WebSettings, invitation_link
from rlhf.web.auth import signed_in
from rlhf.web.base_app import base_app

KEY = b"k" * 32
router = APIRouter()


@router.get("/models")
def models(name: Annotated[str, Depends(signed_in)]) -> dict[str, str]:
    return {"asked_by": name}


@router.post("/models")
def promote() -> dict[str, str]:
    return {}


@pytest.fixture
def store(tmp_path):
    with PreferenceStore(tmp_path / "store.db") as store:
        yield store


@pytest.fixture
def client(store):
    app = base_app(store, WebSettings(), [router], key=KEY)
    return TestClient(app, base_url="http://127.0.0.1", follow_redirects=False)


def test_a_page_of_its_own_is_for_anyone_who_came_in_by_an_invitation(store, client):
    assert client.get("/models").status_code == 401
    assert client.get("/models", headers={"accept": "text/html"}).headers["location"] == "/signin"
    token = invitation_link(store, "dora", key=KEY).partition("token=")[2]
    assert client.post("/join", data={"token": token}).status_code == 303
    assert client.get("/models").json() == {"asked_by": "dora"}
    assert client.post("/models").status_code == 403, "without a CSRF token"
    secret = client.cookies[client.app.state.gate.cookie]
    token = client.app.state.gate.csrf_token(secret)
    assert client.post("/models", headers={"X-CSRF-Token": token}).status_code == 200


def test_it_has_the_headers_and_the_looks_of_sign_in_and_nothing_of_labeling(client):
    assert client.get("/healthz").json() == {"status": "ok"}
    door = client.get("/signin")
    assert "frame-ancestors 'none'" in door.headers["content-security-policy"]
    for name, status in (("door.css", 200), ("icon.svg", 200), ("label.js", 404)):
        assert client.get(f"/static/{name}").status_code == status, name
    for path in ("/label", "/dashboard", "/api/events/schema"):
        assert client.get(path).status_code == 404, path
