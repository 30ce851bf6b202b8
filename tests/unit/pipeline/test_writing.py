"""The error handler of a sink gets the records that the sink cannot write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from kavka import ProducerRecord
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.spark import writing
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.options import sink_options
from kavka.pipeline.spark.rows import Layout

LAYOUT = Layout(None, value=2, key=1, topic=0)
OPTIONS = sink_options({"kafka.bootstrap.servers": "x:1"})
TOO_LARGE = KafkaError(ErrorCode.MESSAGE_TOO_LARGE)


class Future:
    def __init__(self, error: KafkaError | None) -> None:
        self.error = error

    def done(self) -> bool:
        return True

    def get(self, timeout: float | None = None) -> None:
        if self.error is not None:
            raise self.error


class Producer:
    """Does not accept the value `local`, and its broker refuses the value `remote`."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, topic: str, value: Any, key: Any, partition: Any, timestamp: Any, headers: Any) -> Future:
        if value == b"local":
            raise TOO_LARGE
        self.sent.append((topic, key, value))
        return Future(TOO_LARGE if value == b"remote" else None)

    def flush(self) -> None: ...

    def close(self, timeout: float) -> None: ...


class Errors:
    is_per_record = True

    def __init__(self, result: Sequence[ProducerRecord[bytes, bytes]] | Exception) -> None:
        self._result = result
        self.records: list[Any] = []

    def failed(self, record: ProducerRecord[bytes, bytes], error: KafkaError) -> Any:
        self.records.append((record.topic, record.key, record.value, error.code))
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def end(self, error: KafkaError) -> NoReturn:
        raise PipelineError(f"ended: {error}")


def rows(*values: bytes) -> list[pa.RecordBatch]:
    columns = [["t"] * len(values), [b"k"] * len(values), list(values)]
    return [pa.RecordBatch.from_arrays([pa.array(column) for column in columns], ["topic", "key", "value"])]


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> Producer:
    producer = Producer()
    monkeypatch.setattr(writing._producer, "get", lambda settings: producer)
    return producer


def test_records_that_fail_are_left_out_and_others_are_written_instead(producer: Producer) -> None:
    errors = Errors([ProducerRecord("dlq", b"why", b"k")])
    assert writing.write(OPTIONS, LAYOUT, rows(b"1", b"local", b"remote", b"2"), errors=errors) == 4
    assert errors.records == [
        ("t", b"k", b"local", ErrorCode.MESSAGE_TOO_LARGE),
        ("t", b"k", b"remote", ErrorCode.MESSAGE_TOO_LARGE),
    ]
    assert [value for _, _, value in producer.sent] == [b"1", b"remote", b"2", b"why", b"why"]


def test_the_exception_of_a_handler_ends_the_task(producer: Producer) -> None:
    with pytest.raises(ValueError, match="stop"):
        writing.write(OPTIONS, LAYOUT, rows(b"1", b"remote"), errors=Errors(ValueError("stop")))


@pytest.mark.parametrize("value", [b"local", b"remote"])
def test_without_a_handler_per_record_the_first_error_ends_the_task(producer: Producer, value: bytes) -> None:
    errors = Errors([])
    errors.is_per_record = False
    with pytest.raises(PipelineError, match="ended: message too large"):
        writing.write(OPTIONS, LAYOUT, rows(value), errors=errors)
    assert errors.records == []
    with pytest.raises((PipelineError, KafkaError), match="message too large"):
        writing.write(OPTIONS, LAYOUT, rows(value))
