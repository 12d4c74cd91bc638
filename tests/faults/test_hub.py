"""A name on the hub that can't be had: one sentence that says what the hub answered, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

from rlhf.config.model import ModelConfig
from rlhf.models import sources
from rlhf.models.load import load_causal_lm
from tests.fixtures.refusal import refusal


def hub_error(kind: type[Exception]) -> Callable[..., Any]:
    def fail(*args: Any, **kwargs: Any) -> Any:
        assert kwargs["timeout"] <= 10, "a hub that does not answer must not hold a run up"
        if issubclass(kind, HfHubHTTPError):
            raise kind("no", response=SimpleNamespace(headers={}, request=None))  # type: ignore[arg-type]
        raise kind("nobody answers")

    return fail


@pytest.mark.parametrize(
    ("kind", "phrases"),
    [
        (ConnectionError, ("The hub can't be reached for the model 'some/model'", "hf download", "HF_HUB_OFFLINE")),
        (TimeoutError, ("The hub can't be reached", "TimeoutError", "There is no folder some/model here either")),
        (RepositoryNotFoundError, ("The hub has no model 'some/model'", "hf auth login", "There is no folder")),
        (GatedRepoError, ("'some/model'", "accepted its conditions", "hf auth login")),
        (RevisionNotFoundError, ("'some/model' has no revision 'v9'",)),
    ],
)
def test_what_the_hub_answers_is_one_sentence(kind, phrases, monkeypatch):
    sources._hub_has.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", hub_error(kind))
    message = refusal(lambda: load_causal_lm(ModelConfig.of({"path": "some/model", "revision": "v9"}), seed=0))
    assert all(phrase in message for phrase in phrases), message


@pytest.mark.parametrize("kind", [ConnectionError, RepositoryNotFoundError])
@pytest.mark.parametrize(("name", "near"), [("embeded", " Did you mean 'embedded'?"), ("gpt2", "hf download gpt2.")])
def test_the_embedded_model_misspelled_is_told_what_is_near(kind, name, near, monkeypatch):
    sources._hub_has.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", hub_error(kind))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args, **kwargs: None)
    message = refusal(lambda: load_causal_lm(ModelConfig.of({"path": name}), seed=0))
    assert near in message
    assert ("Did you mean" in message) == (name == "embeded")


def test_without_a_network_the_copy_in_the_cache_is_taken(monkeypatch, caplog):
    sources._hub_has.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(HfApi, "model_info", hub_error(ConnectionError))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *args, **kwargs: "/cache/config.json")
    assert sources.hub_options("some/model", None) == {"revision": None, "local_files_only": True}
    assert "took the copy of some/model in the cache" in caplog.text
    sources._hub_has.cache_clear()


def test_no_name_of_the_hub_has_a_space():
    message = refusal(lambda: load_causal_lm("my model", seed=0))
    assert "'my model' is neither a folder here nor a possible name on the hub" in message
