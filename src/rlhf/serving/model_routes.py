"""Which weights answer to which name, and how they are changed while requests are answered.

A name stands for a model folder, or for an alias of a registry, which is watched: when the alias moves, the new version is loaded beside
the old one, new requests go to it, and the old one leaves memory when its last request is over. A version that is damaged is refused
and the old one goes on. A name may also share its requests out among others (canary, A/B): a user always gets the same share.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from rlhf.errors import ConfigError, ModelError, RLHFError
from rlhf.registry.registry import Registry
from rlhf.serving.prometheus_metrics import ServingMetrics
from rlhf.serving.served_policy import ServedPolicy
from rlhf.serving.served_scorer import ServedScorer

log = logging.getLogger(__name__)

Served: TypeAlias = ServedPolicy | ServedScorer
Load = Callable[[str, Served | None], Served]
"""Takes a folder or hub name, and the model whose place it is to take; None where that stays, or there is none."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the weights of a name come from."""

    text: str
    """A folder, a hub name, or an alias of the registry."""
    registry: Path | None = None
    """None where it is no alias."""


@dataclass(slots=True)
class _Route:
    source: Source
    model: Served
    version: int | None = None
    """In the registry."""
    refused: int | None = None
    """A version that could not be loaded, which is not tried again."""


@dataclass(slots=True)
class Shares:
    """A name whose requests are shared out."""

    of: dict[str, float] = field(default_factory=dict)
    """Name -> share; they sum to 1."""

    def pick(self, name: str, user: str) -> str:
        """The same for a user as long as the shares stay, and for most of them when the shares change a little."""
        digest = hashlib.sha256(f"{name}\0{user}".encode("utf-8", "surrogatepass")).digest()
        at, total = int.from_bytes(digest[:8], "big") / 2**64, 0.0
        for other, share in self.of.items():
            total += share
            if at < total:
                return other
        return next(reversed(self.of))


class ModelRoutes:
    """The names of a server.

    Args:
        load: Loads a model.
        metrics: Told of changes.
    """

    def __init__(self, load: Load, metrics: ServingMetrics) -> None:
        self._load, self._metrics = load, metrics
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        self._routes: dict[str, _Route] = {}
        self._shares: dict[str, Shares] = {}

    def add(self, name: str, source: Source) -> Served:
        """Load the weights of a new name.

        Raises:
            ModelError: They are not available or damaged.
            ConfigError: The name is taken.
        """
        if name in self.names():
            raise ConfigError(f"The name {name!r} is given to two models; give each its own.")
        version = _version(source)
        model = self._loaded(source, version)
        with self._lock:
            self._routes[name] = _Route(source, model, version)
        return model

    def share(self, name: str, shares: Mapping[str, float]) -> None:
        """Share the requests of a name out among other names; said again, the shares change.

        Raises:
            ConfigError: A name is unknown or no model's, or a share is negative or all are 0.
        """
        with self._lock:
            for other, share in shares.items():
                if other not in self._routes:
                    raise ConfigError(f"{other!r} is no model of this server; it has {', '.join(self._routes)}.")
                if not 0 <= share <= sys.float_info.max:
                    raise ConfigError(f"The share of {other!r} is {share}; wanted 0 or more.")
            if name in self._routes:
                raise ConfigError(f"{name!r} is a model's name; give the shares another one.")
            largest = max(shares.values(), default=0)
            if largest <= 0:
                raise ConfigError("All shares are 0: nobody would answer.")
            kinds = {isinstance(self._routes[other].model, ServedPolicy) for other in shares}
            if len(kinds) > 1:
                raise ConfigError(
                    f"{name!r} would be shared by language models and reward models; share it by one kind."
                )
            is_summable = sum(shares.values()) <= sys.float_info.max
            parts = dict(shares) if is_summable else {other: share / largest for other, share in shares.items()}
            total = sum(parts.values())
            self._shares[name] = Shares({other: part / total for other, part in parts.items()})

    def unshare(self, name: str) -> None:
        """A name shares nothing any more."""
        with self._lock:
            self._shares.pop(name, None)

    def names(self) -> list[str]:
        """What requests may name."""
        with self._lock:
            return [*self._routes, *self._shares]

    def shares(self) -> dict[str, dict[str, float]]:
        """Of the names that share requests out."""
        with self._lock:
            return {name: dict(shares.of) for name, shares in self._shares.items()}

    def pick(self, name: str, user: str) -> tuple[str, Served]:
        """The model that answers, and its own name.

        Raises:
            KeyError: There is no such name.
        """
        with self._lock:
            if name in self._shares:
                name = self._shares[name].pick(name, user)
            model = self._routes[name].model
        self._metrics.requests.labels(model=name).inc()
        return name, model

    def models(self) -> dict[str, tuple[Served, int | None]]:
        """Name -> model and its version in the registry."""
        with self._lock:
            return {name: (route.model, route.version) for name, route in self._routes.items()}

    def refresh(self) -> list[str]:
        """Look whether aliases moved, and load what they name now; gives the names that changed."""
        changed = []
        with self._changing:
            for name, route in list(self._routes.items()):
                try:
                    version = _version(route.source)
                except RLHFError as err:
                    log.warning("%s: %s", name, err)
                    continue
                if version in (None, route.version, route.refused):
                    continue
                try:
                    model = self._loaded(route.source, version, route)
                    check_same_kind(route.model, model)
                except Exception as err:  # whatever is wrong with the new weights, the old ones go on
                    route.refused = version
                    self._metrics.swaps.labels(outcome="refused").inc()
                    log.error(
                        "%s goes on with version %s: version %s can't be served: %s", name, route.version, version, err
                    )
                    continue
                with self._lock:
                    route.model, route.version, route.refused = model, version, None
                self._metrics.swaps.labels(outcome="swapped").inc()
                log.info("%s is version %s now (weights %s)", name, version, model.fingerprint[:8])
                changed.append(name)
        return changed

    def _loaded(self, source: Source, version: int | None, old: _Route | None = None) -> Served:
        if source.registry is None or version is None:
            return self._load(source.text, None)
        registry = Registry(source.registry)
        registry.verify(version)
        path = str(registry.path(version))
        with self._lock:
            routes = list(self._routes.values())
        there = next((route.model for route in routes if route.model.source == path), None)
        is_shared = old is not None and sum(route.model is old.model for route in routes) > 1
        model = there or self._load(path, None if old is None or is_shared else old.model)
        model.version = version
        return model

    def close(self) -> None:
        """End what models have started outside this process."""
        for model, _ in self.models().values():
            if isinstance(model, ServedPolicy):
                model.close()


def check_same_kind(old: Served, new: Served) -> None:
    """Refuse to put a language model in the place of a reward model, or the other way round.

    Raises:
        ModelError: They are of two kinds.
    """
    if isinstance(old, ServedPolicy) is not isinstance(new, ServedPolicy):
        kinds = {True: "a language model", False: "a reward model"}
        new_kind, old_kind = (kinds[isinstance(model, ServedPolicy)] for model in (new, old))
        raise ModelError(f"it is {new_kind}, and the name answered as {old_kind}")


def _version(source: Source) -> int | None:
    """What an alias names now; None for what is no alias."""
    if source.registry is None:
        return None
    registry = Registry(source.registry)
    current = registry.current(source.text)
    if current is None:
        aliases = ", ".join(registry.aliases()) or "none"
        raise ModelError(f"The registry {source.registry} has no alias {source.text!r}. It has: {aliases}.")
    return current.number
