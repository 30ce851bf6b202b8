"""A consume-transform-produce loop in transactions, as a process that tests kill at any moment.

Arguments: bootstrap servers, input topic, output topic, group and transactional id. It copies
every record with its position from the input to the same partition of the output until it is
killed."""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, KafkaException, Message, Producer

# When its only broker goes away librdkafka 2.16 begins from the bootstrap servers again, and then
# never finds the group coordinator that it had cached: it must keep to the brokers that it knows.
KEEP_TO_KNOWN_BROKERS = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 500}


def main(bootstrap: str, source: str, sink: str, name: str) -> None:
    while True:
        try:
            copy(bootstrap, source, sink, name)
        except KafkaException as error:
            # Fenced, or the broker was unavailable for too long: start again, as a restarted
            # process would.
            print("begins anew:", error, flush=True)


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
    retried(producer.send_offsets_to_transaction, positions, consumer.consumer_group_metadata(), 30)
    retried(producer.commit_transaction, 30)


def retried(call: object, *args: object) -> None:
    while True:
        try:
            call(*args)  # type: ignore[operator]
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
