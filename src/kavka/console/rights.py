"""Rights of users in a cluster: a role for the whole cluster, and roles for prefixes of topics.

The settings `console.rights.WHO` of a cluster replace the role of the users that they match. WHO is
a user name, `@GROUP` for a group of the identity provider, or `*` for all users without an entry.
The value has roles, each for the whole cluster or, after a colon, for a prefix:

    console.rights.anna = view, operate:payments.
    console.rights.@payments = operate:payments., view:orders.
    console.rights.* = none

Operations and pages declare the topics that they concern (`registry.py`, `views.py`). Without a
declaration they require a role for the whole cluster. A user without such a role gets a
`LimitedCluster`, whose samples contain only the topics of the user's prefixes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from kavka.console.auth import Role, User
from kavka.console.cluster import ActiveAlert, ClusterHandle
from kavka.console.errors import Refused
from kavka.console.settings import SettingsError
from kavka.console.state import Group, Sample, Topic

PREFIX = "rights."
EVERYONE = "*"
GROUP = "@"


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of a user: the role in the whole cluster, and (prefix, role) pairs."""

    role: Role
    prefixes: tuple[tuple[str, Role], ...] = ()

    def on_topic(self, topic: str) -> Role:
        return max(self.role, *(role for prefix, role in self.prefixes if topic.startswith(prefix)), Role.NONE)

    @property
    def highest(self) -> Role:
        return max(self.role, *(role for _, role in self.prefixes), Role.NONE)

    def on_topics(self, topics: Iterable[str] | None) -> Role:
        """Return the role on all of these topics: in the whole cluster if None, the highest role if
        there are none."""
        if topics is None:
            return self.role
        return min((self.on_topic(topic) for topic in topics if topic), default=self.highest)


NO_RIGHTS = Rights(Role.NONE)


class RightsTable:
    """The settings `console.rights.…` of a cluster. Raises SettingsError if they are invalid."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._rights = {
            name.removeprefix(PREFIX): _parse(name, text) for name, text in settings.items() if name.startswith(PREFIX)
        }

    def of(self, user: User) -> Rights:
        # A user could have the name of a group's entry.
        name = "" if user.name.startswith(GROUP) else user.name
        entries = [self._rights[who] for who in (name, *(GROUP + g for g in user.groups)) if who in self._rights]
        if not entries:
            return self._rights.get(EVERYONE, Rights(user.role))
        return Rights(max(entry.role for entry in entries), tuple(p for entry in entries for p in entry.prefixes))


def _parse(name: str, text: str) -> Rights:
    role, prefixes = Role.NONE, []
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        word, colon, prefix = (piece.strip() for piece in entry.partition(":"))
        try:
            entry_role = Role.by_word(word)
        except ValueError as error:
            raise SettingsError(f"console.{name}: {error}") from None
        if colon and not prefix:
            raise SettingsError(f"console.{name}: the prefix of '{entry}' is missing")
        if prefix:
            prefixes.append((prefix, entry_role))
        else:
            role = max(role, entry_role)
    return Rights(role, tuple(prefixes))


class LimitedCluster:
    """A cluster with only the topics that a user may view, and the committed offsets in these
    topics. Rates and alerts, which concern all topics, are missing."""

    alerts: tuple[ActiveAlert, ...] = ()
    rates: tuple[Any, ...] = ()

    def __init__(self, cluster: ClusterHandle, rights: Rights) -> None:
        self._cluster = cluster
        self._rights = rights

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    @property
    def sample(self) -> Sample | None:
        sample = self._cluster.sample
        return None if sample is None else self._visible(sample)

    async def state(self, *, groups: bool = False) -> Sample:
        return self._visible(await self._cluster.state(groups=groups))

    async def topic(self, name: str, *, groups: bool = False) -> Topic:
        if self._rights.on_topic(name) < Role.VIEW:
            raise Refused(f"there is no topic '{name}'", 404)
        return await self._cluster.topic(name, groups=groups)

    def _visible(self, sample: Sample) -> Sample:
        topics = {n: topic for n, topic in sample.topics.items() if self._rights.on_topic(n) >= Role.VIEW}
        groups = {}
        for name, group in sample.groups.items():
            offsets = {tp: offset for tp, offset in (group.offsets or {}).items() if tp.topic in topics}
            if offsets:
                groups[name] = _with_offsets(group, offsets)
        return replace(sample, topics=topics, groups=groups)


def _with_offsets(group: Group, offsets: dict[Any, int]) -> Group:
    lags = None if group.lags is None else {tp: lag for tp, lag in group.lags.items() if tp in offsets}
    return replace(group, offsets=offsets, lags=lags)


def limited(cluster: ClusterHandle, rights: Rights) -> ClusterHandle:
    """Return the cluster as a user with these rights sees it."""
    if rights.role >= Role.VIEW:
        return cluster
    return cast(ClusterHandle, LimitedCluster(cluster, rights))
