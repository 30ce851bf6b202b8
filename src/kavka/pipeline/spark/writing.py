"""Writes the rows of a sink task without transactions: at least once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol

import pyarrow as pa

from kavka.client.producer.producer import Producer
from kavka.client.producer.record import ProducerRecord
from kavka.common.errors import KafkaError
from kavka.pipeline.spark.clients import SharedClient
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.options import SinkOptions
from kavka.pipeline.spark.rows import Future, Layout, Send, record_of, send, send_each


class SinkErrors(Protocol):
    """Handles records that were not written."""

    is_per_record: bool
    """Whether `failed` is called for each record. Otherwise the first error ends the task."""

    def failed(self, record: ProducerRecord[bytes, bytes], error: KafkaError) -> Sequence[ProducerRecord[bytes, bytes]]:
        """Return the records to write instead, or raise an exception that ends the task."""

    def end(self, error: KafkaError) -> NoReturn:
        """Raise the exception that ends the task."""


def send_record(producer: Producer, record: ProducerRecord[bytes, bytes]) -> Future:
    return producer.send(record.topic, record.value, record.key, record.partition, record.timestamp, record.headers)


_producer: SharedClient[Producer] = SharedClient(Producer, 0.0)


def write(
    options: SinkOptions,
    layout: Layout,
    batches: Iterable[pa.RecordBatch],
    send: Send = send,
    errors: SinkErrors | None = None,
) -> int:
    """Send all rows and wait until they are stored. Returns the number of rows."""
    rows = 0
    producer: Producer | None = None
    pending: deque[tuple[Sequence[Future], pa.RecordBatch]] = deque()
    instead: list[Future] = []
    if errors is not None and errors.is_per_record:
        send = send_each

    def check(futures: Sequence[Future], batch: pa.RecordBatch) -> None:
        assert producer is not None
        for index, future in enumerate(futures):
            try:
                future.get(None)
            except KafkaError as error:
                if errors is None:
                    raise PipelineError(f"a row was not written: {error}") from None
                if not errors.is_per_record:
                    errors.end(error)
                others = errors.failed(record_of(batch, layout, index), error)
                instead.extend(send_record(producer, record) for record in others)

    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            producer = producer or _producer.get(options.client)
            pending.append((send(producer, batch, layout), batch))
            rows += batch.num_rows
            while len(pending) > 1 and (not pending[0][0] or pending[0][0][-1].done()):
                check(*pending.popleft())
        if producer is not None:
            producer.flush()
            while pending:
                check(*pending.popleft())
            for future in instead:
                future.get(None)
    except KafkaError as error:
        _producer.discard()
        if errors is not None:
            errors.end(error)
        raise
    except BaseException:
        if producer is not None:
            _producer.discard()
        raise
    return rows
