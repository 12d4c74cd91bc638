"""`rlhf serve`: a model behind OpenAI's API. Heavy imports happen inside the command."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf.cli.annotate import listening, refuse_open_door
from rlhf.cli.error_exit import Interrupted
from rlhf.cli.options import Overrides
from rlhf.errors import ConfigError
from rlhf.formatting import percentage
from rlhf.pipeline.models import named_model

if TYPE_CHECKING:
    from rlhf.config.serving import ServingConfig
    from rlhf.serving.model_routes import Served, Source

LAST_WORDS_SECONDS = 10.0
"""For telling clients whose requests did not end in time."""


def serve(
    model: Annotated[
        str, typer.Argument(help="An alias of the registry (champion), a model folder, stage of a run or hub name.")
    ],
    settings: Overrides = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="A further model, as NAME=ALIAS or NAME=FOLDER; may be repeated.", metavar="NAME=MODEL"
        ),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(
            help="A name whose requests are shared out, sticky by user: live=champion:0.9,challenger:0.1",
            metavar="NAME=SHARES",
        ),
    ] = None,
    shares_file: Annotated[
        Path | None,
        typer.Option(
            "--shares",
            help="File that keeps shares changed by PUT /v1/shares/NAME; read at start, where it overrides --share.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="Engine that samples: local, or vllm (engine.python=/opt/vllm/bin/python; docs/vllm.md)."),
    ] = None,
    registry: Annotated[Path, typer.Option(help="Folder of released models.")] = Path("registry"),
    name: Annotated[
        str | None, typer.Option(help="What requests call the first model; by default as it is named here.")
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            help="A store whose tokens are asked for as keys (`rlhf feedback token NAME`): a file, or postgresql://..."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="Keep completions and what users say of them (thumbs, edits, votes) in this store: a file, or postgresql://..."
        ),
    ] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            help="A reward model that scores a share of the answers (score_share=0.05), which none waits for."
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="The evaluation set, such as `rlhf generate` writes it: alarms where traffic is unlike it."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            help="Replicas of each reward model in Ray Serve; ray.cpus=2 ray.gpus=0.25 set their resources.", min=1
        ),
    ] = None,
    traces: Annotated[
        str | None,
        typer.Option(
            help="Send OpenTelemetry spans of requests to this collector (http://127.0.0.1:4318); no text is in them."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
    public_url: Annotated[
        str | None,
        typer.Option(help="Where people reach the server if there is a proxy in front of it: https://api.example.org"),
    ] = None,
    i_know: Annotated[
        bool, typer.Option("--i-know", help="Serve other machines without https: who listens on the way reads along.")
    ] = False,
) -> None:
    """`rlhf serve`; the first line of its help is in ``COMMANDS``, and the others are:

    Requests that are being answered end first.

    An alias of the registry is watched: when it moves, new requests go to the new version while the old ones end on theirs.

    [dim]Settings such as max_batch_size=16 come as KEY=VALUE; docs/serving.md has all of them[/dim]
    """
    from rlhf.config.base import apply_overrides
    from rlhf.config.serving import ServingConfig
    from rlhf.web.server_settings import WebSettings, is_loopback

    named = {"engine": {"kind": engine}} if engine is not None else {}
    own = [] if replicas is None else [f"ray.replicas={replicas}"]
    config = ServingConfig.of(apply_overrides(named, [*(settings or []), *own]))
    for _, why, kind in config.engine.missing():
        raise kind(why)
    web = WebSettings(host=host, port=port, public_url=public_url)
    refuse_open_door(web, i_know=i_know)
    if keys is None and not is_loopback(host):
        raise ConfigError(
            f"--host {host} is reached by other machines, and anyone there could use the model. Ask for keys: --keys annotations.db"
        )
    models = {name or model: source_of(model, registry)}
    for text in also or []:
        other, equals, source = text.partition("=")
        if not equals or not other or not source:
            raise ConfigError(f"--model {text}: write NAME=ALIAS or NAME=FOLDER.")
        if other in models:
            raise ConfigError(f"--model {text}: the name {other!r} is given twice.")
        models[other] = source_of(source, registry)
    shares = [shares_of(text) for text in share or []]
    _serve(
        config,
        web,
        models,
        shares,
        keys,
        store,
        reward=named_model(reward) if reward else None,
        reference=reference,
        traces=traces,
        shares_file=shares_file,
    )


def source_of(text: str, registry: Path) -> Source:
    """Where the weights of a name come from: an alias, where the registry has it and there is no folder of this name."""
    from rlhf.registry.registry import CHALLENGER, CHAMPION, Registry
    from rlhf.serving.model_routes import Source

    if not Path(text).exists() and registry.is_dir() and text in Registry(registry).aliases():
        return Source(text, registry)
    if not Path(text).exists() and text in (CHAMPION, CHALLENGER):
        has = f"{registry} has no alias of that name" if registry.is_dir() else f"there is no registry {registry} here"
        raise ConfigError(
            f"{text!r} is an alias of a registry, and {has}. Name its folder with --registry; a gate of a recipe and `rlhf registry "
            "promote` set aliases."
        )
    return Source(named_model(text))


def shares_of(text: str) -> tuple[str, dict[str, float]]:
    """``live=champion:0.9,challenger:0.1``.

    Raises:
        ConfigError: It is written in another way.
    """
    name, _, listed = text.partition("=")
    shares = {}
    for part in listed.split(","):
        other, _, number = part.rpartition(":")
        try:
            shares[other.strip()] = float(number)
        except ValueError:
            shares = {}
            break
    if not name or not shares or "" in shares:
        raise ConfigError(
            f"--share {text}: write NAME=MODEL:SHARE,MODEL:SHARE, such as live=champion:0.9,challenger:0.1."
        )
    return name, shares


def _serve(
    config: ServingConfig,
    web: object,
    models: dict[str, Source],
    shares: list[tuple[str, dict[str, float]]],
    keys: str | None,
    feedback: str | None,
    *,
    reward: str | None,
    reference: Path | None,
    traces: str | None,
    shares_file: Path | None,
) -> None:
    from rlhf.allocator import keep_small_blocks
    from rlhf.cli.stores import opened_store
    from rlhf.models.sources import check_there
    from rlhf.training.console import setup_logging
    from rlhf.web.server_settings import WebSettings

    assert isinstance(web, WebSettings)
    keep_small_blocks()
    setup_logging(level="INFO")  # which version answers is news that an operator wants
    for source in models.values():
        if source.registry is None:
            check_there(source.text)
    with listening(web) as server, contextlib.ExitStack() as stack:
        store = stack.enter_context(opened_store(keys)) if keys is not None else None
        kept = stack.enter_context(opened_store(feedback, must_exist=False)) if feedback is not None else None
        from rlhf.serving import create_app
        from rlhf.serving.kept_shares import KeptShares
        from rlhf.web.connections import serve as serve_connections

        spans = None
        if traces is not None:
            from rlhf.serving.request_traces import traces_to

            spans = traces_to(traces, with_text=config.trace_text)
        app = create_app(
            models=models,
            config=config,
            host_names=web.host_names,
            key_store=store,
            feedback_store=kept,
            reward=reward,
            reference=reference,
            traces=spans,
            kept_shares=KeptShares(shares_file) if shares_file is not None else None,
        )
        for name, of in shares:
            if name not in app.state.routes.shares():  # what they were changed to goes before
                app.state.routes.share(name, of)
        web = web.model_copy(update={"port": server.getsockname()[1]})
        for name, (model, version) in app.state.routes.models().items():
            print(_told(name, model, version, config))
        for name, of in app.state.routes.shares().items():
            print(f"{name}: " + ", ".join(f"{percentage(share)} {other}" for other, share in of.items()))
        if feedback is not None:
            print(
                f"Feedback is kept in {feedback}, with the prompts and completions that it is about; all other completions for "
                f"{config.completion_days:g} days."
            )
        print(
            f"Chat at {web.base_url}/, status at {web.base_url}/status, OpenAI's API is at {web.base_url}/v1, numbers for Prometheus at "
            f"{web.base_url}/metrics. Ctrl-C stops.",
            flush=True,
        )
        with contextlib.suppress(Interrupted):
            serve_connections(
                app, server, behind_proxy=web.public_url is not None, shutdown_seconds=config.drain_seconds + LAST_WORDS_SECONDS,
                at_shutdown=partial(app.state.stop, config.drain_seconds),
            )  # fmt: skip
    print("Stopped.")


def _told(name: str, model: Served, version: int | None, config: ServingConfig) -> str:
    """A line, or two, on a model that is ready."""
    of_registry = f", version {version}" if version is not None else ""
    tokens = f"{model.context:,} tokens" if model.context is not None else "no limit of tokens"
    how = model.how
    if config.ray is not None and model.kind != "policy":
        how += f", in {config.ray.replicas} replica{'s' if config.ray.replicas > 1 else ''} of Ray Serve"
    line = f"{name}: {model.source}{of_registry}, weights {model.fingerprint[:10]}, {tokens} ({how})"
    if model.tokenizer.chat_template:
        return line
    if model.kind == "policy":
        return f"{line}\n! {name} has no chat template: it is given the texts of messages, a line each."
    return f"{line}\n! {name} has no chat template: it scores texts, and no messages."
