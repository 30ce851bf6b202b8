"""`kavka replica-verification` (`kafka-replica-verification`): compare the replicas of partitions.

It reads every replica from the same offset up to its high watermark, and compares the last offset
and the checksum of each batch. It runs until it is stopped or two offsets differ, and reports the
maximum lag.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kavka.cli.clients import log_only_errors
from kavka.cli.connecting import BOOTSTRAP, BROKER_LIST, WARNING_DELAY_S, ZOOKEEPER, bootstrap_servers
from kavka.cli.java_text import date_text
from kavka.cli.names import TopicFilter
from kavka.cli.options import Arguments, Command, Option
from kavka.cli.perf_stats import now_ms
from kavka.cli.tool import ToolError, note, reason, run
from kavka.common.errors import KafkaError
from kavka.common.types import TopicPartition
from kavka.records.batch import Batch, batches

if TYPE_CHECKING:
    from kavka.client.admin.aio import Admin

DATE_FORMAT = "yyyy-MM-dd HH:mm:ss,SSS"
# The last version with topic names instead of ids. Followers serve consumers since version 11.
_MAX_FETCH_VERSION = 12
_RETRY_INTERVAL_S = 1.0

COMMAND = Command(
    "replica-verification",
    "Compare the replicas of partitions continuously until stopped, and report differences.",
    (
        BOOTSTRAP,
        Option("topics-include", "The topics: a regular expression for the whole name.", "pattern", default=".*"),
        Option("time", "The start: a time in milliseconds, -1 (latest) or -2 (earliest).", "time", int, -1),
        Option("report-interval-ms", "Interval of the report lines.", "milliseconds", int, 30_000),
        Option("fetch-size", "Maximum bytes per partition in a fetch.", "bytes", int, 1024 * 1024),
        Option("max-wait-ms", "Maximum time that a fetch waits for data.", "milliseconds", int, 1000),
        Option("topic-white-list", "Same as --topics-include.", "pattern", deprecated=True),
        BROKER_LIST,
        ZOOKEEPER,
    ),
    examples=("kavka replica-verification --broker-list localhost:9092 --topics-include orders",),
)


def main(argv: list[str]) -> int:
    return run(COMMAND, argv, verify)


def verify(args: Arguments) -> int:
    log_only_errors()
    names = TopicFilter(args.first("topics-include", "topic-white-list") or args["topics-include"])
    return asyncio.run(_verify(args, names, bootstrap_servers(args)))


async def _verify(args: Arguments, names: TopicFilter, servers: str) -> int:
    from kavka.client.admin.aio import Admin

    async with Admin({"bootstrap.servers": servers, "client.id": "ReplicaVerificationTool"}) as admin:
        asyncio.get_running_loop().call_later(WARNING_DELAY_S, _warn_if_unreachable, admin, servers)
        verification = Verification(admin, args)
        await verification.begin(names)
        print(f"{_now()}: verification process is started", flush=True)
        while await verification.run_round():
            pass
    return 1


def _warn_if_unreachable(admin: Admin, servers: str) -> None:
    if not admin.cluster.connections_opened:
        note(COMMAND.name, f"no broker is reachable at {servers} yet")


@dataclass
class Replica:
    """The result of the last fetch from a replica."""

    data: bytes = b""
    high_watermark: int = -1


@dataclass
class Partition:
    """A partition with the next offset to compare and its replicas by broker id."""

    name: TopicPartition
    offset: int
    replicas: dict[int, Replica] = field(default_factory=dict)


class Verification:
    """Owns the partitions and their offsets. Call `begin` once, then `run_round` until it returns
    False."""

    def __init__(self, admin: Admin, args: Arguments) -> None:
        self._admin = admin
        self._fetch_size: int = args["fetch-size"]
        self._max_wait_ms: int = args["max-wait-ms"]
        self._interval_s = args["report-interval-ms"] / 1000
        self._timestamp: int = args["time"]
        self._partitions: list[Partition] = []
        self._last_report = time.monotonic()

    async def begin(self, names: TopicFilter) -> None:
        """Find the partitions and their start offsets. Raise ToolError if no topic matches."""
        from kavka.client.admin.types import OffsetSpec

        topics = [name for name in await self._admin.list_topics(True) if names.allows(name)]
        if not topics:
            raise ToolError("No topics found: --topics-include matches no topic.")
        described = await self._admin.describe_topics(sorted(topics))
        replicas = {
            TopicPartition(str(name), partition.partition): [node.id for node in partition.replicas]
            for name, topic in described.items()
            for partition in topic.partitions
        }
        offsets = await self._admin.list_offsets(dict.fromkeys(replicas, OffsetSpec(self._timestamp)))
        if self._timestamp >= 0:
            # Start at the log end if no record is that new.
            without_offset = [tp for tp, result in offsets.items() if result.offset < 0]
            if without_offset:
                offsets |= await self._admin.list_offsets(dict.fromkeys(without_offset, OffsetSpec.latest()))
        for tp, brokers in replicas.items():
            self._partitions.append(Partition(tp, offsets[tp].offset, {broker: Replica() for broker in brokers}))

    async def run_round(self) -> bool:
        """Fetch from all replicas and compare them. Return False if the offsets of two replicas
        differ."""
        brokers = sorted({broker for partition in self._partitions for broker in partition.replicas})
        succeeded = await asyncio.gather(*(self._fetch(broker) for broker in brokers))
        if not all(succeeded):
            await asyncio.sleep(_RETRY_INTERVAL_S)
        if not all([self._compare(partition) for partition in self._partitions]):
            return False
        if time.monotonic() - self._last_report >= self._interval_s:
            self._last_report = time.monotonic()
            self._report()
        return True

    async def _fetch(self, broker: int) -> bool:
        """Fetch all partitions of a broker. Return False if the request or a partition failed."""
        partitions = {partition.name: partition for partition in self._partitions if broker in partition.replicas}
        for partition in partitions.values():
            partition.replicas[broker] = Replica(high_watermark=partition.replicas[broker].high_watermark)
        try:
            connection = await self._admin.cluster.connection(broker, timeout=10.0)
            response = await connection.send(
                self._request(partitions), max_version=_MAX_FETCH_VERSION, timeout=self._max_wait_ms / 1000 + 30
            )
        except KafkaError as error:
            note(COMMAND.name, f"broker {broker}: {reason(error)}")
            return False
        succeeded = True
        for topic in response.responses:
            for result in topic.partitions:
                tp = TopicPartition(topic.topic, result.partition_index)
                if result.error_code:
                    note(COMMAND.name, f"broker {broker}, partition {tp}: error {result.error_code}")
                    succeeded = False
                elif tp in partitions:
                    partitions[tp].replicas[broker] = Replica(bytes(result.records or b""), result.high_watermark)
        return succeeded

    def _request(self, partitions: dict[TopicPartition, Partition]) -> Any:
        from kavka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic

        topics: dict[str, list[Any]] = {}
        for tp, partition in partitions.items():
            topics.setdefault(tp.topic, []).append(
                FetchPartition(
                    partition=tp.partition, fetch_offset=partition.offset, partition_max_bytes=self._fetch_size
                )
            )
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=0x7FFFFFFF,
            session_id=0,
            session_epoch=-1,
            topics=[FetchTopic(topic=name, partitions=partitions) for name, partitions in topics.items()],
        )

    def _compare(self, partition: Partition) -> bool:
        """Compare the batches that all replicas returned, and advance the offset. Return False if
        the offsets differ."""
        iterators = {broker: _committed_batches(replica) for broker, replica in partition.replicas.items()}
        while True:
            batch_by_broker = {broker: next(iterator, None) for broker, iterator in iterators.items()}
            first_broker, batch = next(iter(batch_by_broker.items()))
            if batch is None or any(other is None for other in batch_by_broker.values()):
                return True
            for broker, other in batch_by_broker.items():
                assert other is not None
                if other.last_offset != batch.last_offset:
                    print(
                        f"{_now()}: partition {partition.name}: replica {first_broker}'s offset {batch.last_offset} "
                        f"doesn't match replica {broker}'s offset {other.last_offset}",
                        flush=True,
                    )
                    return False
                if other.crc != batch.crc:
                    print(
                        f"{_now()}: partition {partition.name} has unmatched checksum at offset {batch.last_offset}; "
                        f"replica {first_broker}'s checksum {batch.crc}; replica {broker}'s checksum {other.crc}",
                        flush=True,
                    )
            partition.offset = batch.last_offset + 1

    def _report(self) -> None:
        lag, worst = -1, self._partitions[0]
        for partition in self._partitions:
            high_watermark = max(replica.high_watermark for replica in partition.replicas.values())
            if high_watermark - partition.offset > lag:
                lag, worst = high_watermark - partition.offset, partition
        print(
            f"{_now()}: max lag is {lag} for partition {worst.name} at offset {worst.offset} among "
            f"{len(self._partitions)} partitions",
            flush=True,
        )


def _committed_batches(replica: Replica) -> Iterator[Batch]:
    """Yield the batches below the high watermark."""
    for batch in batches(replica.data):
        if batch.last_offset >= replica.high_watermark:
            return
        yield batch


def _now() -> str:
    return date_text(DATE_FORMAT, now_ms())
