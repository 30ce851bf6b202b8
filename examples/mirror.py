"""Mirror a cluster to another one, and move a consumer group from the first to the second.

    python examples/mirror.py

A producer writes orders to cluster `one`. A group handles some of them there, and the remaining
ones in cluster `two`. It handles each order once.
"""

from __future__ import annotations

import time

from kavka import Admin, Consumer, NewTopic, Producer, TopicPartition
from kavka.pipeline.mirror.running import Mirror, session
from kavka.pipeline.mirror.settings import flows_of
from kavka.testing import Broker

ORDERS = 1000
HANDLED_AT_ONE = 400


def handle(servers: str, topic: str, count: int) -> list[int]:
    """Read and commit records with the group `shop`, and return their values."""
    handled: list[int] = []
    with Consumer(
        bootstrap_servers=servers, group_id="shop", auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe([topic])
        while len(handled) < count:
            handled += [int(record.value) for record in consumer.poll(1.0, count - len(handled))]
        consumer.commit_sync()
    return handled


def main() -> None:
    with Broker() as source, Broker() as target:
        with Admin(bootstrap_servers=source.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders", 1)])
        with Producer(bootstrap_servers=source.bootstrap_servers) as producer:
            for number in range(ORDERS):
                producer.send("orders", value=str(number), key=f"customer-{number % 7}")
        first = handle(source.bootstrap_servers, "orders", HANDLED_AT_ONE)
        print(f"the group has handled {len(first)} orders at one", flush=True)

        flows = flows_of(
            {
                "clusters": "one, two",
                "one.bootstrap.servers": source.bootstrap_servers,
                "two.bootstrap.servers": target.bootstrap_servers,
                "one->two.enabled": "true",
                "sync.group.offsets.enabled": "true",
                "sync.group.offsets.interval.seconds": "1",
                "emit.checkpoints.interval.seconds": "1",
                "refresh.groups.interval.seconds": "1",
            }
        )
        spark = session("local[2]")
        mirror = Mirror(flows, spark)
        mirror.start()
        try:
            mirrored = TopicPartition("one.orders", 0)
            with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
                while True:
                    committed = admin.list_consumer_group_offsets("shop").get(mirrored)
                    if committed is not None and committed.offset == HANDLED_AT_ONE:
                        break
                    time.sleep(0.2)
            print(mirror.statuses()[0].line(), flush=True)
            remaining = handle(target.bootstrap_servers, "one.orders", ORDERS - HANDLED_AT_ONE)
            print(f"the group has handled {len(remaining)} orders at two", flush=True)
            assert first + remaining == list(range(ORDERS))
        finally:
            mirror.stop()
            spark.stop()


if __name__ == "__main__":
    main()
