"""asyncio clients that were not started, and blocking clients in a forked child."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kavka import KafkaError
from kavka.aio import Admin, Consumer, Producer

SERVERS = "127.0.0.1:1"


@pytest.mark.parametrize(
    "call",
    [
        lambda: Producer(bootstrap_servers=SERVERS).send("t", "x"),
        lambda: Producer(bootstrap_servers=SERVERS).partitions_for("t"),
        lambda: Producer(bootstrap_servers=SERVERS, transactional_id="x").init_transactions(),
        lambda: Consumer(bootstrap_servers=SERVERS).assign([("t", 0)]),
        lambda: Admin(bootstrap_servers=SERVERS).list_topics(),
        lambda: Admin(bootstrap_servers=SERVERS).describe_topics(["t"]),
    ],
)
def test_client_that_was_not_started_raises_at_once(call: Callable[[], Awaitable[Any]]) -> None:
    async def work() -> None:
        with pytest.raises(KafkaError, match="is not started: use `async with`, or `await"):
            await asyncio.wait_for(call(), 30)

    asyncio.run(work())


IN_A_CHILD = """
import os, sys
from kavka import Admin, Consumer, Producer
from kavka.client.producer._append import PartitionQueue, TopicQueues

producer, consumer, admin = (make(bootstrap_servers="127.0.0.1:1") for make in (Producer, Consumer, Admin))
# Add the topic, so that `send` needs no metadata.
queues = TopicQueues("t")
queues.queues.append(PartitionQueue(producer._core.accumulator, "t", 0))
queues.count, queues.available = 1, (0,)
producer._accumulator.topics = {"t": queues}
consumer.assign([("t", 0)])
child = os.fork()
if not child:
    for name, call in {
        "send": lambda: producer.send("t", "x").get(),
        "flush": producer.flush,
        "poll": lambda: consumer.poll(1),
        "list": admin.list_topics,
    }.items():
        try:
            print(name, "returned", call())
        except Exception as error:
            print(name, error)
    for client in (producer, consumer, admin):
        client.close()
    print("closed", flush=True)
    os._exit(0)
os.waitpid(child, 0)
print("parent", producer.send("t", "x").done(), flush=True)
producer.close(0)
consumer.close(0)
admin.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_client_created_before_a_fork_works_only_in_the_parent() -> None:
    process = subprocess.run(
        [sys.executable, "-c", IN_A_CHILD], capture_output=True, text=True, timeout=120, check=False
    )
    error = "the client was created before a fork; create a client in each process"
    expected = [*(f"{name} {error}" for name in ("send", "flush", "poll", "list")), "closed", "parent False"]
    assert process.stdout.splitlines() == expected, process.stderr
    assert process.returncode == 0, process.stderr
