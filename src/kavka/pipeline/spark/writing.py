"""Writes the rows of a sink task without transactions: at least once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import pyarrow as pa

from kavka.client.producer.producer import Producer
from kavka.common.errors import KafkaError
from kavka.pipeline.spark.clients import SharedClient
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.options import SinkOptions
from kavka.pipeline.spark.rows import Future, Layout, Send, send

_producer: SharedClient[Producer] = SharedClient(Producer, 0.0)


def write(options: SinkOptions, layout: Layout, batches: Iterable[pa.RecordBatch], send: Send = send) -> int:
    """Send all rows and wait until they are stored. Returns the number of rows."""
    rows = 0
    producer: Producer | None = None
    pending: deque[Sequence[Future]] = deque()
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            producer = producer or _producer.get(options.client)
            pending.append(send(producer, batch, layout))
            rows += batch.num_rows
            while len(pending) > 1 and (not pending[0] or pending[0][-1].done()):
                _check(pending.popleft())
        if producer is not None:
            producer.flush()
            while pending:
                _check(pending.popleft())
    except BaseException:
        if producer is not None:
            _producer.discard()
        raise
    return rows


def _check(futures: Sequence[Future]) -> None:
    """Raise PipelineError for the first row that was not written."""
    for future in futures:
        try:
            future.get(None)
        except KafkaError as error:
            raise PipelineError(f"a row was not written: {error}") from None
