"""Several processes share the flows to a target cluster. When a process dies, the others take over
its flows.

The processes are members of a consumer group in the target in which no member reads records. The
assignor of its leader (`FlowAssignor`) assigns flows instead of partitions, and running flows stay
in place if the result is balanced. A flow that moves between live processes is assigned to none
until its process has stopped it and has joined again.

A process holds a flow while the group assigns it and the last heartbeat is younger than two thirds
of the session timeout. A flow that is not held stops by itself (`RunningFlow`), in the rest of the
session. A process that does not notice the end of its session, because it stood still, is fenced by
the claim of the next one (`spark/fencing.py`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kavka.client.config import supported_settings
from kavka.client.consumer.assignors import Assignment, Assignor, Subscription
from kavka.client.consumer.consumer import Consumer
from kavka.client.consumer_config import CONSUMER_CONFIGS
from kavka.common.errors import KafkaError
from kavka.pipeline.connect.distributed import assign_connectors
from kavka.pipeline.mirror.policy import HEARTBEATS
from kavka.pipeline.mirror.status import FAILED, UNASSIGNED

if TYPE_CHECKING:
    from kavka.pipeline.mirror.running import RunningFlow

logger = logging.getLogger(__name__)

_POLL_TIMEOUT = 0.2
_ERROR_PAUSE = 1.0
_LEAVE_TIMEOUT = 10.0


class FlowAssignor(Assignor):
    """Assigns the flows of this process's configuration. The user data of a subscription is the
    list of the flows that the member runs, that of an assignment the list of its flows, as JSON."""

    name = "kavka-mirror"

    def __init__(
        self,
        flows: Iterable[str],
        running: Callable[[], list[str]],
        set_assignment: Callable[[frozenset[str]], None],
    ) -> None:
        self._flows = sorted(flows)
        self._running = running
        self._set_assignment = set_assignment

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        return json.dumps(self._running()).encode()

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Any]:
        running = {member: _names(subscription.user_data) for member, subscription in members.items()}
        owners = {flow: member for member, flows in running.items() for flow in flows}
        balanced = assign_connectors(self._flows, running)
        return {
            member: Assignment((), json.dumps([flow for flow in flows if owners.get(flow, member) == member]).encode())
            for member, flows in balanced.items()
        }

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        self._set_assignment(frozenset(_names(assignment.user_data)))


def _names(data: bytes | None) -> list[str]:
    """Return the names in user data. Another program may have joined the group: its data count as
    none."""
    try:
        names = json.loads(data or b"[]")
    except ValueError:
        names = None
    if not isinstance(names, list):
        logger.warning("A member of the group of mirrors sent invalid user data, which is ignored")
        return []
    return [str(name) for name in names]


class FlowGroup:
    """The membership of this process in the group of one target. Owns the assignment. Its thread
    polls the group and starts the flows that the process holds. It calls `stand_by` when the
    process is assigned none."""

    def __init__(self, flows: Sequence[RunningFlow], stand_by: Callable[[], object] = lambda: None) -> None:
        self._flows = flows
        self._stand_by = stand_by
        self._flow = flows[0].flow
        self._hold_time = self._flow.session_timeout * 2 / 3
        self._lock = threading.Lock()
        """Protects the fields up to `_expires`: a rebalance reads and writes them in other
        threads."""
        self._assigned: frozenset[str] = frozenset()
        self._moving: frozenset[str] = frozenset()
        """Flows that the last assignment took from this process, until they have stopped."""
        self._joined = 0.0
        """The time of the last JoinGroup request. The session begins after it."""
        self._expires = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"mirror-group-{self._flow.target}", daemon=True)

    def start(self) -> None:
        for flow in self._flows:
            flow.status.state = UNASSIGNED
        self._thread.start()

    def stop(self) -> None:
        """Stop all flows, then leave the group, so that other processes take over."""
        self._stopping.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def holds(self, name: str) -> bool:
        """Whether this process runs the flow. Any thread may call it."""
        with self._lock:
            return not self._stopping.is_set() and name in self._assigned and time.monotonic() < self._expires

    # --- the group

    def _running(self) -> list[str]:
        active = {flow.flow.name for flow in self._flows if flow.is_active}
        with self._lock:
            self._joined = time.monotonic()
            return sorted(active & (self._assigned | self._moving))

    def _set_assignment(self, names: frozenset[str]) -> None:
        logger.info(
            "%s: this process runs %s of group %s", self._flow.target, ", ".join(sorted(names)) or "no flow",
            self._flow.sharing_group,
        )  # fmt: skip
        with self._lock:
            self._moving = (self._assigned | self._moving) - names
            self._assigned = names
            self._expires = self._joined + self._hold_time
        if not names:
            self._stand_by()

    def _renew(self, consumer: Consumer[Any, Any]) -> None:
        """Extend the session to the last heartbeat, or end it if the group removed this process.
        The flows of an ended session may run elsewhere: they do not move, they stop."""
        since_heartbeat = consumer.metrics()["last-heartbeat-seconds-ago"]
        is_member = consumer.group_metadata().generation_id >= 0
        with self._lock:
            if not is_member:
                self._assigned = self._moving = frozenset()
            elif since_heartbeat >= 0:
                self._expires = max(self._expires, time.monotonic() - since_heartbeat + self._hold_time)

    def _run(self) -> None:
        assignor = FlowAssignor([flow.flow.name for flow in self._flows], self._running, self._set_assignment)
        try:
            consumer: Consumer[Any, Any] = Consumer(self._consumer_settings(assignor))
        except Exception as error:
            self._end(error)
            return
        try:
            consumer.subscribe([HEARTBEATS])
            while not self._stopping.is_set() or any(flow.is_active for flow in self._flows):
                error_text = None
                try:
                    consumer.poll(_POLL_TIMEOUT)
                except KafkaError as error:
                    error_text = f"group {self._flow.sharing_group} in {self._flow.target}: {error}"
                    logger.warning("Cannot poll the coordinator: %s", error_text)
                    self._stopping.wait(_ERROR_PAUSE)
                self._renew(consumer)
                self._start_held(error_text)
                self._hand_over(consumer)
        except Exception as error:
            self._end(error)
        finally:
            consumer.close(_LEAVE_TIMEOUT)

    def _consumer_settings(self, assignor: FlowAssignor) -> dict[str, Any]:
        flow = self._flow
        return {
            **supported_settings(flow.target_admin, CONSUMER_CONFIGS),
            "group.id": flow.sharing_group,
            "group.protocol": "classic",
            "partition.assignment.strategy": [assignor],
            "session.timeout.ms": int(flow.session_timeout * 1000),
            "heartbeat.interval.ms": int(flow.heartbeat_interval * 1000),
            "enable.auto.commit": "false",
            "allow.auto.create.topics": "false",
        }

    def _start_held(self, error: str | None) -> None:
        for flow in self._flows:
            status = flow.status
            if flow.is_active:
                continue
            if self.holds(flow.flow.name):
                # A flow that failed stays where it is: its error would be the same elsewhere.
                if status.state != FAILED:
                    flow.start()
            elif not self._stopping.is_set():
                status.state, status.error = UNASSIGNED, error

    def _hand_over(self, consumer: Consumer[Any, Any]) -> None:
        """Join again when flows that move have stopped."""
        active = {flow.flow.name for flow in self._flows if flow.is_active}
        with self._lock:
            has_stopped = bool(self._moving - active)
            self._moving &= active
        if has_stopped:
            consumer.enforce_rebalance("flows were stopped that move to other processes")

    def _end(self, error: Exception) -> None:
        logger.exception("The membership in group %s failed", self._flow.sharing_group, exc_info=error)
        with self._lock:
            self._assigned = frozenset()
        for flow in self._flows:
            flow.status.state, flow.status.error = FAILED, str(error)
