"""What operations and pages are called with."""

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
    """The one console of a process: what all requests share."""

    settings: ConsoleSettings
    store: Store
    auth: Auth
    clusters: dict[str, ClusterHandle] = field(default_factory=dict)
    alerts: dict[str, Alerts] = field(default_factory=dict)
    _said: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def say(self, message: str) -> str:
        """Keep a line for the next page; the token in its address finds it, once."""
        token = secrets.token_urlsafe(9)
        self._said[token] = message
        while len(self._said) > MAX_SAID:
            self._said.popitem(last=False)
        return token

    def said(self, token: str) -> str:
        return self._said.pop(token, "")

    def cluster(self, name: str) -> ClusterHandle:
        found = self.clusters.get(name)
        if found is None:
            raise Refused(f"there is no cluster '{name}' here", 404)
        return found


@dataclass(frozen=True, slots=True)
class Context:
    """One request: who asks (`user`, from `address`), and of which cluster; None for what is of none."""

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
        """Whether the user may go on: a stream outlives the request that began it."""
        return self.console.auth.is_current(self.user)

    def require(self, role: Role) -> None:
        if self.user.role < role:
            raise Refused(f"this takes the role {role.word}, and {self.user.name} has {self.user.role.word}", 403)


def fingerprint(*parts: object) -> str:
    """Of what a page shows: an action that is confirmed there is refused when it is not so any more."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def check_confirmation(*, typed: str, name: str, seen: str, now: str) -> None:
    """`typed` must be the name. `seen` is the page's fingerprint, "" from a program that has seen no page."""
    if typed != name:
        raise Refused(f"type '{name}' to confirm; nothing was done", field="confirm")
    check_seen(seen, now)


def check_seen(seen: str, now: str) -> None:
    if seen and seen != now:
        raise Refused("this has changed since the page was shown: look again; nothing was done", 409)
