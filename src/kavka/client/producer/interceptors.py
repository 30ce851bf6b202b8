"""Interceptors of a producer. They process every record before it is serialized, and are notified
of the outcome of the record.

    class Interceptor:
        def on_send(self, record: ProducerRecord) -> ProducerRecord: ...
        def on_acknowledgement(self, metadata, exception): ...
        def close(self): ...
        def configure(self, configs): ...

Every method is optional. If an interceptor fails, the error is logged, and the next interceptor
gets the unchanged record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kavka.client.interceptors import InterceptorChain, call_each, pass_through
from kavka.client.producer.record import Callback, ProducerRecord, RecordMetadata
from kavka.common.errors import KafkaError


class Interceptors(InterceptorChain):
    """Owns the producer's interceptors. `on_send` runs in the thread that calls `send`,
    `on_acknowledgement` usually in the I/O thread."""

    def __init__(self, values: Iterable[Any], configs: Mapping[str, Any]) -> None:
        super().__init__(values, configs, "producer", ("on_send", "on_acknowledgement"))
        self._send_methods = self.methods("on_send")
        self._acknowledgement_methods = self.methods("on_acknowledgement")

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return pass_through(self._send_methods, "on_send", ProducerRecord, record, "a record")

    def callback(self, callback: Callback | None) -> Callback | None:
        """Return a callback that calls the interceptors before `callback`."""
        return _AcknowledgementCallback(self, callback) if self._acknowledgement_methods else callback

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        call_each(self._acknowledgement_methods, "on_acknowledgement", metadata, error)


@dataclass(slots=True, eq=False)
class _AcknowledgementCallback:
    interceptors: Interceptors
    callback: Callback | None

    def __call__(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        self.interceptors.on_acknowledgement(metadata, error)
        if self.callback is not None:
            self.callback(metadata, error)
