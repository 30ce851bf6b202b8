"""Offset commits of ConsumerThreads and HandlerPool, with a fake consumer."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.client.consumer.errors import Wakeup
from kavka.client.errors import KafkaTimeout
from kavka.common.types import TopicPartition as TP
from kavka.parallel import HandlerPool
from kavka.parallel.handling import Handling
from kavka.parallel.progress import Progress
from kavka.parallel.threads import _Loop


class FakeConsumer:
    """Commits raise the errors in `failures` in turn."""

    def __init__(self, *failures: BaseException) -> None:
        self.failures = list(failures)
        self.committed: list[dict[TP, Any]] = []

    def subscribe(self, *args: Any, **keywords: Any) -> None:
        pass

    def commit_sync(self, offsets: dict[TP, Any]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.committed.append(offsets)


def loop_of(consumer: FakeConsumer) -> _Loop:
    handling = Handling(lambda record: None, None, 0, 0.1)
    owner = SimpleNamespace(_handling=handling, _commit_interval=1.0, _topics=["t"], _pattern=None)
    return _Loop(owner, consumer)  # type: ignore[arg-type]


def test_offsets_of_a_revoked_partition_are_not_committed_later() -> None:
    consumer = FakeConsumer(KafkaTimeout("no coordinator"))
    loop = loop_of(consumer)
    loop._processed = {TP("t", 0): 5, TP("t", 1): 7}
    loop.on_partitions_revoked({TP("t", 0)})
    loop._commit(loop._processed)
    # The new owner may already be past offset 5.
    assert consumer.committed == [{TP("t", 1): 7}]


def test_thread_commits_despite_wakeups() -> None:
    consumer = FakeConsumer(*(Wakeup("stop") for _ in range(3)))
    loop = loop_of(consumer)
    loop._processed = {TP("t", 0): 5}
    loop._commit(loop._processed)
    assert consumer.committed == [{TP("t", 0): 5}]


@pytest.fixture
def pool() -> Iterator[HandlerPool]:
    pool = HandlerPool({"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}, ["t"], lambda record: None, workers=1)
    consumer = pool._consumer
    yield pool
    pool._consumer = consumer
    pool.stop()


def test_pool_commits_despite_wakeups(pool: HandlerPool) -> None:
    consumer = FakeConsumer(*(Wakeup("a worker failed") for _ in range(3)))
    pool._consumer = consumer  # type: ignore[assignment]
    progress = pool._progress[TP("t", 0)] = Progress()
    progress.advance(5)
    pool._commit(pool._progress)
    assert consumer.committed == [{TP("t", 0): 5}]
