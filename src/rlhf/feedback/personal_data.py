"""Secrets and personal data in texts, found before anything is stored: what kind, where, and never which value.

    secret   detect-secrets: keys and tokens of services, private keys, passwords in assignments and in URLs
    phone    phonenumbers: numbers with a country code that exist
    card     16-digit and other payment cards, by their check digit (python-stdnum)
    iban     bank accounts, by their check digits (python-stdnum)
    ssn      US social security numbers in their usual form, by the rules of which exist (python-stdnum)
    email    addresses
    ip       IPv4 and IPv6 addresses that are nobody's private network (Python's ipaddress)

Names, streets and what somebody tells of their life are not found: that takes a model of the language, and misses too. Nor is what
is hidden in base64, in letters that only look like ASCII, or behind invisible ones. Every finder works offline.
A new finder is a function and a line of ``FINDERS``.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from rlhf.data.message_text import counted
from rlhf.data.strict_json import RefusedJsonError, decode
from rlhf.errors import ConfigError, DataError, require
from rlhf.feedback.tasks import SourceItems
from rlhf.store.items import Item

EXTRA = "privacy"
REFUSE, MASK, KEEP = "refuse", "mask", "keep"
ACTIONS = (REFUSE, MASK, KEEP)
MAX_REMEMBERED = 10_000
"""Texts that are not looked through again."""
MAX_PLACES = 10
"""Places of a kind that are listed."""
NOT_TRIED = frozenset({"Base64 High Entropy String", "Hex High Entropy String", "Public IP (ipv4)"})
"""Detectors of secrets that take hashes and ids for secrets, or are a finder of ours."""
EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,24}(?![\w-])")
CARD = re.compile(r"(?<![\d-])[2-6](?:[ -]?\d){12,18}(?![\d-])")
"""The first digits of payment cards; times in milliseconds begin with 1."""
IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b")
SSN = re.compile(r"(?<![\d-])\d{3}-\d{2}-\d{4}(?![\d-])")
IP = re.compile(r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7})(?![\w:]|\.\d)")

Finder = Callable[[str], Iterator[str]]
"""Takes a text, gives the values in it."""


def _secrets() -> Finder:
    require("detect_secrets", extra=EXTRA, needed_for="Looking for secrets in texts")
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class as detectors

    known: dict[str, Any] = detectors()
    plugins = [made() for name, made in sorted(known.items()) if name not in NOT_TRIED]

    def find(text: str) -> Iterator[str]:
        if "PRIVATE KEY" in text:
            yield from (
                block[0]
                for block in re.finditer(
                    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", text, re.DOTALL
                )
            )
        for line in text.splitlines():
            for plugin in plugins:
                yield from (value for value in plugin.analyze_string(line) if value)

    return find


def _phones() -> Finder:
    numbers = require("phonenumbers", extra=EXTRA, needed_for="Looking for telephone numbers in texts")
    return lambda text: (
        (match.raw_string for match in numbers.PhoneNumberMatcher(text, None)) if "+" in text else iter(())
    )


def _by_check_digits(pattern: re.Pattern[str], module: str) -> Callable[[], Finder]:
    """What looks like a number of that kind, and has its check digits or the parts that one may have."""

    def build() -> Finder:
        checks = require(f"stdnum.{module}", extra=EXTRA, needed_for="Looking for account and card numbers in texts")
        return lambda text: (
            match[0] for match in pattern.finditer(text) if checks.is_valid(re.sub(r"[ -]", "", match[0]))
        )

    return build


def _emails() -> Finder:
    return lambda text: (match[0] for match in EMAIL.finditer(text)) if "@" in text else iter(())


def _addresses() -> Finder:
    def find(text: str) -> Iterator[str]:
        for match in IP.finditer(text):
            try:
                address = ipaddress.ip_address(match[0])
            except ValueError:
                continue
            if address.is_global:
                yield match[0]

    return find


FINDERS: Mapping[str, Callable[[], Finder]] = {
    "secret": _secrets,
    "email": _emails,
    "iban": _by_check_digits(IBAN, "iban"),
    "card": _by_check_digits(CARD, "luhn"),
    "ssn": _by_check_digits(SSN, "us.ssn"),
    "phone": _phones,
    "ip": _addresses,
}
"""Kind to what builds its finder, in the order in which values are masked."""


@dataclass(slots=True)
class Findings:
    """What was found, by kind: how often, and in which records."""

    counts: Counter[str] = field(default_factory=Counter)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, where: str) -> None:
        """One value; a record is named once for each kind."""
        self.counts[kind] += 1
        places = self.places.setdefault(kind, [])
        if where not in places:
            places.append(where)

    def lines(self) -> list[str]:
        """One for each kind, with places and without values."""
        lines = []
        for kind, number in self.counts.most_common():
            places = self.places[kind]
            more = f" and {len(places) - MAX_PLACES:,} more" if len(places) > MAX_PLACES else ""
            lines.append(
                f"{kind}: {number:,} in {counted(len(places), 'record')} ({', '.join(places[:MAX_PLACES])}{more})"
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return {kind: {"count": number, "places": self.places[kind]} for kind, number in self.counts.most_common()}


class PersonalData:
    """Looks through texts, and masks what it finds.

    Args:
        action: ``refuse`` and ``keep`` only look; ``mask`` puts ``[kind]`` in place of each value.
    """

    def __init__(self, action: str) -> None:
        if action not in ACTIONS:
            raise ConfigError(f"--personal-data is {action!r}; wanted {', '.join(ACTIONS)}.")
        self.action = action
        self.finders = {kind: build() for kind, build in FINDERS.items()}
        self.findings = Findings()
        # the beginning of a conversation comes again with each of its answers
        self._looked_through = lru_cache(MAX_REMEMBERED)(self._look_through)

    def text(self, text: str, where: str) -> str:
        """A text as it may be kept, with what was found in it noted."""
        masked, kinds = self._looked_through(text)
        for kind in kinds:
            self.findings.add(kind, where)
        return masked if self.action == MASK else text

    def _look_through(self, text: str) -> tuple[str, tuple[str, ...]]:
        """A text with its values masked, and the kind of each."""
        kinds: list[str] = []
        for kind, find in self.finders.items():
            for value in sorted(set(find(text)), key=len, reverse=True):
                kinds.append(kind)
                text = text.replace(value, f"[{kind}]")
        return text, tuple(kinds)

    def value(self, value: Any, where: str) -> Any:
        """The same for all texts inside a value, names of fields and whole numbers; a number that is masked becomes a text."""
        if isinstance(value, str):
            masked = self.text(value, where)
            return masked if masked == value else self._still_json(value, masked)
        if isinstance(value, Mapping):
            named: dict[Any, Any] = {}
            for name, inner in value.items():
                masked = self.text(name, where) if isinstance(name, str) else name
                while masked in named:  # two names that were masked alike
                    masked += "_"
                named[masked] = self.value(inner, where)
            return named
        if isinstance(value, list | tuple):
            return [self.value(inner, where) for inner in value]
        if isinstance(value, int) and not isinstance(value, bool):
            masked = self.text(str(value), where)
            return value if masked == str(value) else masked
        return value

    def _still_json(self, text: str, masked: str) -> str:
        """A masked text that is JSON if the text was, such as the arguments of a tool call with a number in them."""
        if text.lstrip()[:1] not in ("{", "["):
            return masked
        try:
            whole = decode(text)
        except (json.JSONDecodeError, RefusedJsonError):
            return masked
        try:
            decode(masked)
        except (json.JSONDecodeError, RefusedJsonError):
            inner = PersonalData(self.action)  # whose findings are those that were noted already
            return inner.text(json.dumps(inner.value(whole, ""), ensure_ascii=False), "")
        return masked

    def check(self) -> None:
        """Refuse what was found, where it is to be refused.

        Raises:
            DataError: Names kinds and places, and no value.
        """
        if self.action == REFUSE and self.findings.counts:
            raise DataError(
                "There are secrets or personal data in the texts, so nothing was imported: "
                f"{'; '.join(self.findings.lines())}. Import with --personal-data mask to put [kind] in their place, or with "
                "--personal-data keep if they may be stored."
            )


def guarded_items(source_items: SourceItems, action: str) -> Findings:
    """Look through the texts and comments of items, and mask what is in them where that is wanted.

    Raises:
        DataError: Something is there, and is to be refused.
    """
    guard = PersonalData(action)
    source_items.items = [_guarded(item, guard) for item in source_items.items]
    guard.check()
    return guard.findings


def _guarded(item: Item, guard: PersonalData) -> Item:
    where, task = item.where, item.task
    responses = [replace(one, text=guard.value(one.text, where)) for one in task.responses]
    new = replace(
        task, prompt=guard.value(task.prompt, where), responses=responses, columns=guard.value(task.columns, where)
    )
    judgments = tuple(replace(one, comment=guard.text(one.comment, where)) for one in item.judgments)
    return replace(item, task=new, judgments=judgments)
