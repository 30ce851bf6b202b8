"""The settings of a new topic apply from its first record on."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kavka.testing import Broker


def test_settings_of_a_new_topic_apply_from_the_first_record_on(kavka_broker: Broker) -> None:
    servers = {"bootstrap.servers": kavka_broker.bootstrap_servers}
    topic = NewTopic("small", num_partitions=1, config={"segment.bytes": "1000"})
    admin = AdminClient(servers)
    for future in admin.create_topics([topic]).values():
        future.result(10)
    producer = Producer({**servers, "linger.ms": 0, "batch.num.messages": 1})
    for _ in range(5):
        producer.produce("small", value=b"x" * 400)
        assert producer.flush(10) == 0
    segments = sorted(path.name for path in (kavka_broker.log_dir / "small-0").glob("*.log"))
    assert segments == ["00000000000000000000.log", "00000000000000000002.log", "00000000000000000004.log"]
