"""Interceptors: user objects that see every record before it is serialised, and its outcome.

    class Interceptor:
        def on_send(self, record: ProducerRecord) -> ProducerRecord: ...
        def on_acknowledgement(self, metadata, exception): ...
        def close(self): ...
        def configure(self, configs): ...

Every method is optional. An exception is logged, and the next interceptor gets the same record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kavka.client.interceptors import InterceptorChain, call_each, pass_through
from kavka.client.producer.record import Callback, ProducerRecord, RecordMetadata
from kavka.common.errors import KafkaError


class Interceptors(InterceptorChain):
    def __init__(self, values: Iterable[Any], configs: Mapping[str, Any]) -> None:
        super().__init__(values, configs, "producer", ("on_send", "on_acknowledgement"))
        self._sending = self.methods("on_send")
        self._acknowledged = self.methods("on_acknowledgement")

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return pass_through(self._sending, "on_send", ProducerRecord, record, "a record")

    def callback(self, then: Callback | None) -> Callback | None:
        """A callback that calls the interceptors before `then`."""
        if not self._acknowledged:
            return then
        return _Acknowledge(self, then)

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        call_each(self._acknowledged, "on_acknowledgement", metadata, error)


class _Acknowledge:
    __slots__ = ("interceptors", "then")

    def __init__(self, interceptors: Interceptors, then: Callback | None) -> None:
        self.interceptors = interceptors
        self.then = then

    def __call__(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        self.interceptors.on_acknowledgement(metadata, error)
        if self.then is not None:
            self.then(metadata, error)
