"""Transition tables of group members, and transitions that a test with a broker rarely reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from kavka.client.consumer.classic import ClassicMember
from kavka.client.consumer.coordinator import Identity
from kavka.client.consumer.member_states import CLASSIC_TRANSITIONS, CONSUMER_TRANSITIONS, MemberState, Transitions
from kavka.client.consumer.modern import ModernMember
from kavka.common.errors import ErrorCode
from kavka.common.types import TopicPartition as TP
from kavka.protocol.messages.join_group import JoinGroupResponse
from tests.unit.client.consumer.test_core import consumer


@pytest.mark.parametrize("table", [CLASSIC_TRANSITIONS, CONSUMER_TRANSITIONS])
def test_every_state_can_be_reached_and_left(table: Transitions) -> None:
    reached = {target for targets in table.values() for target in targets}
    assert reached == set(table)
    assert all(MemberState.LEAVING in targets for state, targets in table.items() if state is not MemberState.LEAVING)


def test_invalid_transition_is_refused() -> None:
    async def work() -> None:
        async with consumer(group_id="g") as core:
            assert core.member is not None
            with pytest.raises(RuntimeError, match="from UNJOINED to STABLE"):
                core.member._transition(MemberState.STABLE)

    asyncio.run(work())


def test_member_that_is_fenced_while_it_joins_loses_its_partitions_before_it_rejoins() -> None:
    async def work() -> None:
        async with consumer(
            group_id="g", partition_assignment_strategy="cooperative-sticky", enable_auto_commit=False
        ) as core:
            events: list[tuple[str, Collection[TP]]] = []

            class Listener:
                def on_partitions_lost(self, partitions: Collection[TP]) -> None:
                    events.append(("lost", partitions))

            core.subscribe(["t"], Listener())
            core.subscriptions.set_partitions([TP("t", 0)])
            member = core.member
            assert isinstance(member, ClassicMember)
            member.generation, member.member_id, member.state = 3, "m", MemberState.STABLE
            ids: list[str] = []

            async def find(timeout: float | None = None) -> int:
                return 1

            async def send(request: Any) -> JoinGroupResponse:
                ids.append(request.member_id)
                if len(ids) == 1:
                    member._fence("a heartbeat failed")
                    return JoinGroupResponse(generation_id=4, member_id="m", leader="other")
                events.append(("joined", ()))
                await asyncio.sleep(60)
                raise AssertionError

            core.coordinator.find = find  # type: ignore[method-assign]
            member._send = send  # type: ignore[method-assign]
            member.rejoin("test")
            member.poll()
            while ("joined", ()) not in events:
                await core.poll_tasks.run(0)
                await asyncio.sleep(0.001)
            assert events == [("lost", {TP("t", 0)}), ("joined", ())]
            assert ids == ["m", "m"]
            assert member.state is MemberState.PREPARING_REBALANCE

    asyncio.run(work())


def test_failed_commit_of_a_consumer_without_membership_keeps_its_partitions() -> None:
    async def work() -> None:
        async with consumer(group_id="g", group_protocol="consumer") as core:
            await core.assign([TP("t", 0)])
            member = core.member
            assert isinstance(member, ModernMember)
            member.on_request_failed(Identity(), ErrorCode.UNKNOWN_MEMBER_ID)
            assert member.state is MemberState.UNJOINED
            assert not core.subscriptions.partitions[TP("t", 0)].held

    asyncio.run(work())
