"""What the owner of a server decides, and the key it signs invitations with."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import socket
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from sqlalchemy.engine import Engine

from rlhf.config.base import BaseConfig
from rlhf.errors import ConfigError, StorageError
from rlhf.files import fsync, storage_errors
from rlhf.store import access
from rlhf.store.database import close_to_others, place_of

ADDRESS = "address"
"""The store's setting that says where its server was last reached: links that are made next to the server begin with it."""
KEY_BYTES = 32
KEY_SUFFIX = ".key"
DEFAULT_KEY_FILE = "rlhf-annotation.key"
"""In the current folder, for a store that is not a file; the store knows its fingerprint and refuses another."""


class WebSettings(BaseConfig):
    """How a server over a store behaves."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on."""
    public_url: str | None = None
    """Where people reach the server, such as https://label.example.org, if a proxy is in front of it."""
    session_days: float = Field(30, gt=0)
    """After so long people sign in again."""
    invitation_days: float = Field(7, gt=0)
    """After so long an invitation that nobody used is void."""
    max_body_bytes: int = Field(2**20, ge=1024)
    """Of one request."""
    signin_tries: str = "10/5minutes"
    """Passwords that may be tried for one name from one address, and ten times as many from one address for all names. Of
    invitations and tokens, ten times as many that are no good; who holds a good one always comes in."""
    calls: str = "300/minute"
    """What one signed-in person may send (judgments, skips, undos): more than anybody can judge. Tasks, of which a page asks
    for one with each judgment, are counted apart at the same rate."""
    looks: str = "600/minute"
    """Pages that one signed-in person may open, and ten times as many one address from which nobody is signed in."""
    events: str = "6000/minute"
    """What one program may send."""

    @field_validator("public_url")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise ValueError("wanted only scheme and host, such as https://label.example.org")
        return f"{parts.scheme}://{parts.netloc}"

    @field_validator("signin_tries", "calls", "looks", "events")
    @classmethod
    def _is_a_rate(cls, value: str) -> str:
        import limits

        try:
            limits.parse(value)
        except ValueError:
            raise ValueError("wanted a number and a time, such as 10/minute or 100/5minutes") from None
        return value

    @property
    def is_https(self) -> bool:
        """Whether people come by https; cookies then travel no other way."""
        return self.public_url is not None and self.public_url.startswith("https://")

    @property
    def base_url(self) -> str:
        """What links begin with."""
        if self.public_url is not None:
            return self.public_url
        host = "127.0.0.1" if is_wildcard(self.host) else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def host_names(self) -> frozenset[str]:
        """Names this server answers to; addresses in digits it always answers to."""
        names = {"localhost", self.host.lower()}
        if self.public_url is not None:
            names.add(urlsplit(self.public_url).hostname or "")
        return frozenset(names)


def is_wildcard(host: str) -> bool:
    """Whether listening on this address is listening on all of them."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def key_file(engine: Engine) -> Path:
    """Where the signing key of a store lies: next to a file, else in the current folder."""
    if engine.dialect.name == "sqlite" and engine.url.database:
        return Path(engine.url.database + KEY_SUFFIX)
    return Path(DEFAULT_KEY_FILE)


def signing_key(engine: Engine, file: Path | None = None) -> bytes:
    """The store's signing key; made at the first call, readable for its owner alone.

    A key next to a file is that store's. For a store on a server the key is looked for in a folder that may be the wrong one, so
    there the store itself says which key it is.

    Raises:
        StorageError: The file can't be written or read, or holds no key.
        ConfigError: The store's links are signed with another key.
    """
    path = file or key_file(engine)
    on_server = engine.dialect.name != "sqlite"
    known = access.key_of_store(engine) if on_server else None
    if known is not None and not path.exists():
        raise _other_key(engine, known, f"there is none at {path.absolute()}")
    with storage_errors(path):
        if not path.exists():
            _make_key(path)
        close_to_others(path)
        try:
            key = path.read_bytes()
        except OSError as err:
            raise StorageError(
                f"The signing key {path} can't be read ({err.strerror}); who started the server?"
            ) from None
    if len(key) != KEY_BYTES:
        raise StorageError(
            f"{path} has {len(key)} bytes and is not a signing key ({KEY_BYTES} bytes). Delete it: a new one is made, and "
            "invitations that nobody used yet have to be sent again."
        )
    if on_server:
        known = known or access.keep_key(engine, key, f"{socket.gethostname()}:{path.absolute()}")
        if known.fingerprint != access.fingerprint_of(key):
            raise _other_key(engine, known, f"{path.absolute()} is another one")
    return key


def _other_key(engine: Engine, known: access.KnownKey, place: str) -> ConfigError:
    return ConfigError(
        f"The links of {place_of(engine)} are signed with the key that was made at {known.place}, and {place}: links made here "
        "would open nothing. Run the command in that folder, or copy the key here. If it is lost, have the database forget it "
        f"(DELETE FROM settings WHERE name = '{access.SIGNING_KEY}'), start the server again and send open invitations again."
    )


def _make_key(path: Path) -> None:
    """Write it aside, then link it: of two servers that start at once one makes the key and both read that one."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        fsync(aside)
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
        fsync(path.parent)
    finally:
        aside.unlink(missing_ok=True)
