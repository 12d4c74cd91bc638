"""Names, versions and shares: requests go to the weights they should go to, whatever happens in the registry."""

from __future__ import annotations

import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rlhf.config.serving import ServingConfig
from rlhf.errors import ConfigError, ModelError
from rlhf.registry.registry import Registry
from rlhf.serving import create_app
from rlhf.serving.kept_shares import KeptShares
from rlhf.serving.model_routes import ModelRoutes, Shares, Source
from rlhf.serving.prometheus_metrics import ServingMetrics
from tests.unit.serving.conftest import build_model


@pytest.fixture(scope="module")
def folders(tokenizer, tmp_path_factory) -> list[Path]:
    """Two models."""
    root = tmp_path_factory.mktemp("models")
    for seed in (0, 1):
        build_model(tokenizer, seed=seed).policy.save_pretrained(root / str(seed))
    return [root / "0", root / "1"]


@pytest.fixture
def registry(folders, tmp_path) -> Registry:
    registry = Registry(tmp_path / "registry")
    registry.promote(folders[0])
    return registry


def load(source: str, replaced: Any = None) -> Any:
    from rlhf.serving.served_model import ServedModel

    return ServedModel.load(source, compiled=False)


@pytest.fixture
def routes(registry) -> ModelRoutes:
    routes = ModelRoutes(load, ServingMetrics())
    routes.add("champion", Source("champion", registry.folder))
    return routes


def test_an_alias_that_moves_takes_its_requests_with_it_and_back(routes, registry, folders):
    _, old = routes.pick("champion", "u")
    assert routes.refresh() == []
    registry.promote(folders[1])
    assert routes.refresh() == ["champion"]
    _, new = routes.pick("champion", "u")
    assert new.fingerprint != old.fingerprint
    assert routes.models()["champion"][1] == 2
    registry.rollback("champion")
    assert routes.refresh() == ["champion"]
    assert routes.pick("champion", "u")[1].fingerprint == old.fingerprint


def test_a_damaged_version_is_refused_once_and_the_old_weights_go_on(routes, registry, folders):
    _, old = routes.pick("champion", "u")
    registry.promote(folders[1])
    weights = next((registry.path("champion")).glob("*.safetensors"))
    weights.chmod(0o644)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert routes.refresh() == []
    assert routes.refresh() == []
    assert routes.pick("champion", "u")[1] is old
    text = routes._metrics.text().decode()
    assert 'rlhf:model_swaps_total{outcome="refused"} 1.0' in text


def test_two_names_of_one_version_share_its_weights(routes, registry):
    assert routes.add("again", Source("champion", registry.folder)) is routes.pick("champion", "")[1]


def test_a_name_that_is_taken_or_an_alias_that_is_none_is_refused(routes, registry):
    with pytest.raises(ConfigError, match="champion"):
        routes.add("champion", Source("champion", registry.folder))
    with pytest.raises(ModelError, match="challenger"):
        routes.add("other", Source("challenger", registry.folder))


def test_users_keep_their_share_and_the_shares_are_met():
    shares = Shares({"champion": 0.9, "challenger": 0.1})
    users = [f"user-{number}" for number in range(4000)]
    first = {user: shares.pick("live", user) for user in users}
    counts = Counter(first.values())
    assert 0.08 < counts["challenger"] / len(users) < 0.12
    assert first == {user: shares.pick("live", user) for user in users}
    more = Shares({"champion": 0.8, "challenger": 0.2})
    moved = [user for user in users if more.pick("live", user) != first[user]]
    assert 0.08 < len(moved) / len(users) < 0.12, "only the users of the share that changed"


@pytest.mark.parametrize(
    "shares", [{"nobody": 1.0}, {"champion": -1.0}, {"champion": 0.0}, {"champion": float("inf")}, {}]
)
def test_shares_that_are_none_are_refused(routes, shares):
    with pytest.raises(ConfigError):
        routes.share("live", shares)
    with pytest.raises(ConfigError):
        routes.share("champion", {"champion": 1.0})


def test_no_request_is_lost_while_the_weights_change(registry, folders):
    config = ServingConfig(compiled=False, reload_seconds=0.05, max_concurrent_requests=500)
    app = create_app(models={"champion": Source("champion", registry.folder)}, config=config)
    answers: list[tuple[int, str]] = []
    stop = threading.Event()
    with TestClient(app) as site:

        def keep_asking() -> None:
            while not stop.is_set():
                got = site.post(
                    "/v1/completions",
                    json={"model": "champion", "prompt": "Once", "max_tokens": 20, "ignore_eos": True},
                )
                answers.append((got.status_code, got.headers.get("X-Model-Fingerprint", "")))

        several = [threading.Thread(target=keep_asking) for _ in range(3)]
        for one in several:
            one.start()
        seen = {app.state.routes.pick("champion", "")[1].fingerprint}
        for folder in (folders[1], folders[0]):
            registry.promote(folder)
            before = app.state.routes.models()["champion"][1]
            limit = threading.Event()
            for _ in range(400):
                if app.state.routes.models()["champion"][1] != before:
                    break
                limit.wait(0.05)
            seen.add(app.state.routes.pick("champion", "")[1].fingerprint)
            limit.wait(0.3)
        stop.set()
        for one in several:
            one.join()
    assert {status for status, _ in answers} == {200}
    assert {weights for _, weights in answers} == seen
    assert len(seen) == 2


