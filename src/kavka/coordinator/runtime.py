"""Runtime of the state machines on the partitions of an internal topic.

    submit(outcome)   encodes the records, replays them into the shard, adds them to the open batch
    end of iteration  writes the open batch of each shard to its partition
        success       callers complete when the high watermark passes the batch
        failure       the replay is undone, and every caller gets the error

An iteration is an iteration of the event loop. Each operation sees the state after all earlier
operations, and no client sees a state that could still be lost. A read waits until all earlier
changes are committed.

A shard exists while this broker leads its partition. A new leader loads the shard: a worker thread
replays the log from start to end. Requests meanwhile get COORDINATOR_LOAD_IN_PROGRESS. Loaded
records are not visible until the high watermark has passed them. A failed load is retried with a
new shard after a delay that doubles up to 30 seconds. Requests meanwhile get NOT_COORDINATOR.
(Kafka does not retry.) When the leadership ends, pending callers get NOT_COORDINATOR. A newer
leader epoch of the same leader changes nothing.

Everything except loading runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.operations import Timers
from kavka.coordinator.shard_host import HostState, S, ShardHost
from kavka.replication.partition import Partition, RunInWorker


@dataclass(eq=False, repr=False)
class Runtime(Generic[S]):
    """Owns the hosts of all shards of one internal topic on this broker."""

    topic: str
    make_shard: Callable[[Timers], S]
    _: KW_ONLY
    loop: asyncio.AbstractEventLoop
    clock: Clock
    run_in_worker: RunInWorker
    codec: int = 0
    load_bytes: int = 5 * 1024 * 1024
    commit_timeout_ms: int = 5_000
    _hosts: dict[int, ShardHost[S]] = field(init=False, default_factory=dict)
    _dirty: list[ShardHost[S]] = field(init=False, default_factory=list)

    # ---- leadership

    def on_leadership(self, partition: Partition, is_leader: bool) -> None:
        """Handle a partition that this broker leads, possibly in a new leader epoch, or no longer
        leads."""
        topic, index = partition.topic_partition
        if topic != self.topic:
            return
        host = self._hosts.get(index)
        if is_leader:
            if host is None or host.partition is not partition or host.state is HostState.FAILED:
                self._load(partition)
        elif host is not None:
            del self._hosts[index]
            host.close()

    def retry_load(self, failed_host: ShardHost[S]) -> None:
        """Load a new shard, because the shard of the failed host is incomplete."""
        if self._hosts.get(failed_host.index) is failed_host and failed_host.state is HostState.FAILED:
            self._load(failed_host.partition, failed_host.load_attempt + 1)

    def _load(self, partition: Partition, attempt: int = 1) -> None:
        host = ShardHost(self, partition, attempt)
        previous_host = self._hosts.get(host.index)
        if previous_host is not None:
            previous_host.close()
        self._hosts[host.index] = host
        host.load()

    def close(self) -> None:
        self.write_open_batches()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()

    # ---- shards

    def host(self, index: int) -> ShardHost[S]:
        """Return the host of an active shard. Raises NOT_COORDINATOR or
        COORDINATOR_LOAD_IN_PROGRESS."""
        host = self._hosts.get(index)
        if host is not None:
            if host.state is HostState.ACTIVE:
                return host
            if host.state is HostState.LOADING:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        raise KafkaError(ErrorCode.NOT_COORDINATOR)

    def active_hosts(self) -> Iterator[ShardHost[S]]:
        return (host for host in list(self._hosts.values()) if host.state is HostState.ACTIVE)

    @property
    def is_loading(self) -> bool:
        return any(host.state is HostState.LOADING for host in self._hosts.values())

    # ---- one batch per shard and iteration of the event loop

    def mark_dirty(self, host: ShardHost[S]) -> None:
        dirty = self._dirty
        if not dirty:
            self.loop.call_soon(self.write_open_batches)
        dirty.append(host)

    def write_open_batches(self) -> None:
        dirty, self._dirty = self._dirty, []
        for host in dirty:
            host.write_open_batch()
