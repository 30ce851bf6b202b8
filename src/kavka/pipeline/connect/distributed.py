"""A worker of a group: connectors are shared out among the workers that live, and taken over when one dies.

The workers are members of a consumer group that reads nothing; its leader's assignor (`WorkerAssignor`) gives out
connectors in place of partitions. Every member tells what it runs, so that connectors stay where they are if that is
fair. The leader alone changes configurations; requests to others are sent on to it.

A connector is never run by two workers that know of each other: before a worker starts one, it waits until the last
owner, if that is still a member, has told by its status that it has stopped (UNASSIGNED).
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
from kavka.pipeline.connect.herder import UNASSIGNED, Herder, NotLeader
from kavka.pipeline.connect.settings import client_settings
from kavka.pipeline.connect.stores import ConfigStore, StatusStore
from kavka.pipeline.connect.tasks import Worker

log = logging.getLogger(__name__)

_POLL = 0.2
# For a worker whose id another one has: both would run the connectors of that id.
_NAMESAKE: dict[str, Any] = {"leader": "", "workers": {}, "connectors": {}}


@dataclass(frozen=True)
class Shares:
    """Who does what, as the leader has said: by worker id its URL, and its connectors."""

    leader: str = ""
    generation: int = -1
    workers: Mapping[str, str] = field(default_factory=dict)
    connectors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def owner(self, name: str) -> str | None:
        return next((worker for worker, names in self.connectors.items() if name in names), None)

    def all(self) -> set[str]:
        return {name for names in self.connectors.values() for name in names}


def shared_out(connectors: Iterable[str], running: Mapping[str, Iterable[str]]) -> dict[str, tuple[str, ...]]:
    """[pure] Connectors by worker: none has two more than another, and whatever runs stays where it is if it can."""
    wanted = sorted(set(connectors))
    workers = sorted(running)
    shares: dict[str, list[str]] = {worker: [] for worker in workers}
    if not workers:
        return {}
    least, more = divmod(len(wanted), len(workers))
    taken: set[str] = set()
    # Those who run most may have one more than the others.
    for worker in sorted(workers, key=lambda one: (-len(set(running[one]) & set(wanted)), one)):
        room = least + (1 if more > 0 else 0)
        for name in sorted(set(running[worker]) & set(wanted) - taken)[:room]:
            shares[worker].append(name)
            taken.add(name)
        if len(shares[worker]) > least:
            more -= 1
    for name in wanted:
        if name not in taken:
            fewest = min(workers, key=lambda one: (len(shares[one]), one))
            shares[fewest].append(name)
    return {worker: tuple(names) for worker, names in shares.items()}


class WorkerAssignor(Assignor):
    """What a member tells and hears is JSON in the user data of the subscription and the assignment."""

    name = "kavka-connect"

    def __init__(self, herder: DistributedHerder) -> None:
        self._herder = herder

    def user_data(self, topics: frozenset[str]) -> bytes | None:
        herder = self._herder
        member = {
            "worker": herder.worker.id,
            "url": herder.url,
            "running": herder.running(),
            "process": herder.process,
        }
        return json.dumps(member).encode()

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Mapping[str, Any]:
        workers: dict[str, str] = {}
        running: dict[str, list[str]] = {}
        owners: dict[str, str] = {}
        processes: dict[str, str] = {}
        for member, subscription in sorted(members.items()):
            try:
                about = json.loads(subscription.user_data or b"{}")
                worker, url, names = str(about["worker"]), str(about["url"]), [str(name) for name in about["running"]]
                processes[member] = str(about.get("process", ""))
            except (ValueError, KeyError, TypeError, AttributeError):
                log.warning("A member of the group of workers tells nothing of itself, and gets nothing")
                continue
            if worker in owners and processes[member] != self._herder.process:
                continue
            workers[worker], running[worker], owners[worker] = url, names, member
        shares = {
            "leader": self._herder.worker.id,
            "workers": workers,
            "connectors": shared_out(self._herder.configs.names(), running),
        }
        data, nothing = json.dumps(shares).encode(), json.dumps(_NAMESAKE).encode()
        alone = set(processes) - set(owners.values())
        return {member: Assignment((), nothing if member in alone else data) for member in members}

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        try:
            found = json.loads(assignment.user_data or b"{}")
            shares = Shares(
                str(found["leader"]),
                generation,
                {str(worker): str(url) for worker, url in found["workers"].items()},
                {str(worker): tuple(names) for worker, names in found["connectors"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            shares = Shares()
        if not shares.leader:
            log.error(
                "Another worker of the group has the address %s as well: no connector runs here until "
                "rest.advertised.host.name, or listeners, gives this worker an address of its own",
                self._herder.worker.id,
            )
        self._herder.assigned(shares)


class DistributedHerder(Herder):
    def __init__(
        self, worker: Worker, configs: ConfigStore, statuses: StatusStore, settings: Mapping[str, Any], url: str
    ) -> None:
        super().__init__(worker, configs, statuses)
        self.url = url
        self.process = uuid.uuid4().hex
        """Tells this worker from another with the same id."""
        self._shares = Shares()
        self._settings = settings
        self._leaving = threading.Event()
        self._patience = settings["rebalance.timeout.ms"] / 1000
        self._waiting: dict[str, float] = {}
        self._member = threading.Thread(target=self._belong, name="connect-group", daemon=True)

    def start(self) -> None:
        super().start()
        self._member.start()

    def close(self) -> None:
        """First all tasks are stopped, and others told so; then the group is left, which gives them to others."""
        super().close()
        self._leaving.set()
        self._member.join(30.0)

    def running(self) -> list[str]:
        return sorted(self._tasks)

    def assigned(self, shares: Shares) -> None:
        log.info(
            "Worker %s of generation %d: the leader is %s, connectors here: %s", self.worker.id, shares.generation,
            shares.leader, ", ".join(shares.connectors.get(self.worker.id, ())) or "none",
        )  # fmt: skip
        self._shares = shares
        self._waiting.clear()
        self.wake()

    def heard(self, key: str) -> None:
        """A record of one of the topics has come."""
        self.wake()

    # --- the group

    def _belong(self) -> None:
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
            # The generation whose shares are being made anew.
            asked = -1
            while not self._leaving.is_set():
                try:
                    consumer.poll(_POLL)
                    if self._is_leader() and self._shares.generation != asked and self._is_outdated():
                        asked = self._shares.generation
                        consumer.enforce_rebalance("connectors have come or gone")
                except KafkaError as error:
                    log.warning("The group of workers: %s", error)
                    self._leaving.wait(1.0)
        finally:
            consumer.close(10.0)

    def _is_outdated(self) -> bool:
        return self._shares.all() != set(self.configs.names())

    def _is_leader(self) -> bool:
        return bool(self._shares.leader == self.worker.id)

    @property
    def generation(self) -> int:
        return max(self._shares.generation, 0)

    # --- what is different from a standalone worker

    def owns(self, name: str) -> bool:
        return name in self._shares.connectors.get(self.worker.id, ())

    def may_start(self, name: str) -> bool:
        if name in self._tasks:
            return True
        status = self.statuses.connector(name)
        if status is None or status.worker_id == self.worker.id or status.state == UNASSIGNED:
            return True
        if status.worker_id not in self._shares.workers:
            return True
        # It lives, and will tell; one that never does has lost its memory of the connector.
        since = self._waiting.setdefault(name, time.monotonic())
        return bool(time.monotonic() - since > self._patience)

    def _step(self) -> None:
        super()._step()
        # What this worker ran before it was restarted, and does not run now.
        for name in self.statuses.names():
            if name not in self._tasks and not self.owns(name) and self._shares.generation >= 0:
                self._unassign(name)

    def _cleans_up(self) -> bool:
        return self._is_leader()

    def lead(self) -> None:
        if not self._is_leader():
            raise NotLeader(self._shares.workers.get(self._shares.leader))

    def own(self, name: str) -> None:
        owner = self._shares.owner(name)
        if owner != self.worker.id:
            raise NotLeader(self._shares.workers.get(owner or ""))
