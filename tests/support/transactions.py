"""Transactional producers of Apache's Java client, each with a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.java_client import JavaClient

PROBE = Path(__file__).parent / "java" / "TransactionProbe.java"


class JavaTransactions(JavaClient):
    def __init__(self, version: str, bootstrap: str = "") -> None:
        super().__init__(version, bootstrap, PROBE)

    def producer(self, name: str, *, init: bool = True, **config: Any) -> JavaProducer:
        """Open a producer. The names in `config` have underscores instead of dots. The default
        transactional id is `name`."""
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        self.call("open", name=name, config=settings)
        producer = JavaProducer(self, name)
        if init:
            producer.init()
        return producer


class JavaProducer:
    def __init__(self, client: JavaTransactions, name: str) -> None:
        self._client = client
        self.name = name

    def _call(self, op: str, **arguments: Any) -> Any:
        return self._client.call(op, name=self.name, **arguments)

    def init(self) -> None:
        self._call("init")

    def begin(self) -> None:
        self._call("begin")

    def send(self, topic: str, values: Sequence[str], partition: int | None = 0) -> list[int]:
        """Send records, wait for their acknowledgements, and return the offsets."""
        offsets: list[int] = self._call("send", topic=topic, values=list(values), partition=partition)
        return offsets

    def send_offsets(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        self._call("sendOffsets", group=group, topic=topic, partition=partition, offset=offset)

    def commit(self) -> None:
        self._call("commit")

    def abort(self) -> None:
        self._call("abort")

    def close(self) -> None:
        self._call("close")

    def perf(self, topic: str, transactions: int, records: int, size: int = 100) -> float:
        seconds: float = self._call(
            "perf", names=[self.name], topic=topic, transactions=transactions, records=records, size=size
        )
        return seconds
