"""The arguments of operations and pages."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field

from kavka.client.admin.aio import Admin
from kavka.console.alerts import Alerts
from kavka.console.auth import Auth, Role, User
from kavka.console.cluster import ClusterHandle
from kavka.console.errors import Refused
from kavka.console.settings import ConsoleSettings
from kavka.console.store import Store

MAX_SAID = 1000


@dataclass
class Console:
    """Owns the state of the console that all requests share."""

    settings: ConsoleSettings
    store: Store
    auth: Auth
    clusters: dict[str, ClusterHandle] = field(default_factory=dict)
    alerts: dict[str, Alerts] = field(default_factory=dict)
    _said: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def say(self, message: str) -> str:
        """Store a message for the next page. The token in the URL retrieves it once."""
        token = secrets.token_urlsafe(9)
        self._said[token] = message
        while len(self._said) > MAX_SAID:
            self._said.popitem(last=False)
        return token

    def said(self, token: str) -> str:
        return self._said.pop(token, "")

    def cluster(self, name: str) -> ClusterHandle:
        cluster = self.clusters.get(name)
        if cluster is None:
            raise Refused(f"there is no cluster '{name}' here", 404)
        return cluster


@dataclass(frozen=True, slots=True)
class Context:
    """A request: its user, its address and its cluster, None for requests without a cluster."""

    console: Console
    user: User
    address: str
    of: ClusterHandle | None = None

    @property
    def cluster(self) -> ClusterHandle:
        if self.of is None:
            raise Refused("this is not about one cluster", 404)
        return self.of

    @property
    def admin(self) -> Admin:
        return self.cluster.admin

    @property
    def store(self) -> Store:
        return self.console.store

    def is_current(self) -> bool:
        """Whether the user still has access: a stream can outlive the user's login."""
        return self.console.auth.is_current(self.user)

    def require(self, role: Role) -> None:
        if self.user.role < role:
            raise Refused(f"this takes the role {role.word}, and {self.user.name} has {self.user.role.word}", 403)


def fingerprint(*parts: object) -> str:
    """A fingerprint of the content of a page. An action confirmed on the page is rejected if the
    content has changed."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def check_confirmation(*, typed: str, name: str, seen: str, now: str) -> None:
    """Raise Refused unless `typed` is the name. `seen` is the page's fingerprint, "" without a
    page."""
    if typed != name:
        raise Refused(f"type '{name}' to confirm; nothing was done", field="confirm")
    check_seen(seen, now)


def check_seen(seen: str, now: str) -> None:
    if seen and seen != now:
        raise Refused("this has changed since the page was shown: look again; nothing was done", 409)
