"""A page that shows a run while it works, for `rlhf watch`; it needs the extra ``web``.

watched_run   what is shown: the report's parts, made again when the run's files have changed
watch_app     the page on this machine, and what it asks for every few seconds
"""

from __future__ import annotations

from rlhf.errors import require_all

require_all("starlette", "uvicorn", extra="web", needed_for="`rlhf watch`")
