"""Interceptors: objects of the user's that see what a poll returns before the program does, and what is committed.

    class Interceptor:
        def on_consume(self, records: Records) -> Records: ...
        def on_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]): ...
        def close(self): ...
        def configure(self, configs): ...

Each method may be missing. What one raises goes to the log, and the next one gets what this one got.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kavka.client import classes
from kavka.client.consumer.records import Records
from kavka.client.types import OffsetAndMetadata
from kavka.common.config import ConfigError
from kavka.common.types import TopicPartition

log = logging.getLogger(__name__)


class Interceptors:
    def __init__(self, values: Iterable[Any], configs: Mapping[str, Any]) -> None:
        self._all = [classes.make("interceptor.classes", value, {}, "an interceptor", configs) for value in values]
        for found in self._all:
            if not any(hasattr(found, name) for name in ("on_consume", "on_commit")):
                raise ConfigError("interceptor.classes", f"a {type(found).__name__} is no consumer interceptor")
        self._consume = [i.on_consume for i in self._all if hasattr(i, "on_consume")]
        self._commit = [i.on_commit for i in self._all if hasattr(i, "on_commit")]

    @property
    def see_records(self) -> bool:
        return bool(self._consume)

    @property
    def see_commits(self) -> bool:
        return bool(self._commit)

    def on_consume(self, records: Records) -> Records:
        for intercept in self._consume:
            try:
                changed = intercept(records)
            except Exception:
                log.exception("An interceptor's on_consume failed")
                continue
            if isinstance(changed, Records):
                records = changed
            elif changed is not None:
                log.error("An interceptor's on_consume returned a %s in place of records", type(changed).__name__)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        for intercept in self._commit:
            try:
                intercept(dict(offsets))
            except Exception:
                log.exception("An interceptor's on_commit failed")

    def close(self) -> None:
        for found in self._all:
            if hasattr(found, "close"):
                try:
                    found.close()
                except Exception:
                    log.exception("An interceptor's close failed")
