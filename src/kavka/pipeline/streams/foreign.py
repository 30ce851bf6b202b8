"""Joins of tables by a foreign key, as in Kafka.

Tasks of the left table send subscriptions to tasks of the right table, by a topic of the
application: which key needs which foreign key. Those send responses with the right table's value,
by another topic: at once, and whenever the value changes. A response has the hash of the left value
of its subscription, and is dropped if that value has changed since. Subscriptions and responses
have Kafka's format, except that the hash is BLAKE2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple

from kavka.pipeline.streams.processors import Headers, Node
from kavka.pipeline.streams.serdes import Change, Serde, resolved
from kavka.pipeline.streams.stores import ValueAndTimestamp
from kavka.pipeline.streams.tables import Getter, Step
from kavka.pipeline.streams.topology import Operator
from kavka.pipeline.streams.versioned import SubscriptionStore

# Instructions of a subscription, with Kafka's numbers: remove it; remove it and respond None;
# respond, with None if the right table has no value; respond only if it has a value.
_DELETE, _DELETE_AND_RESPOND, _RESPOND, _RESPOND_IF_PRESENT = 0, 1, 2, 3

_NO_HASH = 0x80
_VERSION = 1
_PARTITION = struct.Struct(">i")


class Subscription(NamedTuple):
    hash: bytes | None
    instruction: int
    key: Any
    partition: int


class Response(NamedTuple):
    """`partition` is the one of the response topic. It is not serialized."""

    hash: bytes | None
    value: Any
    partition: int


def _header(value_hash: bytes | None, version: int) -> bytes:
    return bytes([version | (_NO_HASH if value_hash is None else 0)])


def subscription_serde(inner: Serde) -> Serde:
    def write(subscription: Subscription) -> bytes:
        value_hash = subscription.hash
        header = _header(value_hash, _VERSION) + bytes([subscription.instruction]) + (value_hash or b"")
        return header + (inner.serialize(subscription.key) or b"") + _PARTITION.pack(subscription.partition)

    def read(data: bytes) -> Subscription:
        start = 2 if data[0] & _NO_HASH else 18
        key = inner.deserialize(data[start:-4])
        return Subscription(data[2:start] or None, data[1], key, _PARTITION.unpack(data[-4:])[0])

    return Serde(f"Subscription({inner.name})", write, read)


def response_serde(inner: Serde) -> Serde:
    def write(response: Response) -> bytes:
        return _header(response.hash, 0) + (response.hash or b"") + (inner.serialize(response.value) or b"")

    def read(data: bytes) -> Response:
        start = 1 if data[0] & _NO_HASH else 17
        value = data[start:]
        return Response(data[1:start] or None, inner.deserialize(value) if value else None, 0)

    return Serde(f"Response({inner.name})", write, read)


def response_partition(topic: str, key: Any, value: Response, partitions: int) -> int:
    return value.partition % partitions


@dataclass(frozen=True)
class KeyPartitioner:
    """Calls a user's partitioner without a value: subscriptions and responses are not the
    table's values."""

    partitioner: Callable[..., int | None]

    def __call__(self, topic: str, key: Any, value: Any, partitions: int) -> int | None:
        return self.partitioner(topic, key, None, partitions)


@dataclass(frozen=True)
class ForeignJoin:
    """The settings of a join, for its five operators."""

    this: Step
    other: Step
    extractor: Callable[[Any, Any], Any]
    joiner: Callable[..., Any]
    left: bool
    foreign_key_serde: Serde | None
    value_serde: Serde | None
    store: str

    def __post_init__(self) -> None:
        self.this.enable_sending_old_values()
        self.other.enable_sending_old_values()


@dataclass(frozen=True)
class ForeignStage(Operator):
    """One of the five operators of a join."""

    join: ForeignJoin
    stage: type[Stage]

    def node(self) -> Node:
        return self.stage(self.join)


class Stage(Node):
    """A stage reads only the stores that it is connected to."""

    def __init__(self, join: ForeignJoin) -> None:
        self._join = join

    def init(self) -> None:
        defaults = self.task.settings.key_serde, self.task.settings.value_serde
        self._serialize_foreign_key = resolved(self._join.foreign_key_serde, *defaults).serialize
        self._serialize_value = resolved(self._join.value_serde, *reversed(defaults)).serialize

    @cached_property
    def _subscriptions(self) -> SubscriptionStore:
        store: SubscriptionStore = self.task.store(self._join.store)
        return store

    @cached_property
    def _get_left(self) -> Getter:
        return self._join.this.getter(self.task)

    @cached_property
    def _get_right(self) -> Getter:
        return self._join.other.getter(self.task)

    def _hash(self, value: Any) -> bytes | None:
        data = self._serialize_value(value)
        return None if data is None else blake2b(data, digest_size=16).digest()


class Send(Stage):
    """Sends the subscriptions of a change on the left side."""

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        join = self._join
        if key is None or (not value.latest and join.this.is_versioned()) or (value.old is None and value.new is None):
            return
        old = None if value.old is None else join.extractor(key, value.old)
        new = None if value.new is None else join.extractor(key, value.new)
        value_hash = self._hash(value.new)

        def send(foreign_key: Any, instruction: int) -> None:
            subscription = Subscription(value_hash, instruction, key, self.task.partition)
            self.forward(foreign_key, subscription, timestamp, headers)

        if not join.left and new is None:
            if old is not None:
                send(old, _DELETE_AND_RESPOND)
            return
        if old is not None and self._serialize_foreign_key(old) != self._serialize_foreign_key(new):
            send(old, _DELETE)
        send(new, _RESPOND if join.left or old is not None else _RESPOND_IF_PRESENT)


class Receive(Stage):
    """Stores the subscriptions of a foreign key."""

    def process(self, key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        if key is None and value.instruction != _RESPOND:
            return
        if key is not None:
            is_removed = value.instruction in (_DELETE, _DELETE_AND_RESPOND)
            stored = None if is_removed else ValueAndTimestamp(value, timestamp)
            self._subscriptions.put(self._serialize_foreign_key(key) or b"", value.key, stored)
        self.forward(key, value, timestamp, headers)


class Respond(Stage):
    """Responds to a subscription."""

    def process(self, key: Any, value: Subscription, timestamp: int, headers: Headers) -> None:
        if value.instruction == _DELETE:
            return
        stored = None if key is None else self._get_right(key)
        stamp = timestamp if stored is None else max(timestamp, stored[1])
        foreign_value = None if stored is None or value.instruction == _DELETE_AND_RESPOND else stored[0]
        if value.instruction != _RESPOND_IF_PRESENT or foreign_value is not None:
            self.forward(value.key, Response(value.hash, foreign_value, value.partition), stamp, headers)


class RespondToAll(Stage):
    """Sends a change on the right side to all subscriptions of its key."""

    def process(self, key: Any, value: Change, timestamp: int, headers: Headers) -> None:
        if key is None or (not value.latest and self._join.other.is_versioned()):
            return
        for subscription, _ in self._subscriptions.subscriptions(self._serialize_foreign_key(key) or b""):
            response = Response(subscription.hash, value.new, subscription.partition)
            self.forward(subscription.key, response, timestamp, headers)


class Resolve(Stage):
    """Joins a response with the left value, if that value has not changed since the
    subscription."""

    def process(self, key: Any, value: Response, timestamp: int, headers: Headers) -> None:
        stored = self._get_left(key)
        own = None if stored is None else stored[0]
        if value.hash != self._hash(own):
            return
        joined = None
        if own is not None and (value.value is not None or self._join.left):
            joined = self._join.joiner(key, own, value.value)
        self.forward(key, joined, timestamp, headers)
