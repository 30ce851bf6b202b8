"""[pure] The states of a replica in the controller.

- New: just assigned to its broker; it can become a follower, or the first leader.
- Online: part of the partition, on a live broker.
- Offline: its broker or disk has failed, or it is being removed.
- ReplicaDeletionStarted, Successful, Ineligible: deletion requested; done; not possible now.
- NonExistent: never created, or deleted.
"""

from __future__ import annotations

from enum import Enum

from kavka.controller.states import Transition, TransitionTable


class ReplicaState(Enum):
    NON_EXISTENT = "NonExistentReplica"
    NEW = "NewReplica"
    ONLINE = "OnlineReplica"
    OFFLINE = "OfflineReplica"
    DELETION_STARTED = "ReplicaDeletionStarted"
    DELETION_SUCCESSFUL = "ReplicaDeletionSuccessful"
    DELETION_INELIGIBLE = "ReplicaDeletionIneligible"


class ReplicaAction(Enum):
    NOTE = "only the controller's memory changes"
    SEND_NEW = "its broker gets LeaderAndIsr with is_new"
    JOIN = "it becomes one of the partition's replicas"
    SEND = "its broker gets LeaderAndIsr"
    STOP = "its broker gets StopReplica; it leaves the ISR, and the other replicas get LeaderAndIsr"
    DELETE = "its broker gets StopReplica with deletion"
    FORGET = "it is no longer one of the partition's replicas"


_S, _A = ReplicaState, ReplicaAction

REPLICA_TRANSITIONS: TransitionTable[ReplicaState, ReplicaAction] = TransitionTable(
    (
        Transition(_S.NON_EXISTENT, _S.NEW, _A.SEND_NEW, "assigned to a broker"),
        Transition(_S.NEW, _S.ONLINE, _A.JOIN, "its partition is online"),
        Transition(_S.ONLINE, _S.ONLINE, _A.SEND, "its broker has started"),
        Transition(_S.OFFLINE, _S.ONLINE, _A.SEND, "its broker is back"),
        Transition(_S.DELETION_INELIGIBLE, _S.ONLINE, _A.SEND, "its broker is back, the deletion continues later"),
        Transition(_S.NEW, _S.OFFLINE, _A.STOP, "its broker failed, or its topic is being deleted"),
        Transition(_S.ONLINE, _S.OFFLINE, _A.STOP, "its broker failed, or its topic is being deleted"),
        Transition(_S.OFFLINE, _S.OFFLINE, _A.STOP, "sent again"),
        Transition(_S.DELETION_INELIGIBLE, _S.OFFLINE, _A.STOP, "its deletion is retried"),
        Transition(_S.OFFLINE, _S.DELETION_STARTED, _A.DELETE, "its topic is being deleted"),
        Transition(_S.DELETION_STARTED, _S.DELETION_SUCCESSFUL, _A.NOTE, "its broker has deleted it"),
        Transition(_S.OFFLINE, _S.DELETION_INELIGIBLE, _A.NOTE, "its broker is dead"),
        Transition(_S.DELETION_STARTED, _S.DELETION_INELIGIBLE, _A.NOTE, "its broker could not delete it"),
        Transition(_S.DELETION_SUCCESSFUL, _S.NON_EXISTENT, _A.FORGET, "all replicas of its topic are deleted"),
    )
)
