"""Runtime of the state machines on the partitions of an internal topic.

    submit(outcome)   encodes the records, replays them into the shard, adds them to the open batch
    end of the turn   writes the open batch of each shard to its partition
        success       callers complete when the high watermark passes the batch
        failure       the replay is undone, and every caller gets the error

So a shard decides each time on a state that includes all earlier decisions, and no client sees a
state that could still be lost. A read that comes while a change is not committed waits for it.

A shard exists while this broker leads its partition. A new leader reads the log from start to end
in a worker thread that owns the shard meanwhile (COORDINATOR_LOAD_IN_PROGRESS). Loaded records are
not visible until the high watermark has passed them. A failed load is retried with a new shard
after a delay that doubles up to half a minute; the error meanwhile is NOT_COORDINATOR. (Kafka does
not retry.) When the leadership ends, pending callers get NOT_COORDINATOR. A newer leader epoch of
the same leader changes nothing.

Everything but the loading happens on the loop thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic

from kavka.common.clock import Clock
from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.operations import Outcome, Timers
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
        """This broker became the leader of a partition, got a new epoch, or stopped leading it."""
        topic, index = partition.topic_partition
        if topic != self.topic:
            return
        host = self._hosts.get(index)
        if not is_leader:
            if host is not None:
                del self._hosts[index]
                host.close()
            return
        if host is not None and host.partition is partition and host.state in (HostState.LOADING, HostState.ACTIVE):
            return
        if host is not None:
            host.close()
        host = self._hosts[index] = ShardHost(self, partition)
        host.load()

    def retry_load(self, failed: ShardHost[S]) -> None:
        """Load a new shard: the failed one is incomplete."""
        if self._hosts.get(failed.index) is not failed or failed.state is not HostState.FAILED:
            return
        failed.close()
        host = self._hosts[failed.index] = ShardHost(self, failed.partition, failed.load_attempt + 1)
        host.load()

    def close(self) -> None:
        self.write_open_batches()
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()

    # ---- shards

    def host(self, index: int) -> ShardHost[S]:
        """The host of an active shard; raises NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS."""
        host = self._hosts.get(index)
        if host is not None:
            if host.state is HostState.ACTIVE:
                return host
            if host.state is HostState.LOADING:
                raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        raise KafkaError(ErrorCode.NOT_COORDINATOR)

    def active(self) -> Iterator[ShardHost[S]]:
        return (host for host in list(self._hosts.values()) if host.state is HostState.ACTIVE)

    @property
    def is_loading(self) -> bool:
        return any(host.state is HostState.LOADING for host in self._hosts.values())

    def run(self, index: int, operation: Callable[..., Outcome], *args: Any) -> Any:
        """Append the records of `operation(shard, …)`; the response, or a future of it."""
        host = self.host(index)
        return host.submit(operation(host.shard, *args))

    def read(self, index: int, query: Callable[..., Any], *args: Any) -> Any:
        return self.host(index).read(query, *args)

    # ---- one batch per shard and turn of the loop

    def mark_dirty(self, host: ShardHost[S]) -> None:
        dirty = self._dirty
        if not dirty:
            self.loop.call_soon(self.write_open_batches)
        dirty.append(host)

    def write_open_batches(self) -> None:
        dirty, self._dirty = self._dirty, []
        for host in dirty:
            host.write_open_batch()
