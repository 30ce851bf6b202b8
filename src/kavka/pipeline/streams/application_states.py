"""The states of a KafkaStreams application, as in Kafka, and the transitions between them.

CREATED ── REBALANCING ⇄ RUNNING      a query is compiled and started; it runs
   │            │           │
   ├────────────┴───────────┤
   │                        │
PENDING_SHUTDOWN      PENDING_ERROR   the query stops
   │                        │
NOT_RUNNING               ERROR       no query; the application cannot be started again
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """In the order in which Kafka numbers them in its metrics."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    PENDING_ERROR = "PENDING_ERROR"
    ERROR = "ERROR"


TRANSITIONS: dict[State, frozenset[State]] = {
    State.CREATED: frozenset({State.REBALANCING, State.PENDING_SHUTDOWN}),
    State.REBALANCING: frozenset({State.RUNNING, State.PENDING_SHUTDOWN, State.PENDING_ERROR}),
    State.RUNNING: frozenset({State.REBALANCING, State.PENDING_SHUTDOWN, State.PENDING_ERROR}),
    State.PENDING_SHUTDOWN: frozenset({State.NOT_RUNNING}),
    State.PENDING_ERROR: frozenset({State.ERROR}),
    State.NOT_RUNNING: frozenset(),
    State.ERROR: frozenset(),
}

# A query runs or is started.
ACTIVE = frozenset({State.REBALANCING, State.RUNNING})
# The application has ended.
ENDED = frozenset({State.NOT_RUNNING, State.ERROR})
