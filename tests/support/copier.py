"""A transactional consume-transform-produce loop, as a process that tests kill at any moment.

The arguments are the bootstrap servers, the input topic, the output topic, and a name that is both
the group and the transactional id. The process copies every record to the same partition of the
output topic until it is killed."""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer

# When its only broker stops, librdkafka 2.16 starts again with the bootstrap servers, and then
# never finds the cached group coordinator. These settings make it use the brokers in its metadata.
KEEP_TO_KNOWN_BROKERS = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 500}


def main(bootstrap: str, source: str, sink: str, name: str) -> None:
    while True:
        try:
            copy(bootstrap, source, sink, name)
        except KafkaException as error:
            # Fenced, or the broker was unavailable for too long: start again, as a restarted
            # process would.
            print("restarting:", error, flush=True)


def copy(bootstrap: str, source: str, sink: str, name: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
            "log_level": 0,
            **KEEP_TO_KNOWN_BROKERS,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "linger.ms": 1,
            "log_level": 0,
            **KEEP_TO_KNOWN_BROKERS,
        }
    )
    try:
        producer.init_transactions(60)
        consumer.subscribe([source])
        while True:
            messages = [m for m in consumer.consume(25, 0.5) if m.error() is None]
            if messages:
                transform(consumer, producer, sink, messages)
    finally:
        consumer.close()


def transform(consumer: Consumer, producer: Producer, sink: str, messages: list[Message]) -> None:
    producer.begin_transaction()
    for message in messages:
        producer.produce(sink, b"copy of " + (message.value() or b""), partition=message.partition())
    positions = consumer.position(consumer.assignment())
    retry(producer.send_offsets_to_transaction, positions, consumer.consumer_group_metadata(), 30)
    retry(producer.commit_transaction, 30)


def retry(call: object, *args: object) -> None:
    while True:
        try:
            call(*args)  # type: ignore[operator]
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
