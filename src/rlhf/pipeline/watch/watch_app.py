"""The page of `rlhf watch`: a frame that asks every few seconds for what has changed.

GET  /         the page
GET  /now      the part of it that changes; 304 where the browser has it
GET  /report   the run's report.html, once there is one
"""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rlhf.pipeline.report import page as report_page
from rlhf.pipeline.watch.watched_run import WatchedRun
from rlhf.web.security_middleware import Shield

MAX_BODY_BYTES = 1024


def watch_app(folder: Path, *, host_names: frozenset[str] = frozenset({"localhost", "127.0.0.1"})) -> Starlette:
    """The page about one run.

    Args:
        folder: Of the run.
        host_names: Names that the server answers to, see ``rlhf.web.security_middleware``.
    """
    watched = WatchedRun(folder)

    def whole(request: Request) -> Response:
        now, version = watched.view()
        template = report_page.environment().get_template("watch_page.jinja")
        return HTMLResponse(template.render(name=folder.resolve().name, now=Markup(now), version=version))

    def now(request: Request) -> Response:
        text, version = watched.view()
        headers = {"ETag": f'"{version}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return HTMLResponse(text, headers=headers)

    def report(request: Request) -> Response:
        if watched.report is None:
            raise HTTPException(404, "This run has no report yet.")
        return FileResponse(watched.report, media_type="text/html")

    def styles(request: Request) -> Response:
        return FileResponse(report_page.TEMPLATES / "page.css", media_type="text/css")

    routes = [
        Route("/", whole),
        Route("/now", now),
        Route("/report", report),
        Route("/static/report.css", styles),
        Mount("/static", StaticFiles(packages=[("rlhf.pipeline.watch", "static"), ("rlhf.web", "static")])),
    ]
    shield = Middleware(
        Shield, host_names=host_names, max_body_bytes=MAX_BODY_BYTES, is_https=False, error_page=_refused,
        inline_styles=True,
    )  # fmt: skip
    return Starlette(routes=routes, middleware=[shield])


def _refused(_: Request, status: int, sentence: str) -> Response:
    return PlainTextResponse(sentence, status)
