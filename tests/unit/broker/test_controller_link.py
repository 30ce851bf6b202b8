"""Requests to the controller while it moves, cannot be reached, or rejects them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kavka.broker.controller_link import ControllerLink
from kavka.client.errors import Disconnected, KafkaTimeout
from kavka.common.errors import ErrorCode, KafkaError
from kavka.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from kavka.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse

NOT_CONTROLLER = AlterPartitionResponse(error_code=int(ErrorCode.NOT_CONTROLLER))
DONE = AlterPartitionResponse()


class FakePeers:
    """Responses by broker, in order; an exception is raised."""

    def __init__(self, **responses: list[Any]) -> None:
        self.responses = {int(name.removeprefix("b")): queue for name, queue in responses.items()}
        self.contacted: list[int] = []

    async def send(self, broker_id: int, request: Any, **_: Any) -> Any:
        self.contacted.append(broker_id)
        response = self.responses[broker_id].pop(0)
        if isinstance(response, Exception):
            raise response
        return response


def send(peers: FakePeers, ids: list[int], local: Any = None, request: Any = None, timeout_s: float = 5.0) -> Any:
    """`ids` are the successive ids of the controller; the last one stays."""

    async def body() -> Any:
        link = ControllerLink(0, lambda: ids.pop(0) if len(ids) > 1 else ids[0], local, peers)  # type: ignore[arg-type]
        return await link.send(request or AlterPartitionRequest(), timeout_s=timeout_s)

    return asyncio.run(asyncio.wait_for(body(), 20))


def test_former_controller_is_replaced_by_current():
    peers = FakePeers(b1=[NOT_CONTROLLER], b2=[DONE])
    assert send(peers, [1, 2]) is DONE
    assert peers.contacted == [1, 2]


def test_unreachable_controller_is_retried():
    peers = FakePeers(b1=[Disconnected("gone"), KafkaTimeout("late"), DONE])
    assert send(peers, [1]) is DONE


def test_send_waits_while_there_is_no_controller():
    peers = FakePeers(b1=[DONE])
    assert send(peers, [-1, -1, 1]) is DONE


def test_local_controller_handles_request():
    async def local(request: Any, version: int) -> Any:
        assert version == AlterPartitionRequest.MAX_VERSION
        return DONE

    assert send(FakePeers(), [0], local) is DONE


def test_timeout_raises_last_error():
    with pytest.raises(Disconnected, match="no controller"):
        send(FakePeers(), [-1], timeout_s=0.2)


def test_local_controller_that_does_not_respond_times_out():
    async def local(request: Any, version: int) -> Any:
        await asyncio.sleep(60)

    with pytest.raises(KafkaTimeout):
        send(FakePeers(), [0], local, timeout_s=0.1)


def test_other_errors_are_raised():
    peers = FakePeers(b1=[KafkaError(ErrorCode.UNSUPPORTED_VERSION)])
    with pytest.raises(KafkaError) as raised:
        send(peers, [1])
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_not_controller_may_be_reported_per_topic():
    def response(*codes: ErrorCode) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=int(code)) for code in codes])

    mixed = response(ErrorCode.NOT_CONTROLLER, ErrorCode.NONE)
    peers = FakePeers(b1=[response(ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER), mixed])
    assert send(peers, [1], request=CreateTopicsRequest()) is mixed
