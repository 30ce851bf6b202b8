"""Members of consumer groups with any client, each in a process. Their state is read from their
output."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.support.java_client import tool_command
from tests.support.processes import ManagedProcess, wait_until

ROOT = Path(__file__).resolve().parents[2]

JAVA_ASSIGNORS = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
PYTHON_CLIENTS = ("confluent", "kafka-python", "aiokafka")
JAVA_CLIENTS = ("java-3.9.1", "java-4.3.0")
COOPERATIVE = ("cooperative-sticky",)

_numbers = itertools.count(1)


class Member:
    """A member, which the constructor starts. `partitions` is its assignment, and `consumed` the
    ranges of consumed offsets by partition."""

    def __init__(
        self,
        client: str,
        folder: Path,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        assignors: tuple[str, ...] = ("range",),
        instance_id: str | None = None,
        session_ms: int = 6_000,
        commit: bool = True,
        protocol: str = "classic",
    ) -> None:
        self.client = client
        # Cooperative members receive only changes, other members the whole assignment.
        self._changes_only = assignors == COOPERATIVE or protocol != "classic"
        log = folder / f"member-{next(_numbers)}-{client}.out"
        if client.startswith("java-"):
            argv = _java(
                client.removeprefix("java-"), bootstrap, group, topic, assignors, instance_id, session_ms, protocol
            )
        else:
            options = {
                "assignors": assignors,
                "instance_id": instance_id,
                "session_ms": session_ms,
                "commit": commit,
                "protocol": protocol,
            }
            argv = [
                sys.executable,
                "-m",
                "tests.support.group_member",
                client,
                bootstrap,
                group,
                topic,
                json.dumps(options),
            ]
        self.process = ManagedProcess(argv, log=log, cwd=ROOT)
        self._position = 0
        self.events: list[dict[str, Any]] = []
        self.partitions: frozenset[int] = frozenset()
        self.consumed: dict[int, list[tuple[int, int]]] = {}

    def read_events(self) -> Member:
        """Read the output since the last call."""
        data = self.process.log.read_bytes()
        end = data.rfind(b"\n") + 1
        for line in data[self._position : end].splitlines():
            if line.startswith(b"{"):
                self._apply(json.loads(line))
        self._position = max(end, self._position)
        return self

    def _apply(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        name = event["name"]
        if name == "partitions_assigned":
            assigned = frozenset(p["partition"] for p in event["partitions"])
            self.partitions = self.partitions | assigned if self._changes_only else assigned
        elif name == "partitions_revoked":
            self.partitions -= frozenset(p["partition"] for p in event["partitions"])
        elif name == "records_consumed":
            for entry in event["partitions"]:
                self.consumed.setdefault(entry["partition"], []).append((entry["minOffset"], entry["maxOffset"]))

    def named(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in self.read_events().events if event["name"] in names]

    @property
    def changes(self) -> int:
        return len(self.named("partitions_assigned", "partitions_revoked"))

    def offsets(self) -> dict[int, list[int]]:
        self.read_events()
        return {
            partition: [offset for low, high in ranges for offset in range(low, high + 1)]
            for partition, ranges in self.consumed.items()
        }

    def leave(self) -> None:
        self.process.stop(30)
        self.read_events()

    def crash(self) -> None:
        self.process.kill()
        self.read_events()


def _java(
    version: str,
    bootstrap: str,
    group: str,
    topic: str,
    assignors: tuple[str, ...],
    instance_id: str | None,
    session_ms: int,
    protocol: str,
) -> list[str]:
    args = ["--bootstrap-server", bootstrap, "--group-id", group, "--topic", topic, "--reset-policy", "earliest"]
    if protocol == "classic":
        args += ["--session-timeout", str(session_ms), "--assignment-strategy", JAVA_ASSIGNORS[assignors[0]]]
    else:
        args += ["--group-protocol", protocol]
    if instance_id is not None:
        args += ["--group-instance-id", instance_id]
    return tool_command(version, "org.apache.kafka.tools.VerifiableConsumer", *args)


def wait_for_split(members: list[Member], partitions: int, timeout: float = 40.0) -> None:
    """Wait until every partition is assigned to exactly one member, and every member has
    partitions."""

    def is_split() -> bool:
        assignments = [member.read_events().partitions for member in members]
        assigned = [partition for assignment in assignments for partition in assignment]
        return sorted(assigned) == list(range(partitions)) and all(assignments)

    try:
        wait_until(is_split, timeout=timeout, what="partitions assigned to all members", interval=0.05)
    except TimeoutError as error:
        states = "\n".join(
            f"{m.client}: has {sorted(m.partitions)}, running {m.process.running()}\n{m.process.log_tail(1500)}"
            for m in members
        )
        raise TimeoutError(f"{error}\n{states}") from None


def wait_for_records(members: list[Member], expected: dict[int, int], timeout: float = 40.0) -> None:
    """Wait until the members have consumed all offsets below `expected`, by partition."""

    def all_consumed() -> bool:
        consumed: dict[int, set[int]] = {}
        for member in members:
            for partition, offsets in member.offsets().items():
                consumed.setdefault(partition, set()).update(offsets)
        return all(consumed.get(p, set()) >= set(range(end)) for p, end in expected.items())

    wait_until(all_consumed, timeout=timeout, what=f"records up to {expected}", interval=0.05)


def committed_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    """Return the committed offset of each partition; -1001 if there is none."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        topic_partitions = [TopicPartition(topic, index) for index in range(partitions)]
        return [committed.offset for committed in consumer.committed(topic_partitions, timeout=30)]
    finally:
        consumer.close()
