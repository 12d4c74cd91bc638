"""Two GPUs for the same tests: one that is pretended, everywhere, and a real one, where there is one."""

from __future__ import annotations

import contextlib

import pytest
import torch

from tests.fixtures import toy
from tests.fixtures.pretend_gpu import pretend_gpu


@pytest.fixture(params=["pretended", pytest.param("real", marks=pytest.mark.gpu)])
def gpu(request):
    """A call whose context has a GPU, and gives its device."""
    return pretend_gpu if request.param == "pretended" else lambda: contextlib.nullcontext(torch.device("cuda", 0))


@pytest.fixture
def toys_on(monkeypatch):
    """``toys_on(device)``: policies of the toy are made there from then on, and what is built around them follows."""
    build = toy.build_policy

    def choose(device):
        monkeypatch.setattr(toy, "build_policy", lambda **settings: build(**settings).to(device))

    return choose
