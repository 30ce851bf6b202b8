"""Members of consumer groups, one process each, of any client; they are read from what they
print."""

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
    """Starts at once. `partitions` is what it has now, `consumed` the offsets that it has seen, by
    partition."""

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
        self._read = 0
        self.events: list[dict[str, Any]] = []
        self.partitions: frozenset[int] = frozenset()
        self.consumed: dict[int, list[tuple[int, int]]] = {}

    def look(self) -> Member:
        """Read what it has said since the last time."""
        data = self.process.log.read_bytes()
        end = data.rfind(b"\n") + 1
        for line in data[self._read : end].splitlines():
            if line.startswith(b"{"):
                self._take(json.loads(line))
        self._read = max(end, self._read)
        return self

    def _take(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        name = event["name"]
        if name == "partitions_assigned":
            new = frozenset(p["partition"] for p in event["partitions"])
            self.partitions = self.partitions | new if self._changes_only else new
        elif name == "partitions_revoked":
            self.partitions -= frozenset(p["partition"] for p in event["partitions"])
        elif name == "records_consumed":
            for part in event["partitions"]:
                self.consumed.setdefault(part["partition"], []).append((part["minOffset"], part["maxOffset"]))

    def named(self, *names: str) -> list[dict[str, Any]]:
        return [event for event in self.look().events if event["name"] in names]

    @property
    def changes(self) -> int:
        return len(self.named("partitions_assigned", "partitions_revoked"))

    def offsets(self) -> dict[int, list[int]]:
        self.look()
        return {
            partition: [offset for low, high in ranges for offset in range(low, high + 1)]
            for partition, ranges in self.consumed.items()
        }

    def leave(self) -> None:
        self.process.stop(30)
        self.look()

    def crash(self) -> None:
        self.process.kill()
        self.look()


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
    """Until every partition has exactly one owner among the members, and every member has some."""

    def split() -> bool:
        owned = [member.look().partitions for member in members]
        together = [partition for part in owned for partition in part]
        return sorted(together) == list(range(partitions)) and all(owned)

    try:
        wait_until(split, timeout=timeout, what="partitions spread over the members", interval=0.05)
    except TimeoutError as error:
        said = "\n".join(
            f"{m.client}: has {sorted(m.partitions)}, running {m.process.running()}\n{m.process.log_tail(1500)}"
            for m in members
        )
        raise TimeoutError(f"{error}\n{said}") from None


def wait_for_records(members: list[Member], expected: dict[int, int], timeout: float = 40.0) -> None:
    """Until the members together have seen every offset below `expected`, by partition."""

    def seen() -> bool:
        offsets_seen: dict[int, set[int]] = {}
        for member in members:
            for partition, offsets in member.offsets().items():
                offsets_seen.setdefault(partition, set()).update(offsets)
        return all(offsets_seen.get(p, set()) >= set(range(end)) for p, end in expected.items())

    wait_until(seen, timeout=timeout, what=f"records up to {expected}", interval=0.05)


def committed_offsets(bootstrap: str, group: str, topic: str, partitions: int) -> list[int]:
    """Of each partition; -1001 where nothing is committed."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        topic_partitions = [TopicPartition(topic, index) for index in range(partitions)]
        return [committed.offset for committed in consumer.committed(topic_partitions, timeout=30)]
    finally:
        consumer.close()
