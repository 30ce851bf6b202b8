"""Interceptors: objects of the user's that see every record before it is serialised, and what became of it.

    class Interceptor:
        def on_send(self, record: ProducerRecord) -> ProducerRecord: ...
        def on_acknowledgement(self, metadata, exception): ...
        def close(self): ...
        def configure(self, configs): ...

Each method may be missing. What one raises goes to the log, and the next one gets what this one got.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kavka.client.interceptors import InterceptorChain, pass_through, tell
from kavka.client.producer.record import Callback, ProducerRecord, RecordMetadata


class Interceptors(InterceptorChain):
    def __init__(self, values: Iterable[Any], configs: Mapping[str, Any]) -> None:
        super().__init__(values, configs, "producer", ("on_send", "on_acknowledgement"))
        self._sending = self.having("on_send")
        self._acknowledged = self.having("on_acknowledgement")

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return pass_through(self._sending, "on_send", ProducerRecord, record, "a record")

    def callback(self, then: Callback | None) -> Callback | None:
        """A callback that tells the interceptors first."""
        if not self._acknowledged:
            return then
        return _Acknowledge(self, then)

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        tell(self._acknowledged, "on_acknowledgement", metadata, error)


class _Acknowledge:
    __slots__ = ("interceptors", "then")

    def __init__(self, interceptors: Interceptors, then: Callback | None) -> None:
        self.interceptors = interceptors
        self.then = then

    def __call__(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        self.interceptors.on_acknowledgement(metadata, error)
        if self.then is not None:
            self.then(metadata, error)
