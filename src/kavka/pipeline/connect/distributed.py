"""A worker of a group. The connectors are distributed over the live workers. When a worker fails,
the other workers take over its connectors.

The workers are members of a consumer group in which no member reads records. The assignor of its
leader (`WorkerAssignor`) assigns connectors instead of partitions. Every member reports the
connectors that it runs, and they stay in place if the result is balanced. Only the leader changes
configurations. Other workers forward such requests to the leader.

A worker holds its assignment while its last heartbeat is younger than two thirds of
`session.timeout.ms`. In the rest of the session it stops its connectors, because the group may have
removed it. It starts them again when the group assigns them to it.

Before a worker starts a connector whose previous owner is still a member, it waits until that
worker has published the state UNASSIGNED, or for `rebalance.timeout.ms`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kavka.client.consumer.assignors import Assignment, Assignor, Subscription
from kavka.client.consumer.consumer import Consumer
from kavka.common.errors import KafkaError
from kavka.pipeline.connect.herder import UNASSIGNED, Herder, RestError, WrongWorker, task_config_of
from kavka.pipeline.connect.peers import Peers
from kavka.pipeline.connect.publisher import Publisher
from kavka.pipeline.connect.session_keys import KeySettings, SignatureError
from kavka.pipeline.connect.settings import client_settings
from kavka.pipeline.connect.stores import ConfigStore, StatusStore
from kavka.pipeline.connect.tasks import Worker

logger = logging.getLogger(__name__)

_POLL_TIMEOUT = 0.2
_HELD_PART_OF_SESSION = 2 / 3
# The assignment of a worker whose id is also the id of another worker: without connectors, since
# both would otherwise run the same ones.
_DUPLICATE_ID: dict[str, Any] = {"leader": "", "workers": {}, "connectors": {}}


@dataclass(frozen=True)
class Assignments:
    """The leader's decision: the URL and the connectors of each worker, by worker id."""

    leader: str = ""
    generation: int = -1
    workers: Mapping[str, str] = field(default_factory=dict)
    connectors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def owner(self, name: str) -> str | None:
        return next((worker for worker, names in self.connectors.items() if name in names), None)

    def all(self) -> set[str]:
        return {name for names in self.connectors.values() for name in names}


