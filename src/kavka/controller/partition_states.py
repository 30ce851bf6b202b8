"""[pure] The states of a partition in the controller.

- NonExistent: never created, or deleted.
- New: it has replicas, but no leader, no ISR and no state node.
- Online: it has a leader and a state node.
- Offline: its leader has failed or is being removed.
"""

from __future__ import annotations

from enum import Enum

from kavka.controller.states import Transition, TransitionTable


class PartitionState(Enum):
    NON_EXISTENT = "NonExistentPartition"
    NEW = "NewPartition"
    ONLINE = "OnlinePartition"
    OFFLINE = "OfflinePartition"


class PartitionAction(Enum):
    NOTE = "only the controller's memory changes"
    INITIALISE = "the first live replica leads, all live replicas are the ISR; the state node is created"
    ELECT = "a leader is elected and written to the state node with the next leader epoch"


_S, _A = PartitionState, PartitionAction

PARTITION_TRANSITIONS: TransitionTable[PartitionState, PartitionAction] = TransitionTable(
    (
        Transition(_S.NON_EXISTENT, _S.NEW, _A.NOTE, "found in the tree with its replicas"),
        Transition(_S.NEW, _S.ONLINE, _A.INITIALISE, "a replica is alive"),
        Transition(_S.ONLINE, _S.ONLINE, _A.ELECT, "an election is requested"),
        Transition(_S.OFFLINE, _S.ONLINE, _A.ELECT, "an eligible replica is alive"),
        Transition(_S.NEW, _S.OFFLINE, _A.NOTE, "deleted before it had a leader"),
        Transition(_S.ONLINE, _S.OFFLINE, _A.NOTE, "its leader failed, or its topic is being deleted"),
        Transition(_S.OFFLINE, _S.OFFLINE, _A.NOTE, "still without a leader"),
        Transition(_S.OFFLINE, _S.NON_EXISTENT, _A.NOTE, "its topic is being deleted"),
    )
)
