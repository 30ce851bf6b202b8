"""Interceptors: objects of the user's that see what a poll returns before the program does, and what is committed.

    class Interceptor:
        def on_consume(self, records: Records) -> Records: ...
        def on_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]): ...
        def close(self): ...
        def configure(self, configs): ...

Each method may be missing. What one raises goes to the log, and the next one gets what this one got.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kavka.client.consumer.records import Records
from kavka.client.interceptors import InterceptorChain, pass_through, tell
from kavka.client.types import OffsetAndMetadata
from kavka.common.types import TopicPartition


class Interceptors(InterceptorChain):
    def __init__(self, values: Iterable[Any], configs: Mapping[str, Any]) -> None:
        super().__init__(values, configs, "consumer", ("on_consume", "on_commit"))
        self._consume = self.having("on_consume")
        self._commit = self.having("on_commit")

    @property
    def see_records(self) -> bool:
        return bool(self._consume)

    @property
    def see_commits(self) -> bool:
        return bool(self._commit)

    def on_consume(self, records: Records) -> Records:
        return pass_through(self._consume, "on_consume", Records, records, "records")

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for one in self._commit:
            tell([one], "on_commit", dict(offsets))