def test_with_keys_nobody_comes_in_without_one(folders, tmp_path):
    from rlhf.store import PreferenceStore, access

    with PreferenceStore(str(tmp_path / "keys.db")) as store:
        key = access.add_api_token(store.engine, "app")
        app = create_app(
            models={"m": Source(str(folders[0]))},
            config=ServingConfig(compiled=False),
            key_store=store,
            requests="4/minute",
        )
        with TestClient(app) as site:
            assert site.get("/health").status_code == 200
            for path in ("/v1/models", "/metrics"):
                for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": key}):
                    answer = site.get(path, headers=headers)
                    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            given = {"authorization": f"Bearer {key}"}
            statuses = [site.get("/v1/models", headers=given).status_code for _ in range(5)]
            assert statuses == [200, 200, 200, 200, 429]
            access.revoke_api_token(store.engine, "app")
            assert site.get("/v1/models", headers=given).status_code == 401


SCOPED = [
    ("completions", "/v1/chat/completions"), ("completions", "/v1/completions"), ("completions", "/v1/responses"), ("scores", "/v1/score"),
    ("scores", "/v1/rerank"), ("shares", "/v1/shares/live"), ("feedback", "/v1/feedback"), ("metrics", "/metrics"), ("metrics", "/v1/status"),
]  # fmt: skip


def test_a_key_is_let_in_for_its_scopes_and_for_no_others(folders, tmp_path):
    from rlhf.store import PreferenceStore, access

    with PreferenceStore(str(tmp_path / "keys.db")) as store:
        keys = {scope: access.add_api_token(store.engine, scope, scopes=[scope]) for scope in access.TOKEN_SCOPES}
        app = create_app(models={"m": Source(str(folders[0]))}, config=ServingConfig(compiled=False), key_store=store)
        with TestClient(app) as site:
            for of_route, path in SCOPED:
                for scope, key in keys.items():
                    method = {"metrics": "GET", "shares": "PUT"}.get(of_route, "POST")
                    answer = site.request(method, path, headers={"authorization": f"Bearer {key}"})
                    if scope == of_route:
                        assert answer.status_code != 403, (path, answer.text)
                    else:
                        error = answer.json()["error"]
                        assert (answer.status_code, error["code"]) == (403, "insufficient_permissions"), (path, scope)
                        assert (error["type"], f"--scope {of_route}" in error["message"]) == ("permission_error", True)
            for key in keys.values():
                assert site.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_every_route_but_health_and_the_pages_asks_for_a_key(folders, tmp_path):
    from rlhf.store import PreferenceStore

    with PreferenceStore(str(tmp_path / "keys.db")) as store:
        app = create_app(models={"m": Source(str(folders[0]))}, config=ServingConfig(compiled=False), key_store=store)
        with TestClient(app) as site:
            routes = {(path, method) for path, item in _operations(app) for method in item}
            open_routes = {path for path, method in routes if site.request(method, path).status_code != 401}
    assert len(routes) > 10
    assert open_routes == {"/", "/health", "/status"}


def _operations(app):
    from fastapi.openapi.utils import get_openapi

    return get_openapi(title="", version="", routes=app.routes)["paths"].items()


