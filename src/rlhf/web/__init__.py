"""What every server over a store needs: people who sign in, rates, refusals, security headers, and a loop that nobody holds up.

base_app             the application that a server's pages are added to
auth, sign_in        invitations, sessions, roles and CSRF tokens; the pages of signing in and out
events               the door for production feedback
security_middleware  which names are answered to, how large a request may be, what a browser may do with an answer
server_settings      addresses, rates, how long things last, and the key that invitations are signed with
connections          how long half a request is waited for, and how many connections are kept
"""

from __future__ import annotations

from rlhf.errors import require_all

require_all(
    "fastapi", "itsdangerous", "argon2", "limits", "python_multipart", extra="web", needed_for="The web server",
)  # fmt: skip

from rlhf.web.auth import invitation_link  # noqa: E402 (only where the packages are there)
from rlhf.web.server_settings import WebSettings  # noqa: E402

__all__ = ["WebSettings", "invitation_link"]
