"""What a task of the sink does without transactions: at least once."""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from kavka.client.producer.producer import Producer
from kavka.common.errors import KafkaError
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.options import SinkOptions
from kavka.pipeline.spark.rows import Future, Layout, Send, send


def write(options: SinkOptions, where: Layout, batches: Iterable[pa.RecordBatch], send: Send = send) -> int:
    """Send all rows and wait until they are stored; how many there were."""
    rows = 0
    producer: Producer | None = None
    waiting: deque[Sequence[Future]] = deque()
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            producer = producer or _producer(options.client)
            waiting.append(send(producer, batch, where))
            rows += batch.num_rows
            while len(waiting) > 1 and (not waiting[0] or waiting[0][-1].done()):
                _check(waiting.popleft())
        if producer is not None:
            producer.flush()
            while waiting:
                _check(waiting.popleft())
    except BaseException:
        if producer is not None:
            _forget(producer)
        raise
    return rows


def _check(futures: Sequence[Future]) -> None:
    """All of them are done, or will be in a moment."""
    for future in futures:
        try:
            future.get(None)
        except KafkaError as error:
            raise PipelineError(f"a row was not written: {error}") from None


# --- one producer for all tasks of this process, as in `reading.py`

_producers: dict[tuple[int, tuple[tuple[str, str], ...]], Producer] = {}


def _producer(settings: Mapping[str, str]) -> Producer:
    key = os.getpid(), tuple(sorted(settings.items()))
    found = _producers.get(key)
    if found is None:
        for old in list(_producers.values()):
            _forget(old)
        found = _producers[key] = Producer(dict(settings))
    return found


def _forget(producer: Producer) -> None:
    for key, one in list(_producers.items()):
        if one is producer:
            del _producers[key]
            if key[0] == os.getpid():
                one.close(0.0)


@atexit.register
def _close_all() -> None:
    for producer in list(_producers.values()):
        _forget(producer)
