"""A lightweight client: raw connections in one event loop, and members of classic groups.

Both brokers are measured with this client, so that only the brokers differ.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import uvloop

from kavka.common.errors import ErrorCode
from kavka.protocol.api_keys import APIS
from kavka.protocol.headers import RequestHeader, decode_response_header
from kavka.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.protocol.messages.heartbeat import HeartbeatRequest
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kavka.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kavka.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from kavka.protocol.primitives import TopMessage

# The API versions that Apache's Java client 4.3 uses.
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION, FIND_COORDINATOR_VERSION = 9, 5, 4, 5, 4
ASSIGNOR = "range"
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 300_000
# Much shorter than the 3 s of real clients, so that the heartbeat interval does not determine the
# time of a rebalance.
HEARTBEAT_INTERVAL_S = 0.01

_RETRIABLE = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
_PROTOCOL_VERSION = b"\x00\x00"

T = TypeVar("T")


def run(main: Callable[[], Awaitable[T]]) -> T:
    async def awaited() -> T:
        return await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(awaited())


class Connection(asyncio.Protocol):
    """A connection with one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._received = bytearray()
        self._response: asyncio.Future[memoryview] | None = None
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, address: tuple[str, int]) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, *address)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4], "big"):
            return
        frame, self._received = memoryview(self._received)[4:], bytearray()
        if self._response is not None and not self._response.done():
            self._response.set_result(frame)

    def connection_lost(self, error: Exception | None) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(ConnectionResetError("the broker closed the connection"))

    async def call(self, request: TopMessage, version: int) -> Any:
        assert request.API_KEY is not None
        self._response = self._loop.create_future()
        self._transport.write(encode_frame(request, version))
        frame = await self._response
        _, position = decode_response_header(frame, 0, request.API_KEY, version)
        response, _ = APIS[request.API_KEY].response_class().decode(frame, position, version)
        return response

    def close(self) -> None:
        self._transport.close()


def encode_frame(request: TopMessage, version: int) -> bytes:
    """Return a request with its header, preceded by the size."""
    assert request.API_KEY is not None
    pieces: list[bytes] = []
    RequestHeader(api_key=request.API_KEY, api_version=version, client_id="light").encode(pieces)
    request.encode(pieces, version)
    payload = b"".join(pieces)
    return len(payload).to_bytes(4, "big") + payload


class Group:
    """A group with `size` members that consumes a topic. `stable` is set when the rebalance of all
    members is complete."""

    def __init__(self, name: str, topic: str, partitions: int, size: int) -> None:
        self.name = name
        self.topic = topic
        self.partitions = partitions
        self.size = size
        self.stable = asyncio.Event()
        self._assignments_by_generation: dict[int, list[list[int]]] = {}

    def assignments(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        """Assign partitions like the range assignor."""
        share, remainder = divmod(self.partitions, len(members))
        assignments, first = [], 0
        for index, member in enumerate(sorted(members)):
            end = first + share + (index < remainder)
            topic_partitions = ConsumerProtocolAssignmentTopicPartition(
                topic=self.topic, partitions=list(range(first, end))
            )
            assignment = ConsumerProtocolAssignment(assigned_partitions=[topic_partitions]).to_bytes(0)
            assignments.append(SyncGroupRequestAssignment(member_id=member, assignment=_PROTOCOL_VERSION + assignment))
            first = end
        return assignments

    def record_assignment(self, generation: int, partitions: list[int]) -> None:
        """Record a member's assignment. When all members have one, check that every partition is
        assigned once, and set `stable`."""
        assigned = self._assignments_by_generation.setdefault(generation, [])
        assigned.append(partitions)
        if len(assigned) < self.size:
            return
        if sorted(partition for assignment in assigned for partition in assignment) != list(range(self.partitions)):
            raise RuntimeError(f"generation {generation} of {self.name} does not assign every partition once")
        self.stable.set()


class Member:
    """A member with its own connection."""

    def __init__(self, connection: Connection, group: Group) -> None:
        self.connection = connection
        self.group = group
        self.id = ""
        self.generation = -1
        self.partitions: list[int] = []

    async def run(self) -> None:
        """Join, and take part in every rebalance until the group is stable."""
        while not self.group.stable.is_set():
            if await self._rebalance():
                self.group.record_assignment(self.generation, self.partitions)
                await self._send_heartbeats()

    async def _rebalance(self) -> bool:
        """Join the group and get an assignment. Return False if the rebalance must be repeated."""
        join_response = await self._join()
        if join_response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = join_response.member_id
            join_response = await self._join()
        if join_response.error_code in _RETRIABLE:
            return False
        _expect_no_error(join_response.error_code)
        self.id, self.generation = join_response.member_id, join_response.generation_id
        is_leader = join_response.leader == join_response.member_id
        request = SyncGroupRequest(
            group_id=self.group.name,
            generation_id=self.generation,
            member_id=self.id,
            protocol_type="consumer",
            protocol_name=ASSIGNOR,
            assignments=self.group.assignments([m.member_id for m in join_response.members]) if is_leader else [],
        )
        sync_response = await self.connection.call(request, SYNC_VERSION)
        if sync_response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            return False
        _expect_no_error(sync_response.error_code)
        assignment, _ = ConsumerProtocolAssignment.decode(sync_response.assignment, 2, 0)
        self.partitions = [p for topic in assignment.assigned_partitions for p in topic.partitions]
        return True

    async def _join(self) -> JoinGroupResponse:
        metadata = _PROTOCOL_VERSION + ConsumerProtocolSubscription(topics=[self.group.topic]).to_bytes(0)
        request = JoinGroupRequest(
            group_id=self.group.name,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=ASSIGNOR, metadata=metadata)],
        )
        join_response: JoinGroupResponse = await self.connection.call(request, JOIN_VERSION)
        return join_response

    async def _send_heartbeats(self) -> None:
        """Send heartbeats until there is a rebalance or the group is stable."""
        request = HeartbeatRequest(group_id=self.group.name, generation_id=self.generation, member_id=self.id)
        while not self.group.stable.is_set():
            try:
                await asyncio.wait_for(self.group.stable.wait(), HEARTBEAT_INTERVAL_S)
            except TimeoutError:
                response = await self.connection.call(request, HEARTBEAT_VERSION)
                if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                    return
                _expect_no_error(response.error_code)


async def complete_rebalance(members: list[Member]) -> float:
    """Run the members until the rebalance is complete. Return the seconds from the first join."""
    started = time.perf_counter()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(member.run())
        await members[0].group.stable.wait()
        return time.perf_counter() - started


async def leave(members: list[Member]) -> None:
    """Remove all members in one request, so that the broker has no timers for them."""
    identities = [MemberIdentity(member_id=member.id) for member in members]
    response = await members[0].connection.call(
        LeaveGroupRequest(group_id=members[0].group.name, members=identities), LEAVE_VERSION
    )
    _expect_no_error(response.error_code)


async def wait_for_coordinator(connection: Connection, group: str) -> None:
    """Wait until the coordinator is available. The first request creates the internal topic."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    async with asyncio.timeout(60):
        while (await connection.call(request, FIND_COORDINATOR_VERSION)).coordinators[0].error_code in _RETRIABLE:
            await asyncio.sleep(0.1)


def _expect_no_error(code: int) -> None:
    if code != ErrorCode.NONE:
        raise RuntimeError(f"the broker returned {ErrorCode(code).name}")
