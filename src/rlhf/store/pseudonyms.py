"""Names of users as a store keeps them: a keyed hash stands in the place of what another program calls somebody.

Each store makes a key for itself, so that the same user has the same name in it, and can be found again to be forgotten.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING
from unicodedata import normalize

if TYPE_CHECKING:
    from rlhf.store.store import PreferenceStore

USER_KEY = "user key"
"""The setting that holds the key of the hashes of users."""
USER = "user-"
"""Begins every name that is the hash of somebody's."""

Pseudonym = Callable[[str, str], str]
"""Takes a tool and what it calls a user; gives the name that is stored."""


def pseudonyms(key: bytes) -> Pseudonym:
    """Names of users by a keyed hash, 16 hexadecimal digits of HMAC-SHA-256 (RFC 2104).

    A user has one name however their letters are composed: who types an accent to forget somebody may type it in another way.
    """

    def name(tool: str, user: str) -> str:
        words = "\x00".join((tool, normalize("NFC", user)))
        return USER + hmac.new(key, words.encode("utf-8", "surrogatepass"), "sha256").hexdigest()[:16]

    return name


def store_pseudonyms(store: PreferenceStore) -> Pseudonym:
    """Those of a store; its key is made when it is first asked for."""
    return pseudonyms(bytes.fromhex(store.own_secret(USER_KEY)))
