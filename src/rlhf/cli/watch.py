"""`rlhf watch`: a page about a run while it works. Heavy imports happen inside the command."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from rlhf.cli.annotate import listening
from rlhf.cli.error_exit import Interrupted
from rlhf.cli.options import RUNS, RunsOption
from rlhf.errors import ConfigError

SECONDS = 5.0
"""For a server to answer."""


def watch(
    run: Annotated[
        str, typer.Argument(help="A run folder, its name in --runs, or the address of a server: http://...")
    ],
    runs: RunsOption = RUNS,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8001,
) -> None:
    """`rlhf watch`; the first line of its help is in ``COMMANDS``, and the others are:

    Curves, newest samples and alarms, read from the run's files every few seconds. Nothing is written, and the run
    need not be on this machine's processes: a folder that somebody else writes to will do.

    Of a server that `rlhf serve` started, this prints the address of its own status page.
    """
    if run.startswith(("http://", "https://")):
        print(f"Status page at {status_page(run)}")
        return
    from rlhf.pipeline.runs import find_run
    from rlhf.pipeline.watch.watch_app import watch_app
    from rlhf.web.connections import serve
    from rlhf.web.server_settings import WebSettings

    folder = Path(run) if Path(run).is_dir() else find_run(run, runs)
    settings = WebSettings(port=port)
    with listening(settings) as server, contextlib.suppress(Interrupted):
        settings = settings.model_copy(update={"port": server.getsockname()[1]})
        print(f"Watching {folder} at {settings.base_url}/. Ctrl-C stops; the run goes on.", flush=True)
        serve(watch_app(folder, host_names=settings.host_names), server, behind_proxy=False)
    print("Stopped.")


def status_page(address: str) -> str:
    """Where a server shows its status.

    Raises:
        ConfigError: No server of ours answers there.
    """
    import httpx2

    address = address.rstrip("/").removesuffix("/v1").removesuffix("/status")
    try:
        answer = httpx2.get(f"{address}/health", timeout=SECONDS)
        is_ours = answer.status_code in (200, 503) and answer.json().get("status") in ("ok", "draining")
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, AttributeError) as err:
        raise ConfigError(
            f"No server answers at {address} ({str(err) or type(err).__name__}); start one with `rlhf serve`."
        ) from None
    if not is_ours:
        raise ConfigError(
            f"What answers at {address} is no server of `rlhf serve`: {address}/health says other things."
        )
    return f"{address}/status"
