"""Interceptors of a consumer. They process polled records before the application does, and are
notified of commits.

    class Interceptor:
        def on_consume(self, records: Records) -> Records: ...
        def on_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]): ...
        def close(self): ...
        def configure(self, configs): ...

Every method is optional. If an interceptor fails, the error is logged, and the next interceptor
gets the unchanged records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kavka.client.consumer.records import Records
from kavka.client.interceptors import InterceptorChain, call_each, pass_through
from kavka.client.types import OffsetAndMetadata
from kavka.common.types import TopicPartition


class Interceptors(InterceptorChain):
    """Owns the consumer's interceptors. They are called in the application's thread."""

    def __init__(self, values: Iterable[Any], configs: Mapping[str, Any]) -> None:
        super().__init__(values, configs, "consumer", ("on_consume", "on_commit"))
        self._consume = self.methods("on_consume")
        self._commit = self.methods("on_commit")

    @property
    def has_consume_methods(self) -> bool:
        return bool(self._consume)

    @property
    def has_commit_methods(self) -> bool:
        return bool(self._commit)

    def on_consume(self, records: Records) -> Records:
        return pass_through(self._consume, "on_consume", Records, records, "records")

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for function in self._commit:
            # Each interceptor gets a separate copy, which it may change.
            call_each([function], "on_commit", dict(offsets))
