"""[pure] The life of a partition, as the controller sees it.

- NonExistent: never made, or deleted.
- New: it has replicas, but no leader and no ISR yet: there is no state node in the tree.
- Online: it has a leader, and the state node says so.
- Offline: it had a leader, which has died or is being taken away.
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
    INITIALISE = "the first live replica leads, all live ones are the ISR; the state node is made"
    ELECT = "a leader is elected and written to the state node with the next leader epoch"


_S, _A = PartitionState, PartitionAction

PARTITION_TRANSITIONS: TransitionTable[PartitionState, PartitionAction] = TransitionTable(
    (
        Transition(_S.NON_EXISTENT, _S.NEW, _A.NOTE, "found in the tree with its replicas"),
        Transition(_S.NEW, _S.ONLINE, _A.INITIALISE, "a replica lives"),
        Transition(_S.ONLINE, _S.ONLINE, _A.ELECT, "another leader is wanted"),
        Transition(_S.OFFLINE, _S.ONLINE, _A.ELECT, "a replica that may lead lives"),
        Transition(_S.NEW, _S.OFFLINE, _A.NOTE, "deleted before it had a leader"),
        Transition(_S.ONLINE, _S.OFFLINE, _A.NOTE, "its leader died, or its topic is being deleted"),
        Transition(_S.OFFLINE, _S.OFFLINE, _A.NOTE, "still without a leader"),
        Transition(_S.OFFLINE, _S.NON_EXISTENT, _A.NOTE, "its topic is being deleted"),
    )
)
