"""The arguments of operations and pages."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from kavka.client.admin.aio import Admin
from kavka.console.alerts import Alerts
from kavka.console.auth import Auth, Role, User
from kavka.console.cluster import ClusterHandle
from kavka.console.errors import Refused
from kavka.console.metrics import Metrics
from kavka.console.oidc import IdentityProvider
from kavka.console.rights import NO_RIGHTS, Rights
from kavka.console.searches import running_searches
from kavka.console.settings import ConsoleSettings
from kavka.console.store import Store

MAX_STORED_MESSAGES = 1000


@dataclass
class Console:
    """Owns the state of the console that all requests share."""

    settings: ConsoleSettings
    store: Store
    auth: Auth
    provider: IdentityProvider | None = None
    clusters: dict[str, ClusterHandle] = field(default_factory=dict)
    alerts: dict[str, Alerts] = field(default_factory=dict)
    metrics: Metrics = field(init=False)
    _messages: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.clusters, lambda: self.auth.session_count, lambda: running_searches.count)

    def store_message(self, message: str) -> str:
        """Store a message for the next page. Returns its token for `take_message`."""
        token = secrets.token_urlsafe(9)
        self._messages[token] = message
        while len(self._messages) > MAX_STORED_MESSAGES:
            self._messages.popitem(last=False)
        return token

    def take_message(self, token: str) -> str:
        """Remove and return a stored message, "" if there is none."""
        return self._messages.pop(token, "")

    def cluster(self, name: str) -> ClusterHandle:
        """Return the cluster. Raises Refused (404) if there is no such cluster."""
        cluster = self.clusters.get(name)
        if cluster is None:
            raise Refused(f"there is no cluster '{name}' here", 404)
        return cluster


@dataclass(frozen=True, slots=True)
class Context:
    """A request: its user, the client's address and the cluster. `selected_cluster` is None for
    requests that do not belong to a cluster. The role of `user` is the role on the topics of the
    request. `clusters` are the clusters that the user may view."""

    console: Console
    user: User
    address: str
    selected_cluster: ClusterHandle | None = None
    rights: Rights = NO_RIGHTS
    clusters: tuple[ClusterHandle, ...] = ()

    @property
    def cluster(self) -> ClusterHandle:
        if self.selected_cluster is None:
            raise Refused("the request does not belong to a cluster", 404)
        return self.selected_cluster

    @property
    def admin(self) -> Admin:
        return self.cluster.admin

    def is_current(self) -> bool:
        """Whether the user still has access. A stream checks this, since it can outlive the
        user's login."""
        return self.console.auth.is_current(self.user)

    def require(self, role: Role, topics: Iterable[str] | None = None) -> None:
        """Raise Refused (403) unless the user has this role on all of the topics, or in the whole
        cluster if `topics` is None."""
        actual_role = self.rights.on_topics(topics)
        if actual_role < role:
            raise Refused(f"this requires the role {role.word}, and {self.user.name} has {actual_role.word}", 403)


def fingerprint(*parts: object) -> str:
    """Return a fingerprint of the content of a page. An action confirmed on the page is rejected if
    the content has changed."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def check_confirmation(*, typed: str, name: str, seen: str = "", current: str = "") -> None:
    """Raise Refused unless `typed` is the name and the page is up to date (`check_seen`)."""
    if typed != name:
        raise Refused(f"type '{name}' to confirm; nothing was done", field="confirm")
    check_seen(seen, current)


def check_seen(seen: str, current: str) -> None:
    """Raise Refused unless the fingerprint of the page is the current one. `seen` is "" if the
    request does not come from a page."""
    if seen and seen != current:
        raise Refused("the data has changed since the page was loaded: reload it; nothing was done", 409)
