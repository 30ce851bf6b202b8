"""The search of the palette: topics, groups, brokers, connectors and pages by name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nsmallest
from typing import Annotated
from urllib.parse import quote, urlencode
from weakref import WeakKeyDictionary

from kavka.console.auth import Role
from kavka.console.cluster import ClusterHandle
from kavka.console.context import Context
from kavka.console.errors import Refused
from kavka.console.pages.brokers import list_brokers
from kavka.console.pages.connectors import list_connectors
from kavka.console.pages.groups import list_groups
from kavka.console.pages.topics import list_topics
from kavka.console.registry import query
from kavka.console.views import navigation

MAX_TEXT_LENGTH = 200
MAX_MATCHES_PER_KIND = 7
CONNECTORS_TIMEOUT_S = 1.0
CONNECTORS_CACHE_S = 15.0


@dataclass(frozen=True, slots=True)
class Match:
    """Something with a matching name. `location` is its page."""

    kind: str
    name: str
    note: str
    icon: str
    location: str


@dataclass(frozen=True, slots=True)
class Matches:
    matches: list[Match]


@query("/search", "Find topics, groups, brokers, connectors and pages by name", topics=())
async def search(
    context: Context, text: Annotated[str, "Part of a name. Without it, the pages are listed"] = ""
) -> Matches:
    """Returns at most a few matches of each kind, the best first."""
    pattern = text.strip().lower()
    if len(pattern) > MAX_TEXT_LENGTH:
        raise Refused(f"the text has more than {MAX_TEXT_LENGTH} characters", field="text")
    base = f"{context.console.settings.base_path}/c/{quote(context.cluster.name, safe='')}"
    entries = [entry for entries in navigation(context.rights).values() for entry in entries]
    pages = {entry.nav: Match("Pages", entry.nav, "", entry.icon, base + entry.path) for entry in entries}
    if not pattern:
        return Matches(list(pages.values()))
    # The lists have only what the user may see.
    topics = {row.name: row.internal for row in await list_topics(context, pattern, internal=True)}
    groups = {row.group: row.state for row in await list_groups(context, pattern)}
    sees_cluster = context.rights.role >= Role.VIEW
    brokers = {f"Broker {row.id}": row for row in await list_brokers(context)} if sees_cluster else {}
    matches = [pages[name] for name in best(pages, pattern)]
    for name in best(topics, pattern):
        location = f"{base}/topics/{quote(name, safe='')}"
        matches.append(Match("Topics", name, "internal" if topics[name] else "", "layers", location))
    for name in best(groups, pattern):
        matches.append(Match("Groups", name, groups[name], "users", f"{base}/groups/one?{urlencode({'group': name})}"))
    for name in best(brokers, pattern):
        row = brokers[name]
        matches.append(Match("Brokers", name, row.host if row.up else "missing", "server", f"{base}/brokers/{row.id}"))
    for name in best(await _connectors(context) if sees_cluster else (), pattern):
        matches.append(
            Match("Connectors", name, "", "plug", f"{base}/pipelines/connector?{urlencode({'connector': name})}")
        )
    return Matches(matches)


def best(names: Iterable[str], pattern: str) -> list[str]:
    """Return the best matches: the name itself, then names that start with the pattern, then names
    with a word that does, then others that contain it; shorter names first."""

    def rank(name: str) -> tuple[int, int, str]:
        lower = name.lower()
        at = lower.find(pattern)
        order = 0 if lower == pattern else 1 if at == 0 else 2 if not lower[at - 1].isalnum() else 3
        return order, len(name), lower

    return nsmallest(MAX_MATCHES_PER_KIND, (name for name in names if pattern in name.lower()), key=rank)


_cache: WeakKeyDictionary[ClusterHandle, tuple[float, list[str]]] = WeakKeyDictionary()


async def _connectors(context: Context) -> list[str]:
    """Return the names of the connectors, which change rarely: they are cached for some seconds. A
    worker that does not respond in time delays one search in this period."""
    at, names = _cache.get(context.cluster, (0.0, []))
    if time.monotonic() - at > CONNECTORS_CACHE_S or not at:
        _cache[context.cluster] = time.monotonic(), names
        try:
            async with asyncio.timeout(CONNECTORS_TIMEOUT_S):
                names = [row.name for row in (await list_connectors(context)).connectors]
        except (TimeoutError, Refused):
            return names
        _cache[context.cluster] = time.monotonic(), names
    return names
