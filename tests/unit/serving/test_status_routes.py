"""The status page's numbers: Prometheus's own, over the last minutes and since the start."""

from __future__ import annotations

import math

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from rlhf.cli.watch import status_page
from rlhf.config.serving import ServingConfig
from rlhf.serving import create_app
from rlhf.serving.metrics_history import MetricsHistory, bucket_quantile
from rlhf.serving.model_routes import Source
from rlhf.serving.prometheus_metrics import ServingMetrics
from rlhf.store import PreferenceStore, access
from tests.unit.serving.conftest import build_model, listening


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("served") / "tiny"
    build_model(tokenizer).policy.save_pretrained(path)
    return str(path)


def test_a_quantile_lies_where_its_share_of_a_bucket_ends():
    # 10 values up to 1, 30 more up to 2, none above: the 20th is a third of the way from 1 to 2
    buckets = {1.0: 10.0, 2.0: 40.0, math.inf: 40.0}
    assert bucket_quantile(buckets, 0.5) == pytest.approx(1 + 1 / 3)
    assert bucket_quantile(buckets, 0.125) == pytest.approx(0.5)
    assert bucket_quantile({1.0: 0.0, math.inf: 0.0}, 0.5) is None
    assert bucket_quantile({1.0: 1.0, math.inf: 4.0}, 0.5) is None, "above the last bound: unknown, and not the bound"


def test_recent_numbers_forget_what_is_older_than_the_window():
    clock, metrics = Clock(), ServingMetrics()
    history = MetricsHistory(metrics.registry, clock)
    assert history.look().rate("generation_tokens") is None
    metrics.token_seconds.observe(2.0)
    metrics.generation_tokens.inc(1000)
    for _ in range(40):
        clock.now += 10.0
        history.take()
    metrics.token_seconds.observe(0.0019)
    metrics.generation_tokens.inc(30)
    look = history.look()
    assert look.seconds == 300.0
    assert look.rate("generation_tokens") == pytest.approx(0.1)
    latency = look.latency("inter_token_latency_seconds")
    assert latency["recent"]["count"] == 1
    assert latency["recent"]["p99"] < 0.002
    assert latency["since_start"]["count"] == 2
    assert 1.0 < latency["since_start"]["p95"] <= 2.5


def test_the_numbers_are_those_of_the_metrics(folder):
    models = {"old": Source(folder), "new": Source(folder)}
    app = create_app(models=models, config=ServingConfig(compiled=False))
    with TestClient(app) as site:
        app.state.routes.share("live", {"old": 0.5, "new": 0.5})
        for number in range(12):
            body = {"model": "live", "user": f"u{number}", "prompt": "Once", "max_tokens": 3, "seed": number}
            assert site.post("/v1/completions", json=body).status_code == 200
        told = site.get("/v1/status").json()
        text = site.get("/metrics").text
        values = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    assert told["status"] == "ok"
    asked = {model["name"]: model["requests"] for model in told["models"]}
    assert asked == {name: values["rlhf:requests_total", name] for name in models}
    assert sum(asked.values()) == 12
    assert min(asked.values()) > 0
    assert told["shares"] == [{"name": "live", "of": {"old": 0.5, "new": 0.5}}]
    assert sum(told["finish_reasons"].values()) == 12
    for name, histogram in (
        ("time_to_first_token", "time_to_first_token_seconds"),
        ("end_to_end", "e2e_request_latency_seconds"),
    ):
        latency = told["latency_seconds"][name]["since_start"]
        assert latency["count"] == values[f"rlhf:{histogram}_count",] == 12
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"]
    assert told["per_second"]["generation_tokens"] * told["recent_seconds"] == pytest.approx(
        values["rlhf:generation_tokens_total",], rel=0.02
    )
    assert told["feedback"] is None, "nothing is kept, which is not the same as no feedback"


def test_numbers_want_a_key_and_the_page_tells_nothing(folder, tmp_path):
    with PreferenceStore(tmp_path / "keys.db") as store:
        key = access.add_api_token(store.engine, "program")
        app = create_app(models={"tiny": Source(folder)}, config=ServingConfig(compiled=False), key_store=store)
        with TestClient(app) as site:
            assert site.get("/v1/status").status_code == 401
            page = site.get("/status")
            assert page.status_code == 200
            assert "tiny" not in page.text
            assert "script-src" not in page.headers["Content-Security-Policy"]
            assert (
                site.get("/v1/status", headers={"Authorization": f"Bearer {key}"}).json()["models"][0]["name"] == "tiny"
            )


def test_rlhf_watch_finds_the_page_from_any_address_of_the_server(folder):
    with listening(create_app(folder, config=ServingConfig(compiled=False))) as url:
        for address in (url, f"{url}/", f"{url}/v1", f"{url}/status"):
            assert status_page(address) == f"{url}/status"
