"""A worker loses its connection to the brokers, and another one takes over its connectors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from kavka.connect import Context, IncrementalSource, Offsets
from kavka.pipeline.connect.distributed import DistributedHerder
from kavka.pipeline.connect.herder import WrongWorker
from kavka.pipeline.connect.loading import Declared
from kavka.pipeline.connect.stores import STARTED, ConfigStore, OffsetStore, StatusStore
from kavka.pipeline.connect.tasks import Worker
from kavka.pipeline.connect.topic_table import TopicTable
from kavka.testing import Broker
from tests.support.processes import free_port, wait_until
from tests.support.proxy import Proxy

pytestmark = pytest.mark.timeout(180)

SESSION_TIMEOUT_S = 6.0
TIMEOUT_S = 60.0
NAMES = ("a", "b")


class Polling(IncrementalSource):
    """A source without data. It records its polls: the worker, the connector and the time."""

    polls: list[tuple[str, str, float]] = []
    poll_interval = 0.05

    def next(self, context: Context, start: Offsets) -> Offsets | None:
        self.polls.append((context.checkpoint.partition("/")[0], context.name, time.monotonic()))
        return None


class GroupWorker:
    """A worker of a group in this process, without a REST interface and Spark."""

    def __init__(self, name: str, servers: str) -> None:
        self.name = name
        self.tables = [
            TopicTable({"bootstrap.servers": servers}, f"connect-{kind}", 1, 1, self._on_change)
            for kind in ("config", "offset", "status")
        ]
        properties = {
            "bootstrap.servers": servers, "key.converter": "StringConverter", "value.converter": "StringConverter",
        }  # fmt: skip
        declared = Declared(modules=frozenset({__name__}))
        # The connector reads no data, and needs no Spark.
        worker = Worker(name, properties, lambda: None, name, OffsetStore(self.tables[1]), declared=declared)  # type: ignore[arg-type, return-value]
        settings = {
            "group.id": "workers", "config.storage.topic": "connect-config", "rebalance.timeout.ms": 20_000,
            "session.timeout.ms": int(SESSION_TIMEOUT_S * 1000), "heartbeat.interval.ms": 500,
        }  # fmt: skip
        self.configs = ConfigStore(self.tables[0])
        self.statuses = StatusStore(self.tables[2])
        self.herder = DistributedHerder(worker, self.configs, self.statuses, settings, f"http://{name}")

    def _on_change(self, key: str, value: str | None) -> None:
        herder = getattr(self, "herder", None)
        if herder is not None:
            herder.wake()

    def close(self) -> None:
        self.herder.close()
        for table in self.tables:
            table.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", 0)) as proxy:
        yield proxy


@pytest.fixture
def workers(proxy: Proxy, tmp_path: Path) -> Iterator[tuple[GroupWorker, GroupWorker]]:
    """A worker that accesses the broker through the proxy, and another one."""
    ports = free_port(), free_port()
    proxy.target = "127.0.0.1", ports[1]
    direct = f"PLAINTEXT://127.0.0.1:{ports[0]}"
    with Broker(
        listeners=f"{direct},PROXIED://127.0.0.1:{ports[1]}",
        advertised_listeners=f"{direct},PROXIED://{proxy.address}",
        listener_security_protocol_map="PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT",
        group_initial_rebalance_delay_ms=0,
        log_dir=tmp_path / "data",
    ):
        cut, other = GroupWorker("cut:1", proxy.address), GroupWorker("other:1", f"127.0.0.1:{ports[0]}")
        try:
            yield cut, other
        finally:
            proxy.refuse(False)
            cut.close()
            other.close()


def owners(worker: GroupWorker) -> dict[str, tuple[str, str]]:
    """Return the state and the worker of each task, according to a worker."""
    return {name: (task.state, task.worker_id) for name in NAMES for task in worker.statuses.tasks(name).values()}


def test_a_worker_without_its_coordinator_stops_before_others_take_over(
    workers: tuple[GroupWorker, GroupWorker], proxy: Proxy
) -> None:
    cut, other = workers
    Polling.polls = []
    for name in NAMES:
        other.configs.put(name, {"name": name, "connector.class": f"{__name__}.Polling"}, STARTED)
    for worker in workers:
        worker.herder.start()
    wait_until(
        lambda: sorted(owners(other).values()) == [("RUNNING", "cut:1"), ("RUNNING", "other:1")],
        timeout=TIMEOUT_S, what="each worker runs a connector", interval=0.1,
    )  # fmt: skip
    (moved,) = [name for name, owner in owners(other).items() if owner[1] == "cut:1"]
    cut_at = time.monotonic()
    proxy.refuse(True)
    wait_until(
        lambda: owners(other)[moved] == ("RUNNING", "other:1"), timeout=TIMEOUT_S, what="a takeover", interval=0.1
    )
    wait_until(
        lambda: times("other:1", moved, cut_at), timeout=TIMEOUT_S, what="a poll after the takeover", interval=0.05
    )
    time.sleep(1.0)
    last_before, first_after = times("cut:1", moved)[-1], times("other:1", moved, cut_at)[0]
    assert cut_at < last_before < first_after
    assert last_before - cut_at < SESSION_TIMEOUT_S
    assert not cut.herder.running()
    with pytest.raises(WrongWorker):
        cut.herder.require_owner(moved)
    proxy.refuse(False)
    wait_until(
        lambda: sorted(owners(other).values()) == [("RUNNING", "cut:1"), ("RUNNING", "other:1")],
        timeout=TIMEOUT_S, what="the worker runs a connector again", interval=0.1,
    )  # fmt: skip
    (name,) = [name for name, owner in owners(other).items() if owner[1] == "cut:1"]
    returned_at = time.monotonic()
    wait_until(lambda: times("cut:1", name, returned_at), timeout=TIMEOUT_S, what="a poll", interval=0.05)
    for name in NAMES:
        assert not overlaps(name)


def times(worker: str, connector: str, since: float = 0.0) -> list[float]:
    polls = list(Polling.polls)
    return [at for poller, name, at in polls if (poller, name) == (worker, connector) and at > since]


def overlaps(connector: str) -> bool:
    """Whether two workers ran the connector at the same time: their polls alternate more often than
    the connector moved."""
    pollers = [poller for poller, name, _ in sorted(Polling.polls, key=lambda poll: poll[2]) if name == connector]
    changes = sum(before != after for before, after in pairwise(pollers))
    return changes > 5
