"""A consumer in a group, as a process. It prints its events as JSON lines, as VerifiableConsumer
does.

    python -m tests.support.group_member <client> <bootstrap> <group> <topic> <options as JSON>

Options: `assignors` (Kafka's short names), `instance_id`, `session_ms`, `commit` (after every
poll). On SIGTERM, it leaves the group and exits.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Iterable
from typing import Any

stopping = False


def report(name: str, **fields: Any) -> None:
    print(json.dumps({"name": name, **fields}), flush=True)


def as_json(partitions: Iterable[Any]) -> list[dict[str, Any]]:
    return [{"topic": p.topic, "partition": p.partition} for p in partitions]


def report_records(records: list[tuple[int, int]]) -> None:
    """Report the (partition, offset) pairs of a poll."""
    by_partition: dict[int, list[int]] = {}
    for partition, offset in records:
        by_partition.setdefault(partition, []).append(offset)
    for partition, offsets in by_partition.items():
        report(
            "records_consumed",
            partitions=[{"partition": partition, "minOffset": offsets[0], "maxOffset": offsets[-1]}],
        )


def confluent(bootstrap: str, group: str, topic: str, options: dict[str, Any]) -> None:
    from confluent_kafka import Consumer, KafkaException

    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": options["session_ms"],
        "heartbeat.interval.ms": min(3_000, options["session_ms"] // 10),
        "partition.assignment.strategy": ",".join(options["assignors"]),
        "topic.metadata.refresh.interval.ms": 1_000,
        "group.protocol": options.get("protocol", "classic"),
    }
    if config["group.protocol"] != "classic":
        for name in ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"):
            del config[name]
    if options.get("instance_id"):
        config["group.instance.id"] = options["instance_id"]
    consumer = Consumer(config)
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: report("partitions_assigned", partitions=as_json(partitions)),
        on_revoke=lambda _, partitions: report("partitions_revoked", partitions=as_json(partitions)),
        on_lost=lambda _, partitions: report("partitions_revoked", partitions=as_json(partitions), lost=True),
    )
    while not stopping:
        messages = [m for m in consumer.consume(500, 0.1) if m.error() is None]
        if messages:
            report_records([(m.partition(), m.offset()) for m in messages])
            if options["commit"]:
                try:
                    consumer.commit(asynchronous=False)
                    report("offsets_committed", success=True)
                except KafkaException as error:
                    report("offsets_committed", success=False, error=str(error))
    consumer.close()


def kafka_python(bootstrap: str, group: str, topic: str, options: dict[str, Any]) -> None:
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import KafkaConnectionError, KafkaError

    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            report("partitions_assigned", partitions=as_json(assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            report("partitions_revoked", partitions=as_json(revoked))

    config: dict[str, Any] = {}
    if options.get("instance_id"):
        config["group_instance_id"] = options["instance_id"]
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options["session_ms"],
        # A short interval keeps rebalances short: over many short polls, kafka-python 3.0 sometimes
        # loses a rebalance in progress.
        heartbeat_interval_ms=min(300, options["session_ms"] // 10),
        partition_assignment_strategy=[assignors[name] for name in options["assignors"]],
        **config,
    )
    consumer.subscribe([topic], listener=Listener())
    while not stopping:
        try:
            polled = consumer.poll(timeout_ms=1_000)
        except KafkaConnectionError:
            continue  # kafka-python raises the error of a failed heartbeat.
        positions = [(tp.partition, m.offset) for tp, messages in polled.items() for m in messages]
        if positions:
            report_records(positions)
            if options["commit"]:
                try:
                    consumer.commit()
                    report("offsets_committed", success=True)
                except KafkaError as error:
                    report("offsets_committed", success=False, error=str(error))
    consumer.close()


async def aiokafka(bootstrap: str, group: str, topic: str, options: dict[str, Any]) -> None:
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.errors import KafkaError

    assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            report("partitions_assigned", partitions=as_json(assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            report("partitions_revoked", partitions=as_json(revoked))

    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        group_instance_id=options.get("instance_id"),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=options["session_ms"],
        heartbeat_interval_ms=min(3_000, options["session_ms"] // 10),
        partition_assignment_strategy=[assignors[name] for name in options["assignors"]],
    )
    consumer.subscribe([topic], listener=Listener())
    await consumer.start()
    while not stopping:
        polled = await consumer.getmany(timeout_ms=100)
        positions = [(tp.partition, m.offset) for tp, messages in polled.items() for m in messages]
        if positions:
            report_records(positions)
            if options["commit"]:
                try:
                    await consumer.commit()
                    report("offsets_committed", success=True)
                except KafkaError as error:
                    report("offsets_committed", success=False, error=str(error))
    await consumer.stop()


def main() -> None:
    def stop(*_: Any) -> None:
        global stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    client, bootstrap, group, topic = sys.argv[1:5]
    options = json.loads(sys.argv[5])
    report("startup_complete")
    if client == "aiokafka":
        asyncio.run(aiokafka(bootstrap, group, topic, options))
    else:
        {"confluent": confluent, "kafka-python": kafka_python}[client](bootstrap, group, topic, options)
    report("shutdown_complete")


if __name__ == "__main__":
    main()
