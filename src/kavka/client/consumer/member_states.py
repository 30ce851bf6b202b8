"""[pure] The lifecycle of a group member: one enum, and a table of transitions for each protocol.

Classic protocol (`classic.py`):

    UNJOINED --JoinGroup--> PREPARING_REBALANCE --response--> COMPLETING_REBALANCE --+
       ^                         ^      ^                                            |
       | LeaveGroup              |      | rebalance         SyncGroup, assignment    |
    LEAVING <-- any state     FENCED <- STABLE <-------------------------------------+

Consumer protocol (`modern.py`):

    UNJOINED --heartbeat with epoch 0--> JOINING --response--> RECONCILING <--> STABLE
       ^                                                            |             |
       +-- lost partitions are given up -- FENCED <-- fenced, or polls too rarely-+

If a step of joining fails, a classic member returns to UNJOINED and retries.
"""

from __future__ import annotations

from enum import Enum


class MemberState(Enum):
    UNJOINED = "not a member; owned partitions, if any, were prepared for the next rebalance"
    JOINING = "the first heartbeat (epoch 0) has no response yet"
    PREPARING_REBALANCE = "JoinGroup is in flight"
    COMPLETING_REBALANCE = "SyncGroup is in flight, or the assignment waits for a poll"
    RECONCILING = "the assignment differs from the owned partitions; a poll applies it"
    STABLE = "a member that owns its assignment"
    FENCED = "removed from the group; the next poll gives up the lost partitions"
    FATAL = "an error that is not retriable; only a new subscription or leaving ends this state"
    LEAVING = "the partitions were given up; the leave request is in flight"


_S = MemberState

Transitions = dict[MemberState, frozenset[MemberState]]

CLASSIC_TRANSITIONS: Transitions = {
    _S.UNJOINED: frozenset({_S.PREPARING_REBALANCE, _S.FENCED, _S.LEAVING}),
    _S.PREPARING_REBALANCE: frozenset({_S.COMPLETING_REBALANCE, _S.UNJOINED, _S.FENCED, _S.LEAVING}),
    _S.COMPLETING_REBALANCE: frozenset({_S.STABLE, _S.UNJOINED, _S.FENCED, _S.LEAVING}),
    _S.STABLE: frozenset({_S.PREPARING_REBALANCE, _S.FENCED, _S.LEAVING}),
    _S.FENCED: frozenset({_S.PREPARING_REBALANCE, _S.LEAVING}),
    _S.LEAVING: frozenset({_S.UNJOINED, _S.FENCED}),
}

CONSUMER_TRANSITIONS: Transitions = {
    _S.UNJOINED: frozenset({_S.JOINING, _S.LEAVING}),
    _S.JOINING: frozenset({_S.RECONCILING, _S.STABLE, _S.FENCED, _S.FATAL, _S.LEAVING}),
    _S.RECONCILING: frozenset({_S.STABLE, _S.FENCED, _S.FATAL, _S.LEAVING}),
    _S.STABLE: frozenset({_S.RECONCILING, _S.FENCED, _S.FATAL, _S.LEAVING}),
    _S.FENCED: frozenset({_S.UNJOINED, _S.LEAVING}),
    _S.FATAL: frozenset({_S.FENCED, _S.LEAVING}),
    _S.LEAVING: frozenset({_S.UNJOINED, _S.FENCED}),
}