def assign_connectors(connectors: Iterable[str], running: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """[pure] Returns the connectors of each worker. The numbers of connectors differ by at most
    one, and running connectors stay in place if possible."""
    names = sorted(set(connectors))
    workers = sorted(running)
    assignments: dict[str, list[str]] = {worker: [] for worker in workers}
    if not workers:
        return {}
    minimum, remainder = divmod(len(names), len(workers))
    assigned: set[str] = set()
    # The workers that run the most connectors get the remainder.
    for worker in sorted(workers, key=lambda worker: (-len(set(running[worker]) & set(names)), worker)):
        limit = minimum + (1 if remainder > 0 else 0)
        for name in sorted(set(running[worker]) & set(names) - assigned)[:limit]:
            assignments[worker].append(name)
            assigned.add(name)
        if len(assignments[worker]) > minimum:
            remainder -= 1
    for name in names:
        if name not in assigned:
            worker = min(workers, key=lambda worker: (len(assignments[worker]), worker))
            assignments[worker].append(name)
    return {worker: tuple(assigned_names) for worker, assigned_names in assignments.items()}


class WorkerAssignor(Assignor):
    """Assigns connectors. The user data of subscriptions and assignments is JSON."""

    name = "kavka-connect"

    def __init__(self, herder: DistributedHerder) -> None:
        self._herder = herder

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        herder = self._herder
        report = {"worker": herder.worker.id, "url": herder.url, "running": herder.running(), "process": herder.process}
        herder.on_join()
        return json.dumps(report).encode()

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Any]:
        workers: dict[str, str] = {}
        running: dict[str, list[str]] = {}
        owners: dict[str, str] = {}
        processes: dict[str, str] = {}
        for member, subscription in sorted(members.items()):
            try:
                report = json.loads(subscription.user_data or b"{}")
                worker, url = str(report["worker"]), str(report["url"])
                names = [str(name) for name in report["running"]]
                processes[member] = str(report.get("process", ""))
            except (ValueError, KeyError, TypeError, AttributeError):
                logger.warning("A member of the group of workers sent invalid user data and is assigned no connectors")
                continue
            if worker in owners and processes[member] != self._herder.process:
                continue
            workers[worker], running[worker], owners[worker] = url, names, member
        assignments = {
            "leader": self._herder.worker.id,
            "workers": workers,
            "connectors": assign_connectors(self._herder.configs.names(), running),
        }
        duplicates = set(processes) - set(owners.values())
        return {
            member: Assignment((), json.dumps(_DUPLICATE_ID if member in duplicates else assignments).encode())
            for member in members
        }

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        try:
            data = json.loads(assignment.user_data or b"{}")
            assignments = Assignments(
                str(data["leader"]),
                generation,
                {str(worker): str(url) for worker, url in data["workers"].items()},
                {str(worker): tuple(names) for worker, names in data["connectors"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            assignments = Assignments()
        if not assignments.leader:
            logger.error(
                "Another worker of the group also has the address %s. This worker runs no connectors until "
                "rest.advertised.host.name or listeners defines a unique address",
                self._herder.worker.id,
            )
        self._herder.set_assignments(assignments)


class DistributedHerder(Herder):
    """The herder of a worker in a group. It also owns the group membership and the current
    assignments."""

    def __init__(
        self,
        worker: Worker,
        configs: ConfigStore,
        statuses: StatusStore,
        settings: Mapping[str, Any],
        url: str,
        keys: KeySettings | None = None,
        peers: Peers | None = None,
    ) -> None:
        super().__init__(worker, configs, statuses)
        self._keys = keys or KeySettings()
        self._publisher = Publisher(self, self._keys, peers or Peers())
        self.url = url
        self.process = uuid.uuid4().hex
        """Distinguishes this worker from another worker with the same id."""
        self._has_joined = False
        self._held = Assignments()
        self._expires = 0.0
        """When this worker no longer holds its assignments, unless a heartbeat succeeds before."""
        self._joined = time.monotonic()
        """The time of the last JoinGroup request. The session begins after it."""
        self._hold_time = settings["session.timeout.ms"] / 1000 * _HELD_PART_OF_SESSION
        self._session_lock = threading.Lock()
        """Protects the four fields above: a rebalance runs in another thread."""
        self._settings = settings
        self._leaving = threading.Event()
        self._handover_timeout = settings["rebalance.timeout.ms"] / 1000
        self._waiting_since: dict[str, float] = {}
        self._member_thread = threading.Thread(target=self._run_member, name="connect-group", daemon=True)

    def start(self) -> None:
        super().start()
        self._member_thread.start()
        self._publisher.start()

    def close(self) -> None:
        """Stops all tasks, publishes their state, then leaves the group, so that other workers take
        over the connectors."""
        self._publisher.close()
        super().close()
        self._leaving.set()
        self._member_thread.join(30.0)

    def running(self) -> list[str]:
        return sorted(self._tasks)

    @property
    def _assignments(self) -> Assignments:
        """The current assignments. There are none if the group may have removed this worker."""
        with self._session_lock:
            return self._held if time.monotonic() < self._expires else Assignments()

    def on_join(self) -> None:
        with self._session_lock:
            self._joined = time.monotonic()

    def set_assignments(self, assignments: Assignments) -> None:
        logger.info(
            "Worker %s joined generation %d: the leader is %s, its connectors are %s", self.worker.id,
            assignments.generation, assignments.leader,
            ", ".join(assignments.connectors.get(self.worker.id, ())) or "none",
        )  # fmt: skip
        self._has_joined = True
        with self._session_lock:
            self._held = assignments
            self._expires = self._joined + self._hold_time
        self._waiting_since.clear()
        self.wake()

    # --- the group

    def _run_member(self) -> None:
        settings = self._settings
        consumer = Consumer(
            {
                **client_settings(self.worker.properties),
                "group.id": settings["group.id"],
                "group.protocol": "classic",
                "client.id": f"connect-{self.worker.id}",
                "partition.assignment.strategy": [WorkerAssignor(self)],
                "session.timeout.ms": settings["session.timeout.ms"],
                "heartbeat.interval.ms": settings["heartbeat.interval.ms"],
                "max.poll.interval.ms": max(settings["rebalance.timeout.ms"], settings["session.timeout.ms"]),
                "enable.auto.commit": "false",
            }
        )
        try:
            consumer.subscribe([settings["config.storage.topic"]])
            # The last generation in which this worker requested a rebalance.
            rebalanced_generation = -1
            while not self._leaving.is_set():
                try:
                    consumer.poll(_POLL_TIMEOUT)
                    generation = self._assignments.generation
                    if self._is_leader() and generation != rebalanced_generation and self._is_outdated():
                        rebalanced_generation = generation
                        consumer.enforce_rebalance("connectors were added or removed")
                except KafkaError as error:
                    logger.warning("Cannot poll the coordinator of the group of workers: %s", error)
                    self._leaving.wait(1.0)
                self._renew(consumer)
        finally:
            consumer.close(10.0)

    def _renew(self, consumer: Consumer[Any, Any]) -> None:
        """Extends the hold of the assignments to the last heartbeat. Stops all connectors if it has
        expired, or if the group has removed this worker. This thread does not wait for brokers, in
        contrast to that of the herder, which waits for the tasks to end."""
        with self._session_lock:
            held = self._held
        since_heartbeat = consumer.metrics()["last-heartbeat-seconds-ago"]
        is_member = consumer.group_metadata().generation_id >= 0
        with self._session_lock:
            if is_member and since_heartbeat >= 0:
                self._expires = max(self._expires, time.monotonic() - since_heartbeat + self._hold_time)
            elif not is_member and self._held is held:
                self._held = Assignments()
        if self._assignments.generation >= 0:
            return
        for task in list(self._tasks.values()):
            if not task.stopping.is_set():
                logger.warning(
                    "The coordinator of the group of workers does not respond to heartbeats. Stopping connector %s: "
                    "another worker may take it over", task.name,
                )  # fmt: skip
                threading.Thread(target=task.stop, args=(0.0,), name=f"connect-stop-{task.name}", daemon=True).start()
                self.wake()

    def _is_outdated(self) -> bool:
        return self._assignments.all() != set(self.configs.names())

    @property
    def is_ready(self) -> bool:
        """Whether the worker has joined the group since its start."""
        return self._has_joined

    def health(self, timeout_s: float) -> str | None:
        deadline = time.monotonic() + timeout_s
        while self._assignments.generation < 0:
            if time.monotonic() >= deadline:
                return "It is not a member of the group of workers."
            time.sleep(_POLL_TIMEOUT)
        return super().health(max(0.0, deadline - time.monotonic()))

    def set_cluster_level(self, name: str, level: str) -> None:
        self.configs.put_log_level(name, level)

    def _is_leader(self) -> bool:
        return bool(self._assignments.leader == self.worker.id)

    @property
    def generation(self) -> int:
        return max(self._assignments.generation, 0)

    # --- the records that the publisher writes

    def leader_url(self) -> str | None:
        return "" if self._is_leader() else self._assignments.workers.get(self._assignments.leader)

    def task_configs(self) -> dict[str, list[dict[str, str]]]:
        return {
            name: [task_config_of(task.originals)] * task.count
            for name, task in list(self._tasks.items())
            if task.originals == self.configs.config(name)
        }

    # --- overrides of Herder

    def verify(self, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            self._keys.verify(self.configs.session_key(), body, headers)
        except SignatureError as error:
            raise RestError(error.code, str(error)) from None

    def put_task_configs(self, name: str, body: Any) -> None:
        self.require_leader()
        expected = task_config_of(self.config(name))
        # A request for an earlier configuration or for another connector, for example a repeated
        # request, changes nothing.
        if not isinstance(body, list) or not body or any(config != expected for config in body):
            raise RestError(409, f"The task configurations are not those of the current configuration of {name}")
        if self.configs.task_configs(name) != body:
            self.configs.put_task_configs(name, body)

    def owns(self, name: str) -> bool:
        return name in self._assignments.connectors.get(self.worker.id, ())

    def may_start(self, name: str) -> bool:
        if name in self._tasks:
            return True
        status = self.statuses.connector(name)
        if status is None or status.worker_id == self.worker.id or status.state == UNASSIGNED:
            return True
        if status.worker_id not in self._assignments.workers:
            return True
        # A live owner publishes UNASSIGNED when it has stopped the connector. An owner that does
        # not do so in time is assumed not to run it.
        since = self._waiting_since.setdefault(name, time.monotonic())
        return bool(time.monotonic() - since > self._handover_timeout)

    def _reconcile(self) -> None:
        super()._reconcile()
        # Connectors that this worker ran before it was restarted, and does not run now.
        for name in self.statuses.names():
            if name not in self._tasks and not self.owns(name) and self._assignments.generation >= 0:
                self._unassign(name)

    def _unassign(self, name: str) -> None:
        """Publishes the state only as a member: another worker may have published its own."""
        if self._assignments.generation >= 0:
            super()._unassign(name)

    def _deletes_statuses(self) -> bool:
        return self._is_leader()

    def require_leader(self) -> None:
        if not self._is_leader():
            raise WrongWorker(self._assignments.workers.get(self._assignments.leader))

    def require_owner(self, name: str) -> None:
        owner = self._assignments.owner(name)
        if owner != self.worker.id:
            raise WrongWorker(self._assignments.workers.get(owner or ""))
