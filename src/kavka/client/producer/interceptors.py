"""Interceptors: objects of the user's that see every record before it is serialised, and what became of it.

    class Interceptor:
        def on_send(self, record: ProducerRecord) -> ProducerRecord: ...
        def on_acknowledgement(self, metadata, exception): ...
        def close(self): ...
        def configure(self, configs): ...

Each method may be missing. What one raises goes to the log, and the next one gets what this one got.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kavka.client import classes
from kavka.client.producer.record import Callback, ProducerRecord, RecordMetadata
from kavka.common.config import ConfigError

log = logging.getLogger(__name__)


class Interceptors:
    def __init__(self, values: Iterable[Any], configs: Mapping[str, Any]) -> None:
        self._all = [classes.make("interceptor.classes", value, {}, "an interceptor", configs) for value in values]
        for found in self._all:
            if not any(hasattr(found, name) for name in ("on_send", "on_acknowledgement")):
                raise ConfigError("interceptor.classes", f"a {type(found).__name__} is no producer interceptor")
        self._sending = [i.on_send for i in self._all if hasattr(i, "on_send")]
        self._acknowledged = [i.on_acknowledgement for i in self._all if hasattr(i, "on_acknowledgement")]

    def __bool__(self) -> bool:
        return bool(self._all)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        for intercept in self._sending:
            try:
                changed = intercept(record)
            except Exception:
                log.exception("An interceptor's on_send failed")
                continue
            if isinstance(changed, ProducerRecord):
                record = changed
            elif changed is not None:
                log.error("An interceptor's on_send returned a %s in place of a record", type(changed).__name__)
        return record

    def callback(self, then: Callback | None) -> Callback | None:
        """A callback that tells the interceptors first."""
        if not self._acknowledged:
            return then
        return _Acknowledge(self, then)

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        for intercept in self._acknowledged:
            try:
                intercept(metadata, error)
            except Exception:
                log.exception("An interceptor's on_acknowledgement failed")

    def close(self) -> None:
        for found in self._all:
            if hasattr(found, "close"):
                try:
                    found.close()
                except Exception:
                    log.exception("An interceptor's close failed")


class _Acknowledge:
    __slots__ = ("interceptors", "then")

    def __init__(self, interceptors: Interceptors, then: Callback | None) -> None:
        self.interceptors = interceptors
        self.then = then

    def __call__(self, metadata: RecordMetadata | None, error: BaseException | None) -> None:
        self.interceptors.on_acknowledgement(metadata, error)
        if self.then is not None:
            self.then(metadata, error)