def test_a_key_with_a_limit_of_its_own_is_told_when_it_may_come_again(folders, tmp_path):
    from rlhf.store import PreferenceStore, access

    with PreferenceStore(str(tmp_path / "keys.db")) as store:
        few = access.add_api_token(store.engine, "few", requests="2/minute")
        many = access.add_api_token(store.engine, "many")
        app = create_app(models={"m": Source(str(folders[0]))}, config=ServingConfig(compiled=False), key_store=store)
        with TestClient(app) as site:
            answers = [site.get("/v1/models", headers={"authorization": f"Bearer {few}"}) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [200, 200, 429]
            assert 1 <= int(answers[2].headers["retry-after"]) <= 61
            assert site.get("/v1/models", headers={"authorization": f"Bearer {many}"}).status_code == 200


def test_shares_are_changed_while_the_server_runs_and_faults_are_named(folders):
    models = {"a": Source(str(folders[0])), "b": Source(str(folders[1]))}
    with TestClient(create_app(models=models, config=ServingConfig(compiled=False))) as site:
        assert site.put("/v1/shares/live", json={"a": 1, "b": 0}).json() == {"name": "live", "of": {"a": 1.0, "b": 0.0}}
        body = {"model": "live", "prompt": "x", "max_tokens": 1}
        assert {site.post("/v1/completions", json={**body, "user": f"u{i}"}).json()["model"] for i in range(8)} == {"a"}
        assert site.put("/v1/shares/live", json={"a": 0.9, "b": 0.1}).json()["of"] == {"a": 0.9, "b": 0.1}
        assert site.put("/v1/shares/live", json={"a": 3, "b": 1}).json()["of"] == {"a": 0.75, "b": 0.25}
        for sent in ({"c": 1}, {"a": -1}, {"a": "much"}, {"a": True}, {"a": 0}, {}):
            answer = site.put("/v1/shares/live", json=sent)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
        assert site.put("/v1/shares/a", json={"b": 1}).status_code == 400
        shares = {model["id"]: model["shares"] for model in site.get("/v1/models").json()["data"]}
        assert shares == {"a": None, "b": None, "live": {"a": 0.75, "b": 0.25}}


def test_a_key_is_for_shares_only_where_that_was_said(tmp_path):
    from rlhf.store import PreferenceStore, access

    with PreferenceStore(str(tmp_path / "keys.db")) as store:
        plain = access.add_api_token(store.engine, "plain")
        assert "shares" not in access.program_of(store.engine, plain).scopes


def test_changed_shares_outlive_the_server(folders, tmp_path):
    models = {"one": Source(str(folders[0])), "two": Source(str(folders[1]))}
    kept = KeptShares(tmp_path / "shares.json")

    def start(of=models):
        return create_app(models=of, config=ServingConfig(compiled=False), kept_shares=kept)

    with TestClient(start()) as site:
        assert site.put("/v1/shares/live", json={"one": 3, "two": 1}).status_code == 200
        site.put("/v1/shares/live", json={"one": 1, "two": 3})
    with TestClient(start()) as site:
        (live,) = [each for each in site.get("/v1/models").json()["data"] if each["id"] == "live"]
        assert live["shares"] == {"one": 0.25, "two": 0.75}
        kept.path = tmp_path / "shares.json" / "below"  # of a file
        answer = site.put("/v1/shares/live", json={"one": 1, "two": 0})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "not_kept")
        answer = site.put("/v1/shares/other", json={"one": 1})
        assert answer.status_code == 500
        assert site.app.state.routes.shares() == {"live": {"one": 0.25, "two": 0.75}}
    kept.path = tmp_path / "shares.json"
    with pytest.raises(ConfigError, match=r"shares\.json.*two"):
        start({"one": models["one"]})


def test_a_file_keeps_the_changes_of_every_writer(folders, tmp_path):
    """Two servers have the same file, and one has a name from its command line."""
    models = {"one": Source(str(folders[0])), "two": Source(str(folders[1]))}
    kept = [KeptShares(tmp_path / "shares.json") for _ in range(2)]
    apps = [create_app(models=models, config=ServingConfig(compiled=False), kept_shares=each) for each in kept]
    apps[0].state.routes.share("of the command line", {"one": 1})
    with TestClient(apps[0]) as first, TestClient(apps[1]) as second:
        first.put("/v1/shares/live", json={"one": 3, "two": 1})
        second.put("/v1/shares/other", json={"one": 1, "two": 1})
        assert kept[0].read() == {"live": {"one": 0.75, "two": 0.25}, "other": {"one": 0.5, "two": 0.5}}
        kept[0].path.write_text("{")
        answer = first.put("/v1/shares/live", json={"one": 1})
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "not_kept")
        assert apps[0].state.routes.shares()["live"] == {"one": 0.75, "two": 0.25}


def test_shares_at_the_ends_of_numbers(folders):
    models = {"one": Source(str(folders[0])), "two": Source(str(folders[1]))}
    with TestClient(create_app(models=models, config=ServingConfig(compiled=False))) as site:
        answer = site.put("/v1/shares/live", json={"one": 1.5e308, "two": 1.5e308})
        assert answer.json()["of"] == {"one": 0.5, "two": 0.5}
        answer = site.put("/v1/shares/live", json={"one": 10**400, "two": 1})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "one")


def test_changes_at_the_same_time_are_all_kept(folders, tmp_path):
    kept = KeptShares(tmp_path / "shares.json")
    app = create_app(models={"one": Source(str(folders[0]))}, config=ServingConfig(compiled=False), kept_shares=kept)
    with TestClient(app) as site, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: site.put(f"/v1/shares/s{number}", json={"one": 1}), range(24)))
    assert {answer.status_code for answer in answers} == {200}
    assert kept.read() == {f"s{number}": {"one": 1.0} for number in range(24)}


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"live": {"one": "much"}}',
        '{"live": {"one": true}}',
        '{"live": {"one": 1e400}}',
        '{"live": {"one": 1%s}}' % ("0" * 400),
        "[" * 100_000,
    ],
)
def test_a_file_that_holds_no_shares_is_refused_by_name(tmp_path, text):
    path = tmp_path / "shares.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"shares\.json"):
        KeptShares(path).read()


def test_a_folder_in_the_place_of_the_shares_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))):
        create_app(models={"one": Source("its folder is not looked at before")}, kept_shares=KeptShares(tmp_path))
