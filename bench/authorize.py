"""The time to authorize a request with one topic, with 10,000 ACLs: the first request of a
connection, and its later requests, which use the connection's cache."""

from __future__ import annotations

import statistics
from collections import defaultdict
from time import perf_counter
from typing import Any

from bench.acl_produce import other_bindings
from bench.measure import Options, Row
from bench.python_clients import OwnClientFigure
from kavka.api import authorization
from kavka.api.context import RequestContext
from kavka.common.metrics import Registry
from kavka.security.acls import Acl, Operation, ResourcePattern, ResourceType
from kavka.security.authorizer import AclTable, Authorizer
from tests.support.acls import acl

ACLS = 10_000
CALLS = 20_000
# Calls that are timed together.
GROUP = 200
HOST = "10.0.0.1"
PRINCIPAL = "User:alice"
# Longer than the prefixes in the table, so that every length of a prefix is looked up.
TOPIC = f"orders-{'x' * 60}"


def run(options: Options) -> list[Row]:
    authorizer = _authorizer()
    connection = _context(authorizer)
    assert not authorization.denied(connection, Operation.WRITE, ResourceType.TOPIC, [TOPIC])
    assert authorization.denied(connection, Operation.WRITE, ResourceType.TOPIC, ["other"])
    cached = [_microseconds([connection] * CALLS) for _ in range(options.pairs)]
    cold = [_microseconds([_context(authorizer) for _ in range(CALLS)]) for _ in range(options.pairs)]
    what = f"authorize a Produce of 1 topic, {ACLS:,} ACLs"
    return [
        OwnClientFigure(f"{what}, from the cache", "µs", [(value, 0) for value in cached], "≤ 1 µs", at_most=1),
        OwnClientFigure(f"{what}, first request of a connection", "µs", [(v, 0) for v in cold], "≤ 50 µs", at_most=50),
    ]


def _authorizer() -> Authorizer:
    acls: dict[ResourcePattern, set[Acl]] = defaultdict(set)
    for pattern, entry in [acl(Operation.WRITE, ResourceType.TOPIC, TOPIC, principal=PRINCIPAL), *other_bindings(ACLS)]:
        acls[pattern].add(entry)
    table = AclTable()
    for pattern, entries in acls.items():
        table.replace(pattern, frozenset(entries))
    assert len(table) > ACLS
    return Authorizer(table, metrics=Registry())


def _context(authorizer: Authorizer) -> RequestContext:
    broker: Any = None
    client = authorizer.client(PRINCIPAL, HOST)
    return RequestContext(broker, 0, 1, "c", "PLAINTEXT", HOST, PRINCIPAL, authorizer=client, api_name="Produce")


def _microseconds(contexts: list[RequestContext]) -> float:
    """Return the time of the check that a Produce makes: the median of groups of calls."""
    check = authorization.denied
    times = []
    for first in range(0, len(contexts), GROUP):
        group = contexts[first : first + GROUP]
        started = perf_counter()
        for context in group:
            check(context, Operation.WRITE, ResourceType.TOPIC, (TOPIC,))
        times.append((perf_counter() - started) / len(group))
    return statistics.median(times) * 1e6
