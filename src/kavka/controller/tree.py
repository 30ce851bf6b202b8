"""The metadata tree as a controller writes it: fenced, many operations at a time.

Every write is one transaction with a check that /controller_epoch still has the version that this controller was
elected with. When it has not, `ControllerMoved` is raised and nothing was written. Writes go out in transactions of
many operations; one that fails as a whole is made again operation by operation, so that only what is wrong fails.

`StoreUnavailable` leaves it open what was written. The controller then reads the tree anew, as a new one would.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kavka.common.types import TopicPartition
from kavka.controller.context import ControllerContext, Leadership
from kavka.metadata import paths
from kavka.metadata.paths import MalformedNode, PartitionStateNode
from kavka.metadata.store import (
    BadVersion,
    Check,
    Delete,
    MetadataStore,
    NoNode,
    Op,
    OpResult,
    SetData,
    Stat,
    StoreError,
    StoreUnavailable,
    Watch,
)

log = logging.getLogger(__name__)

# ZooKeeper takes no packet beyond 1 MB (jute.maxbuffer).
OPS_PER_TRANSACTION = 200
BYTES_PER_TRANSACTION = 256 << 10
# A state node that somebody else writes at the same time is read and tried again this often.
ATTEMPTS = 3

# Gives a partition's next state, or None when it is to stay as it is.
ChangeState = Callable[[TopicPartition, PartitionStateNode], PartitionStateNode | None]


class ControllerMoved(Exception):
    """Another broker is the controller now."""


class FencedTree:
    def __init__(self, store: MetadataStore, context: ControllerContext) -> None:
        self.store = store
        self._context = context

    # ---- reads

    async def get_all(
        self, of: Sequence[str], watch: Callable[[str], Watch] | None = None
    ) -> list[tuple[bytes | None, Stat] | None]:
        """All of them with many reads in flight; None for what is not there."""

        async def get(path: str) -> tuple[bytes | None, Stat] | None:
            try:
                return await self.store.get(path, watch(path) if watch is not None else None)
            except NoNode:
                return None

        return await asyncio.gather(*map(get, of))

    async def read_states(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leadership]:
        """What the state nodes say; partitions without one, or with one that cannot be read, are left out."""
        asked = list(partitions)
        found: dict[TopicPartition, Leadership] = {}
        for tp, node in zip(asked, await self.get_all([paths.partition_state(tp) for tp in asked]), strict=True):
            if node is None:
                continue
            data, stat = node
            try:
                found[tp] = Leadership(PartitionStateNode.decode(tp, data), stat.version, stat.mzxid)
            except MalformedNode as error:
                log.error("%s", error)
        return found

    # ---- writes

    async def write(self, ops: Iterable[Op]) -> list[OpResult | StoreError]:
        """Each op on its own, fenced; the result of each, or its error."""
        batches = list(_batches(ops))
        outcomes = await asyncio.gather(*map(self._fenced, batches), return_exceptions=True)
        results: list[OpResult | StoreError] = []
        for batch, outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, StoreError) and not isinstance(outcome, StoreUnavailable) and len(batch) > 1:
                results += await self._one_by_one(batch)
            elif isinstance(outcome, StoreUnavailable) or not isinstance(outcome, (list, StoreError)):
                raise outcome
            else:
                results += outcome if isinstance(outcome, list) else [outcome]
        return results

    async def write_all(self, ops: Sequence[Op]) -> list[OpResult]:
        """All or none of them, fenced; the error of the first that could not be done is raised."""
        return await self._fenced(ops)

    async def change_states(
        self, partitions: Iterable[TopicPartition], change: ChangeState
    ) -> dict[TopicPartition, Leadership]:
        """Replace state nodes, each only if it is the one that `change` was given; returns those that were replaced.

        The context knows them afterwards.
        """
        changed: dict[TopicPartition, Leadership] = {}
        remaining = [tp for tp in partitions if tp in self._context.leaderships]
        for _ in range(ATTEMPTS):
            wanted: dict[TopicPartition, PartitionStateNode] = {}
            for tp in remaining:
                state = change(tp, self._context.leaderships[tp].state)
                if state is not None:
                    wanted[tp] = state
            written = await self.replace_states(wanted)
            changed |= written
            remaining = [tp for tp in wanted if tp not in written]
            if not remaining:
                break
            await self.refresh_states(remaining)
        return changed

    async def replace_states(
        self, states: Mapping[TopicPartition, PartitionStateNode]
    ) -> dict[TopicPartition, Leadership]:
        """Write state nodes, each only if it is the one that the context knows; returns those that were."""
        known = self._context.leaderships
        ops = [
            SetData(paths.partition_state(tp), state.encode(), known[tp].partition_epoch)
            for tp, state in states.items()
        ]
        written: dict[TopicPartition, Leadership] = {}
        for (tp, state), outcome in zip(states.items(), await self.write(ops), strict=True):
            if isinstance(outcome, Stat):
                written[tp] = known[tp] = Leadership(state, outcome.version, outcome.mzxid)
            else:
                log.warning("The state of %s could not be written: %s", tp, outcome)
        return written

    async def refresh_states(self, partitions: Iterable[TopicPartition]) -> None:
        """Somebody else may have written them: know what they are now."""
        for tp, leadership in (await self.read_states(partitions)).items():
            if leadership.state.controller_epoch > self._context.epoch:
                raise ControllerMoved
            self._context.leaderships[tp] = leadership

    async def delete_tree(self, path: str) -> None:
        """Remove a node with all below it; what is gone already is fine."""
        await self.delete_all(await self.store.subtree(path))

    async def delete_all(self, of: Iterable[str]) -> None:
        await self.write([Delete(path) for path in of])

    async def _one_by_one(self, ops: Sequence[Op]) -> list[OpResult | StoreError]:
        results: list[OpResult | StoreError] = []
        for outcome in await asyncio.gather(*(self._fenced((op,)) for op in ops), return_exceptions=True):
            if isinstance(outcome, list):
                results += outcome
            elif isinstance(outcome, StoreError) and not isinstance(outcome, StoreUnavailable):
                results.append(outcome)
            else:
                raise outcome
        return results

    async def _fenced(self, ops: Sequence[Op]) -> list[OpResult]:
        fence = Check(paths.CONTROLLER_EPOCH, self._context.epoch_version)
        try:
            return (await self.store.multi((fence, *ops)))[1:]
        except (BadVersion, NoNode) as error:
            if error.path == paths.CONTROLLER_EPOCH:
                raise ControllerMoved from error
            raise


def _batches(ops: Iterable[Op]) -> Iterator[list[Op]]:
    batch: list[Op] = []
    size = 0
    for op in ops:
        length = len(op.path) + len(getattr(op, "data", None) or b"") + 32
        if batch and (len(batch) == OPS_PER_TRANSACTION or size + length > BYTES_PER_TRANSACTION):
            yield batch
            batch, size = [], 0
        batch.append(op)
        size += length
    if batch:
        yield batch
