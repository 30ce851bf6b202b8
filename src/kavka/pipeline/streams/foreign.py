"""Joins of tables by a foreign key, as Kafka does them.

The left table's tasks tell the right table's which key needs which foreign key (a subscription, by
a topic of the application's own), and those answer with the right table's value: at once, and
whenever it changes (a response, by another topic). A response bears the hash of the left value that
was asked for; one that is out of date is dropped where it arrives. Subscriptions and responses have
Kafka's layout but for the hash, which is BLAKE2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

from kavka.pipeline.streams.engine import Headers, Node
from kavka.pipeline.streams.serdes import AroundDefault, Change, Serde
from kavka.pipeline.streams.stores import ValueAndTimestamp
from kavka.pipeline.streams.tables import Step
from kavka.pipeline.streams.versioned import SubscriptionStore

# What the right side does with a subscription: forget it; forget it and answer None; answer, None
# if there is nothing; answer if there is something.
_FORGET, _FORGET_AND_TELL, _TELL, _TELL_IF_THERE = 0, 1, 2, 3

_NO_HASH = 0x80
_VERSION = 1
_PARTITION = struct.Struct(">i")


class Subscription(NamedTuple):
    hash: bytes | None
    instruction: int
    key: Any
    partition: int


class Response(NamedTuple):
    """`partition` is where the answer goes; it is not written."""

    hash: bytes | None
    value: Any
    partition: int


def _head(hashed: bytes | None, version: int) -> bytes:
    return bytes([version | (_NO_HASH if hashed is None else 0)])


class _SubscriptionBytes:
    def __init__(self, inner: Serde) -> None:
        self._inner = inner

    def write(self, one: Subscription) -> bytes:
        key = self._inner.serialize(one.key) or b""
        head = _head(one.hash, _VERSION) + bytes([one.instruction]) + (one.hash or b"")
        return head + key + _PARTITION.pack(one.partition)

    def read(self, data: bytes) -> Subscription:
        start = 2 if data[0] & _NO_HASH else 18
        key = self._inner.deserialize(data[start:-4])
        return Subscription(data[2:start] or None, data[1], key, _PARTITION.unpack(data[-4:])[0])


class _ResponseBytes:
    def __init__(self, inner: Serde) -> None:
        self._inner = inner

    def write(self, one: Response) -> bytes:
        return _head(one.hash, 0) + (one.hash or b"") + (self._inner.serialize(one.value) or b"")

    def read(self, data: bytes) -> Response:
        start = 1 if data[0] & _NO_HASH else 17
        value = data[start:]
        return Response(data[1:start] or None, self._inner.deserialize(value) if value else None, 0)


def _subscriptions(inner: Serde) -> Serde:
    form = _SubscriptionBytes(inner)
    return Serde(f"Subscription({inner.name})", form.write, form.read)


def _responses(inner: Serde) -> Serde:
    form = _ResponseBytes(inner)
    return Serde(f"Response({inner.name})", form.write, form.read)


def subscription_serde(keys: Serde | None) -> Serde:
    return AroundDefault(_subscriptions, of_other=True) if keys is None else _subscriptions(keys)


def response_serde(values: Serde | None) -> Serde:
    return AroundDefault(_responses) if values is None else _responses(values)


def to_the_asking_task(topic: str, key: Any, value: Response, partitions: int) -> int:
    return value.partition % partitions


class ByKey:
    """A partitioner of keys alone, for messages between the two sides."""

    def __init__(self, partitioner: Callable[..., int | None]) -> None:
        self._partitioner = partitioner

    def __call__(self, topic: str, key: Any, value: Any, partitions: int) -> int | None:
        return self._partitioner(topic, key, None, partitions)


class ForeignJoin:
    """What the steps of one join share. `keys`, `values`: serdes of the foreign key and of the left
    value."""

    def __init__(
        self,
        this: Step,
        other: Step,
        extractor: Callable[[Any, Any], Any],
        joiner: Callable[..., Any],
        left: bool,
        keys: Serde | None,
        values: Serde | None,
        store: str,
    ) -> None:
        self.this, self.other, self.extractor, self.joiner, self.left = this, other, extractor, joiner, left
        self.keys, self.values, self.store = keys, values, store
        this.enable_old()
        other.enable_old()

    def send(self) -> Node:
        return _Send(self)

    def receive(self) -> Node:
        return _Receive(self)

    def join_foreign(self) -> Node:
        return _JoinForeign(self)

    def foreign_changes(self) -> Node:
        return _ForeignChanges(self)

    def resolve(self) -> Node:
        return _Resolve(self)


class _Side(Node):
    def __init__(self, join: ForeignJoin) -> None:
        self._join = join

    def init(self) -> None:
        default_key, default_value = self.task.settings.key_serde, self.task.settings.value_serde
        self._foreign_bytes = (self._join.keys or default_key).resolved(default_key, default_value).serialize
        self._value_bytes = (self._join.values or default_value).resolved(default_value, default_key).serialize

    def _hash(self, value: Any) -> bytes | None:
        data = self._value_bytes(value)
        return None if data is None else blake2b(data, digest_size=16).digest()


class _Send(_Side):
    """A change on the left: what the right side must know."""

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        join = self._join
        if key is None or (not value.latest and join.this.is_versioned()) or (value.old is None and value.new is None):
            return
        old = None if value.old is None else join.extractor(key, value.old)
        new = None if value.new is None else join.extractor(key, value.new)
        hashed = self._hash(value.new)

        def tell(foreign: Any, instruction: int) -> None:
            self.forward(foreign, Subscription(hashed, instruction, key, self.task.partition), timestamp, headers)

        moved = old is not None and self._foreign_bytes(old) != self._foreign_bytes(new)
        if not join.left and new is None:
            if old is not None:
                tell(old, _FORGET_AND_TELL)
            return
        if moved:
            tell(old, _FORGET)
        tell(new, _TELL if join.left or old is not None else _TELL_IF_THERE)


class _Receive(_Side):
    """Keeps the subscriptions of a foreign key."""

    def init(self) -> None:
        super().init()
        self._store: SubscriptionStore = self.task.store(self._join.store)

    def process(self, key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        if key is None and value.instruction != _TELL:
            return
        if key is not None:
            held = None if value.instruction in (_FORGET, _FORGET_AND_TELL) else ValueAndTimestamp(value, timestamp)
            self._store.keep(self._foreign_bytes(key) or b"", value, held)
        self.forward(key, value, timestamp, headers)


class _JoinForeign(_Side):
    """Answers a subscription."""

    def init(self) -> None:
        super().init()
        self._get = self._join.other.getter(self.task)

    def process(self, key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        if value.instruction == _FORGET:
            return
        found = None if key is None else self._get(key)
        stamp = timestamp if found is None else max(timestamp, found[1])
        there = None if found is None else found[0]
        if value.instruction == _FORGET_AND_TELL:
            there = None
        elif value.instruction == _TELL_IF_THERE and there is None:
            return
        self.forward(value.key, Response(value.hash, there, value.partition), stamp, headers)


class _ForeignChanges(_Side):
    """A change on the right: all who have subscribed to it are told."""

    def init(self) -> None:
        super().init()
        self._store: SubscriptionStore = self.task.store(self._join.store)

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if key is None or (not value.latest and self._join.other.is_versioned()):
            return
        for one, _ in self._store.of(self._foreign_bytes(key) or b""):
            self.forward(one.key, Response(one.hash, value.new, one.partition), timestamp, headers)


class _Resolve(_Side):
    """A response meets the left value that it is for, if that is still the one."""

    def init(self) -> None:
        super().init()
        self._get = self._join.this.getter(self.task)

    def process(self, key: Any, value: Response, timestamp: int, headers: Headers) -> None:
        found = self._get(key)
        own = None if found is None else found[0]
        if value.hash != self._hash(own):
            return
        joined = None
        if own is not None and (value.value is not None or self._join.left):
            joined = self._join.joiner(key, own, value.value)
        self.forward(key, joined, timestamp, headers)
