"""[pure] The life of one replica of a partition, as the controller sees it.

- New: it was assigned to its broker a moment ago; it can only be made a follower, or a leader by initialisation.
- Online: it is part of the partition, on a live broker.
- Offline: its broker or its disk is gone, or it is being taken away.
- ReplicaDeletionStarted, Successful, Ineligible: its broker was told to delete the files; has; cannot now.
- NonExistent: never made, or deleted and forgotten.
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
    TELL_NEW = "its broker is told who leads, and that the replica is new"
    JOIN = "it becomes one of the partition's replicas"
    TELL = "its broker is told who leads"
    STOP = "its broker is told to stop it; it leaves the ISR, and the others are told"
    DELETE = "its broker is told to stop it and delete its files"
    FORGET = "it is one of the partition's replicas no more"


_S, _A = ReplicaState, ReplicaAction

REPLICA_TRANSITIONS: TransitionTable[ReplicaState, ReplicaAction] = TransitionTable(
    (
        Transition(_S.NON_EXISTENT, _S.NEW, _A.TELL_NEW, "assigned to a broker"),
        Transition(_S.NEW, _S.ONLINE, _A.JOIN, "its partition is online"),
        Transition(_S.ONLINE, _S.ONLINE, _A.TELL, "its broker has started"),
        Transition(_S.OFFLINE, _S.ONLINE, _A.TELL, "its broker is back"),
        Transition(_S.DELETION_INELIGIBLE, _S.ONLINE, _A.TELL, "its broker is back, the deletion goes on later"),
        Transition(_S.NEW, _S.OFFLINE, _A.STOP, "its broker died, or its topic is being deleted"),
        Transition(_S.ONLINE, _S.OFFLINE, _A.STOP, "its broker died, or its topic is being deleted"),
        Transition(_S.OFFLINE, _S.OFFLINE, _A.STOP, "told again"),
        Transition(_S.DELETION_INELIGIBLE, _S.OFFLINE, _A.STOP, "its deletion is tried again"),
        Transition(_S.OFFLINE, _S.DELETION_STARTED, _A.DELETE, "its topic is being deleted"),
        Transition(_S.DELETION_STARTED, _S.DELETION_SUCCESSFUL, _A.NOTE, "its broker has deleted it"),
        Transition(_S.OFFLINE, _S.DELETION_INELIGIBLE, _A.NOTE, "its broker is dead"),
        Transition(_S.DELETION_STARTED, _S.DELETION_INELIGIBLE, _A.NOTE, "its broker could not delete it"),
        Transition(_S.DELETION_SUCCESSFUL, _S.NON_EXISTENT, _A.FORGET, "all replicas of its topic are deleted"),
    )
)
