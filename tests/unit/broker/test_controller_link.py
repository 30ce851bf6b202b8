"""The way to the controller, while it moves, is gone, or says no."""

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
    """Answers by broker, in order; an exception is raised."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = {int(name.removeprefix("b")): found for name, found in answers.items()}
        self.asked: list[int] = []

    async def ask(self, broker_id: int, request: Any, **_: Any) -> Any:
        self.asked.append(broker_id)
        answer = self.answers[broker_id].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ask(peers: FakePeers, who: list[int], local: Any = None, request: Any = None, timeout_s: float = 5.0) -> Any:
    """`who` is what each look at the controller's id gives; the last stays."""

    async def body() -> Any:
        link = ControllerLink(0, lambda: who.pop(0) if len(who) > 1 else who[0], local, peers)  # type: ignore[arg-type]
        return await link.ask(request or AlterPartitionRequest(), timeout_s=timeout_s)

    return asyncio.run(asyncio.wait_for(body(), 20))


def test_a_controller_that_is_not_it_any_more_is_looked_up_again():
    peers = FakePeers(b1=[NOT_CONTROLLER], b2=[DONE])
    assert ask(peers, [1, 2]) is DONE
    assert peers.asked == [1, 2]


def test_one_that_cannot_be_reached_is_asked_again():
    peers = FakePeers(b1=[Disconnected("gone"), KafkaTimeout("late"), DONE])
    assert ask(peers, [1]) is DONE


def test_while_there_is_none_it_waits():
    peers = FakePeers(b1=[DONE])
    assert ask(peers, [-1, -1, 1]) is DONE


def test_when_it_is_this_broker_nobody_else_is_asked():
    async def local(request: Any, version: int) -> Any:
        assert version == AlterPartitionRequest.MAX_VERSION
        return DONE

    assert ask(FakePeers(), [0], local) is DONE


def test_the_time_ends_the_search_with_what_was_wrong_last():
    with pytest.raises(Disconnected, match="no controller"):
        ask(FakePeers(), [-1], timeout_s=0.2)


def test_a_local_answer_that_does_not_come_ends_too():
    async def local(request: Any, version: int) -> Any:
        await asyncio.sleep(60)

    with pytest.raises(KafkaTimeout):
        ask(FakePeers(), [0], local, timeout_s=0.1)


def test_another_error_is_the_callers_matter():
    peers = FakePeers(b1=[KafkaError(ErrorCode.UNSUPPORTED_VERSION)])
    with pytest.raises(KafkaError) as raised:
        ask(peers, [1])
    assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_refusal_may_stand_with_the_topics():
    def answer(*codes: ErrorCode) -> CreateTopicsResponse:
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=int(code)) for code in codes])

    mixed = answer(ErrorCode.NOT_CONTROLLER, ErrorCode.NONE)
    peers = FakePeers(b1=[answer(ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_CONTROLLER), mixed])
    assert ask(peers, [1], request=CreateTopicsRequest()) is mixed
