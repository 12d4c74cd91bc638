"""``PUT /v1/shares/{name}``: how the requests of a name are shared out, changed while the server runs.

{"champion": 0.8, "challenger": 0.2}
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request

from rlhf.data.message_text import describe, shown
from rlhf.errors import ConfigError
from rlhf.serving.api_errors import APIError
from rlhf.serving.api_requests import check_json
from rlhf.serving.client_keys import SharesClient
from rlhf.serving.kept_shares import KeptShares, is_share
from rlhf.serving.model_routes import ModelRoutes

log = logging.getLogger(__name__)
router = APIRouter()


@router.put("/v1/shares/{name:path}")
def change_shares(name: str, sent: Annotated[Any, Body()], request: Request, client: SharesClient) -> dict[str, Any]:
    """Only users whose share changed move; a name that shares nothing yet begins to. Gives the shares, which sum to 1."""
    check_json(sent)
    for other, share in sent.items():
        if not is_share(share):
            message = f"The share of {shown(other)} is {describe(share)}; wanted a number, such as 0.2."
            raise APIError(400, message, code="invalid_value", param=other[:100])
    routes: ModelRoutes = request.app.state.routes
    kept: KeptShares | None = request.app.state.kept_shares
    with kept.changing if kept is not None else nullcontext():
        before = routes.shares().get(name)
        try:
            routes.share(name, sent)
        except ConfigError as err:
            raise APIError(400, str(err), code="invalid_value") from None
        of = routes.shares()[name]
        if kept is not None:
            try:
                kept.write(name, of)
            except (OSError, ConfigError) as err:
                routes.unshare(name) if before is None else routes.share(name, before)
                message = f"The shares could not be kept and stay as they were: {err}"
                raise APIError(500, message, code="not_kept") from None
    log.info("shares of %r changed to %s", name, of)
    return {"name": name, "of": of}
