"""Requests of many elements: limits of decoding, order of responses, handling in parts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.api import registry
from kavka.common.errors import ErrorCode, KafkaError
from kavka.network import large_request
from kavka.network.large_request import DIVISIBLE, MAX_ELEMENTS, MAX_ELEMENTS_ON_LOOP
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseTopic,
)
from kavka.protocol.primitives import (
    ProtocolError,
    TooManyElementsError,
    decode_bounded,
    read_array,
    read_string,
    skip_tags,
)
from tests.support.virtual_time import InlineWorkers
from tests.unit.network.harness import EchoApi, Text, World, frame, in_world


def elements(buffer: memoryview, position: int) -> tuple[list[Any], int]:
    return read_array(buffer, position, 2, read_string)


class Elements(Text):
    """An array of strings. The response has their number."""

    @classmethod
    def decode(cls, buffer: memoryview, position: int, version: int) -> tuple[Text, int]:
        items, position = elements(buffer, position)
        return cls(b"%d" % len(items)), position


class CountingApi(EchoApi):
    request_class = Elements


def strings(count: int) -> bytes:
    return count.to_bytes(4, "big") + b"\0\0" * count


def use_counting_api(world: World) -> None:
    world.server.services.run_in_worker = InlineWorkers().run  # type: ignore[method-assign]
    world.api = CountingApi()
    world.server.apis = {**world.server.apis, 3: world.api}  # type: ignore[dict-item]


def test_the_response_to_a_large_request_keeps_its_order() -> None:
    async def body(world: World) -> None:
        use_counting_api(world)
        peer = world.connect()
        counts = [1, MAX_ELEMENTS_ON_LOOP, MAX_ELEMENTS_ON_LOOP + 1, 2, MAX_ELEMENTS, 3]
        peer.start_sending(*(frame(strings(count), n) for n, count in enumerate(counts)))
        assert await peer.responses(len(counts)) == [str(count) for count in counts]

    in_world(body)


def test_too_many_elements_close_the_connection_after_earlier_responses() -> None:
    async def body(world: World) -> None:
        use_counting_api(world)
        peer = world.connect()
        peer.start_sending(frame(strings(1)), frame(strings(MAX_ELEMENTS + 1)), frame(strings(1)))
        assert await peer.responses(1) == ["1"]
        await peer.assert_closed()
        assert world.api.handled == ["1"]

    in_world(body)


def test_an_array_over_the_limit_is_refused_before_its_elements_are_decoded() -> None:
    decoded = []

    def element(buffer: Any, position: int) -> tuple[int, int]:
        decoded.append(position)
        return 0, position + 1

    def array(buffer: bytes) -> Any:
        return read_array(buffer, 0, 1, element)

    with pytest.raises(TooManyElementsError):
        decode_bounded(10, array, (11).to_bytes(4, "big") + bytes(11))
    assert decoded == []
    assert len(decode_bounded(11, array, (11).to_bytes(4, "big") + bytes(11))[0]) == 11


def test_nested_arrays_and_tagged_fields_count_together() -> None:
    def inner(buffer: Any, position: int) -> tuple[Any, int]:
        return read_array(buffer, position, 1, lambda _, at: (0, at + 1))

    data = (4).to_bytes(4, "big") + ((3).to_bytes(4, "big") + bytes(3)) * 4
    decode_bounded(16, read_array, data, 0, 4, inner)
    with pytest.raises(TooManyElementsError):
        decode_bounded(15, read_array, data, 0, 4, inner)
    with pytest.raises(TooManyElementsError):
        decode_bounded(4, skip_tags, b"\x05" + b"\0\0" * 5, 0)


def test_the_limit_applies_to_one_message() -> None:
    with pytest.raises(ProtocolError):
        decode_bounded(1, read_array, strings(5), 0, 2, read_string)
    assert len(read_array(strings(5), 0, 2, read_string)[0]) == 5


def test_the_fields_of_divisible_requests_exist() -> None:
    apis = registry.load()
    for key, fields in DIVISIBLE.items():
        for request_field, response_field in fields:
            assert isinstance(getattr(apis[key].request_class(), request_field), (list, type(None)))
            assert isinstance(getattr(registry.APIS[ApiKey(key)].response_class()(), response_field), list)


async def wait(future: asyncio.Future[Any]) -> Any:
    return await future


def test_requests_that_refuse_duplicate_resources_are_not_divided() -> None:
    assert not {int(ApiKey.ALTER_CONFIGS), int(ApiKey.INCREMENTAL_ALTER_CONFIGS)} & DIVISIBLE.keys()


def test_an_error_of_a_later_part_becomes_the_error_of_the_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """The response lacks the committed offsets of the failed part. Without an error the consumer
    would reset these offsets."""
    monkeypatch.setattr(large_request, "PART_SIZE", 2)

    def handle(context: Any, request: OffsetFetchRequest) -> Any:
        if len(handled := [topic.name for topic in request.topics or ()]) == 1:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name=name) for name in handled])

    def failed(api: registry.Api, request: Any, version: int, error: BaseException) -> Any:
        return api.on_error(request, version, registry.as_kafka_error(error))

    async def scenario() -> Any:
        server: Any = SimpleNamespace(write_staged=lambda: None)
        on_error = registry.load()[ApiKey.OFFSET_FETCH].on_error
        api: Any = SimpleNamespace(handle=handle, on_error=on_error)
        context: Any = SimpleNamespace(version=7)
        request = OffsetFetchRequest(topics=[OffsetFetchRequestTopic(name=name) for name in "abc"])
        return await large_request._handle_in_parts(server, api, context, request, failed, wait, "topics", "topics")

    response = asyncio.run(scenario())
    assert response.error_code == ErrorCode.NOT_COORDINATOR


def test_closing_the_connection_cancels_a_large_request() -> None:
    async def body(world: World) -> None:
        use_counting_api(world)
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        world.api.handle = lambda ctx, request: waiting  # type: ignore[method-assign]
        peer = world.connect()
        peer.start_sending(frame(strings(MAX_ELEMENTS_ON_LOOP + 1)))
        await world.until(lambda: len(peer.connection.tasks()) > 1)
        peer.connection.close()
        await world.until(waiting.done)
        assert waiting.cancelled()
        await world.until(lambda: not peer.connection.tasks())

    in_world(body)


def test_a_divisible_request_is_handled_in_parts_with_one_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_request, "PART_SIZE", 2)
    parts: list[list[int]] = []

    def handle(context: Any, request: Any) -> Any:
        parts.append(request.groups)
        if 3 in request.groups:
            raise ValueError("a part that fails")
        return SimpleNamespace(groups=list(request.groups))

    def failed(api: Any, request: Any, version: int, error: BaseException) -> Any:
        return SimpleNamespace(groups=[-n for n in request.groups])

    async def scenario() -> Any:
        server: Any = SimpleNamespace(write_staged=lambda: None)
        api: Any = SimpleNamespace(handle=handle)
        context: Any = SimpleNamespace(version=0)
        request = SimpleNamespace(groups=[1, 2, 3, 4, 5])
        return await large_request._handle_in_parts(server, api, context, request, failed, wait, "groups", "groups")

    assert asyncio.run(scenario()).groups == [1, 2, -3, -4, 5]
    assert parts == [[1, 2], [3, 4], [5]]


def test_a_long_array_inside_an_element_is_divided_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_request, "PART_SIZE", 3)
    partition_counts = {"a": 2, "b": 7, "c": 0, "d": 1, "e": 1, "f": 3}
    largest = 0

    def handle(context: Any, request: Any) -> Any:
        nonlocal largest
        largest = max(largest, sum(len(topic.partitions) for topic in request.topics))
        return SimpleNamespace(
            topics=[SimpleNamespace(name=topic.name, partitions=list(topic.partitions)) for topic in request.topics]
        )

    async def scenario() -> Any:
        server: Any = SimpleNamespace(write_staged=lambda: None)
        api: Any = SimpleNamespace(handle=handle)
        context: Any = SimpleNamespace(version=0)
        topics = [SimpleNamespace(name=name, partitions=list(range(count))) for name, count in partition_counts.items()]
        request = SimpleNamespace(topics=topics)
        return await large_request._handle_in_parts(server, api, context, request, None, wait, "topics", "topics")  # type: ignore[arg-type]

    sent = asyncio.run(scenario()).topics
    assert [(topic.name, topic.partitions) for topic in sent] == [
        (name, list(range(count))) for name, count in partition_counts.items()
    ]
    assert largest == 3
