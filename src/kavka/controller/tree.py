"""Fenced writes of a controller to the metadata tree, batched.

Every write is a transaction with a check that /controller_epoch still has the version of this
controller's election. Otherwise nothing is written and `ControllerMoved` is raised. A transaction
has many operations. If it fails, its operations are repeated one by one, so that only the invalid
operations fail.

After `StoreUnavailable` the result of the write is unknown. The controller then starts a new term
and reads the tree again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from kavka.common.turns import over_turns
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

logger = logging.getLogger(__name__)

# ZooKeeper accepts packets up to 1 MB (jute.maxbuffer).
MAX_OPS_PER_TRANSACTION = 200
MAX_BYTES_PER_TRANSACTION = 256 << 10
# Attempts to write a node that other processes write concurrently.
MAX_WRITE_ATTEMPTS = 3

# Returns a partition's next state, or None for no change.
ChangeState = Callable[[TopicPartition, PartitionStateNode], PartitionStateNode | None]


class ControllerMoved(Exception):
    """Another broker has become the controller."""


class FencedTree:
    """Reads and writes the znode tree for one term. Only the controller's events call it."""

    def __init__(self, store: MetadataStore, context: ControllerContext) -> None:
        self.store = store
        self._context = context

    # ---- reads

    async def get_all(
        self, node_paths: Sequence[str], watch: Callable[[str], Watch] | None = None
    ) -> list[tuple[bytes | None, Stat] | None]:
        """Return the content of all nodes, with many reads in flight. A missing node is None."""

        async def get(path: str) -> tuple[bytes | None, Stat] | None:
            try:
                return await self.store.get(path, watch(path) if watch is not None else None)
            except NoNode:
                return None

        return await asyncio.gather(*map(get, node_paths))

    async def read_states(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Leadership]:
        """Read the state nodes. Partitions without a valid state node are omitted."""
        requested = list(partitions)
        leaderships: dict[TopicPartition, Leadership] = {}
        for tp, node in zip(
            requested, await self.get_all([paths.partition_state(tp) for tp in requested]), strict=True
        ):
            if node is None:
                continue
            data, stat = node
            try:
                leaderships[tp] = Leadership(PartitionStateNode.decode(tp, data), stat.version, stat.mzxid)
            except MalformedNode as error:
                logger.error("Ignoring the state of %s: %s", tp, error)
        return leaderships

    # ---- writes

    async def write(self, ops: Iterable[Op]) -> list[OpResult | StoreError]:
        """Execute each operation, fenced. Returns the result or the error of each operation. Raises
        ControllerMoved or StoreUnavailable."""
        batches = list(_batches(ops))
        outcomes = await asyncio.gather(*map(self.write_all, batches), return_exceptions=True)
        results: list[OpResult | StoreError] = []
        for batch, outcome in zip(batches, outcomes, strict=True):
            if isinstance(outcome, StoreError) and not isinstance(outcome, StoreUnavailable) and len(batch) > 1:
                results += await self._write_one_by_one(batch)
            elif isinstance(outcome, StoreUnavailable) or not isinstance(outcome, (list, StoreError)):
                raise outcome
            else:
                results += outcome if isinstance(outcome, list) else [outcome]
        return results

    async def write_all(self, ops: Sequence[Op]) -> list[OpResult]:
        """Execute all operations or none, fenced. Raises ControllerMoved, or the StoreError of the
        first operation that fails."""
        fence = Check(paths.CONTROLLER_EPOCH, self._context.epoch_version)
        try:
            return (await self.store.multi((fence, *ops)))[1:]
        except (BadVersion, NoNode) as error:
            if error.path == paths.CONTROLLER_EPOCH:
                raise ControllerMoved from error
            raise

    async def change_states(
        self, partitions: Iterable[TopicPartition], change: ChangeState
    ) -> dict[TopicPartition, Leadership]:
        """Replace the states of partitions in the tree and in the context. If another process wrote
        a node concurrently, the node is read again and the change is retried. Returns the new
        states."""
        changed: dict[TopicPartition, Leadership] = {}
        remaining = [tp for tp in partitions if tp in self._context.leaderships]
        for _ in range(MAX_WRITE_ATTEMPTS):
            changes: dict[TopicPartition, PartitionStateNode] = {}
            async for tp in over_turns(remaining):
                state = change(tp, self._context.leaderships[tp].state)
                if state is not None:
                    changes[tp] = state
            written = await self.replace_states(changes)
            changed |= written
            remaining = [tp for tp in changes if tp not in written]
            if not remaining:
                break
            await self.refresh_states(remaining)
        return changed

    async def replace_states(
        self, states: Mapping[TopicPartition, PartitionStateNode]
    ) -> dict[TopicPartition, Leadership]:
        """Write state nodes that still have the version in the context. Updates the context.
        Returns the states that were written."""
        leaderships = self._context.leaderships
        ops = [
            SetData(paths.partition_state(tp), state.encode(), leaderships[tp].partition_epoch)
            async for tp, state in over_turns(states.items())
        ]
        written: dict[TopicPartition, Leadership] = {}
        outcomes = await self.write(ops)
        async for (tp, state), outcome in over_turns(zip(states.items(), outcomes, strict=True)):
            if isinstance(outcome, Stat):
                written[tp] = leaderships[tp] = Leadership(state, outcome.version, outcome.mzxid)
            else:
                logger.warning("Cannot write the state of %s: %s", tp, outcome)
        return written

    async def refresh_states(self, partitions: Iterable[TopicPartition]) -> None:
        """Read state nodes again that another process may have written. Raises ControllerMoved if a
        newer controller has written one of them."""
        for tp, leadership in (await self.read_states(partitions)).items():
            if leadership.state.controller_epoch > self._context.epoch:
                raise ControllerMoved
            self._context.leaderships[tp] = leadership

    async def delete_tree(self, path: str) -> None:
        """Delete a node and its descendants. Missing nodes are ignored."""
        await self.delete_all(await self.store.subtree(path))

    async def delete_all(self, node_paths: Iterable[str]) -> None:
        await self.write([Delete(path) for path in node_paths])

    async def _write_one_by_one(self, ops: Sequence[Op]) -> list[OpResult | StoreError]:
        results: list[OpResult | StoreError] = []
        for outcome in await asyncio.gather(*(self.write_all((op,)) for op in ops), return_exceptions=True):
            if isinstance(outcome, list):
                results += outcome
            elif isinstance(outcome, StoreError) and not isinstance(outcome, StoreUnavailable):
                results.append(outcome)
            else:
                raise outcome
        return results


def _batches(ops: Iterable[Op]) -> Iterator[list[Op]]:
    batch: list[Op] = []
    size = 0
    for op in ops:
        length = len(op.path) + len(getattr(op, "data", None) or b"") + 32
        if batch and (len(batch) == MAX_OPS_PER_TRANSACTION or size + length > MAX_BYTES_PER_TRANSACTION):
            yield batch
            batch, size = [], 0
        batch.append(op)
        size += length
    if batch:
        yield batch
