"""What every test may rely on: one thread a worker, no network, and the shared fixtures."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before torch, transformers or matplotlib is imported anywhere, and inherited by every process a test starts.
os.environ.update(
    OMP_NUM_THREADS="1",  # the workers share the cores; one thread each also keeps sums in one order
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
    TRL_EXPERIMENTAL_SILENCE="1",
    RLHF_CACHE="off",  # no test finds what another, or the person who runs it, left
    MPLBACKEND="Agg",
    NO_COLOR="1",
)

import pytest
from hypothesis import HealthCheck, settings

from tests.fixtures import postgres, tiny

# The workers share the cores: how long an example takes says nothing about it.
settings.register_profile("shared cores", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared cores")

ROOT = Path(__file__).resolve().parents[1]
MARKED_FOLDERS = {"oracle", "real", "faults", "gpu", "browser"}
TRL_WARNINGS = (
    # What TRL 1.16 does on transformers 5.23 is not ours to mend.
    "ignore:`gradient_checkpointing` is deprecated:FutureWarning",
)
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests and torch's modules are there to the end: the garbage collector needs to walk through them no more."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A folder or a fixture that says what a test needs is marker enough; what is not here is skipped by name."""
    for item in items:
        for folder in MARKED_FOLDERS & set(item.path.relative_to(ROOT).parts):
            item.add_marker(folder)
        if "assets" in getattr(item, "fixturenames", ()):
            item.add_marker("real")
        if item.get_closest_marker("oracle"):
            for expression in TRL_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(expression))
        if item.get_closest_marker("gpu") and not has_cuda():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.get_closest_marker("browser") and not any(map(shutil.which, CHROMIUM_NAMES)):
            item.add_marker(pytest.mark.skip(reason="needs Chromium (Debian: apt-get install chromium)"))
        if item.get_closest_marker("vllm") and not os.environ.get("RLHF_VLLM_PYTHON"):
            item.add_marker(pytest.mark.skip(reason="needs vLLM: set RLHF_VLLM_PYTHON, see docs/vllm.md"))
        if item.get_closest_marker("llama_cpp") and not os.environ.get("RLHF_LLAMA_CPP_PYTHON"):
            item.add_marker(pytest.mark.skip(reason="needs llama.cpp: set RLHF_LLAMA_CPP_PYTHON, see docs/export.md"))
        if item.get_closest_marker("postgres") and not postgres.is_there():
            item.add_marker(pytest.mark.skip(reason=postgres.MISSING))


def has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session", autouse=True)
def no_disk_is_waited_for() -> Iterator[dict[str, Any]]:
    """No machine is switched off here, and every wait for its disk takes milliseconds. Gives what was set aside.

    Which calls are made, and in which order, is what ``tests/fixtures/crash.py`` takes down.
    """
    from rlhf.store import database

    set_aside = {"fsync": os.fsync, "synchronous": database.SYNCHRONOUS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(database, "SYNCHRONOUS", "OFF")
        yield set_aside


@pytest.fixture(scope="session", autouse=True)
def new_stores_are_copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A new store in a file begins as a copy of an empty one, which migrations made once. Gives what was set aside."""
    from rlhf.store import store as module

    upgrade, folder = module.upgrade, tmp_path_factory.mktemp("empty store")
    empty = folder / "empty.db"

    def upgrade_quickly(engine: Any) -> None:
        file = Path(engine.url.database or "") if engine.dialect.name == "sqlite" else None
        if file is not None and file.suffix and not file.exists():
            if not empty.exists():
                made = module.open_engine(empty)
                upgrade(made)
                made.dispose()
            copy = Path(shutil.copy2(empty, folder / f"{threading.get_ident()}.db"))
            with contextlib.suppress(OSError):  # another thread was first, or the name is none of a file
                os.link(copy, file)
            copy.unlink()
            if file.exists():
                return
        upgrade(engine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "upgrade", upgrade_quickly)
        yield upgrade


@pytest.fixture(scope="module")
def stores_are_made(new_stores_are_copies: Any) -> Iterator[None]:
    """For tests of how a store is made and opened."""
    from rlhf.store import store as module

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "upgrade", new_stores_are_copies)
        yield


@pytest.fixture(scope="session", autouse=True)
def libraries_are_compiled_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Of all workers and of later sessions: what a library was made from (sources, flags, compiler, processor) is in its name."""
    cache = getattr(request.config, "cache", None)
    if cache is None:  # -p no:cacheprovider
        yield
        return
    from rlhf.native import library

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "_own_folder", lambda: cache.mkdir("native"))
        yield


@pytest.fixture(scope="session", autouse=True)
def frames_stand_for_plots() -> Iterator[Any]:
    """A report has everything but what matplotlib draws, which takes longer than a short run. Gives what was set aside."""
    from rlhf.pipeline.report import plots

    set_aside = plots._drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_drawn", lambda draw, salt: '<svg viewBox="0 0 310 180"></svg>')
        yield set_aside


@pytest.fixture(scope="module")
def plots_are_drawn(frames_stand_for_plots: Any) -> Iterator[None]:
    """For tests of what is on the page, and of whole runs."""
    from rlhf.pipeline.report import plots

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "_drawn", frames_stand_for_plots)
        yield


@pytest.fixture(autouse=True)
def loggers_are_as_they_were() -> Iterator[None]:
    """A command that chose what is logged leaves it so for the next test in its process."""
    logger, disabled = logging.getLogger("rlhf"), logging.root.manager.disable
    level, propagates, is_off = logger.level, logger.propagate, logger.disabled
    yield
    logging.disable(disabled)
    logger.setLevel(level)
    logger.propagate, logger.disabled = propagates, is_off


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of real data and the small real model; a test that asks for it is skipped where it is absent."""
    folder = Path(os.environ.get("RLHF_ASSETS", ROOT.parent / "shared" / "assets")).resolve()
    if not folder.is_dir():
        pytest.skip(
            f"no real data: {folder} does not exist; set RLHF_ASSETS to the folder that has hh_rlhf/, models/ ..."
        )
    return folder


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    """A PostgreSQL server of this worker's own; a test that asks for it is marked ``postgres``."""
    with postgres.running_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a store can be made, once in a file and once on a server."""
    if request.param == "sqlite":
        return tmp_path / "store.db"
    server: postgres.Server = request.getfixturevalue("postgres_server")
    return server.new_database()


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """Byte-level BPE with distinct <bos>, <eos>, <pad> and a chat template. Shared: a test must not change it."""
    return tiny.build_tokenizer()


@pytest.fixture
def tiny_llama(tiny_tokenizer: Any) -> Any:
    """A fresh Llama of 36,000 random parameters (always the same ones) with the tiny tokenizer's vocabulary."""
    return tiny.build_llama(vocab_size=len(tiny_tokenizer))


@pytest.fixture
def tiny_model_folder(tmp_path: Path, tiny_llama: Any, tiny_tokenizer: Any) -> Path:
    """The tiny model and tokenizer as a transformers folder, as a recipe would name it."""
    folder = tmp_path / "tiny_model"
    tiny_llama.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def hangups_end_a_run() -> Iterator[None]:
    """As in a terminal, also where these tests were started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
