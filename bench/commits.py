"""Offset commits of group members: one partition per request, one request at a time per
connection."""

from __future__ import annotations

import asyncio
import itertools
from struct import Struct
from typing import cast

from bench import light
from bench.measure import Options, Row, in_pairs, paired
from bench.sides import Side
from kavka.protocol.headers import decode_response_header
from kavka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

CONNECTIONS = 8
DURATION_S = 4.0
# Long enough for the JIT compiler of the JVM.
WARM_UP_S = 15.0
OFFSET_COMMIT_VERSION = 9
# The length of the size field before a frame.
SIZE_LENGTH = 4

# Placeholder for the offset in the encoded request.
_OFFSET_PLACEHOLDER = 0x1122334455667788
_OFFSET = Struct(">q")

_group_numbers = itertools.count(1)


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    for side in sides.values():
        side.new_topic("benchmark", CONNECTIONS)
    return _rows(sides, options, CONNECTIONS) + _rows(sides, options, 1)


def _rows(sides: dict[str, Side], options: Options, connections: int) -> list[Row]:
    cpu: dict[tuple[str, int], float] = {}

    def once(side: Side, index: int, seconds: float = DURATION_S) -> float:
        start_cpu = side.cpu_seconds()
        count = light.run(lambda: _commits(side, connections, seconds))
        cpu[side.name, index] = (side.cpu_seconds() - start_cpu) / count * 1e6
        return count / seconds

    for side in sides.values():
        once(side, -1, WARM_UP_S)
    members = f"{connections} members" if connections > 1 else "1 member"
    rates = in_pairs(sides, options.pairs, once, title=f"offset commits of {members}, per s")
    cpu_times = paired(cpu, options.pairs)
    return [
        Row(f"offset commits of {members}, one request at a time each", "/s", rates, "≥ 1.0 ×", 1.0),
        Row("broker CPU time per commit", "µs", cpu_times),
    ]


async def _commits(side: Side, connections: int, seconds: float) -> int:
    """Return the number of commits in `seconds`."""
    open_connections = [await light.Connection.open(side.broker.address) for _ in range(connections)]
    try:
        name = f"benchmark-{next(_group_numbers)}"
        await light.wait_for_coordinator(open_connections[0], name)
        group = light.Group(name, "benchmark", CONNECTIONS, connections)
        members = [light.Member(connection, group) for connection in open_connections]
        await light.complete_rebalance(members)
        committers = [await Committer.open(side.broker.address, member) for member in members]
        for committer in committers:
            committer.commit()
        await asyncio.sleep(seconds)
        count = sum(committer.committed for committer in committers)
        for committer in committers:
            await committer.stop()
        await light.leave(members)
        return count
    finally:
        for connection in open_connections:
            connection.close()


class Committer(asyncio.Protocol):
    """Commits the next offset when the response to the previous commit arrives.

    Only the first response is decoded. Later responses are compared with it, and decoded if they
    differ.
    """

    def __init__(self, member: light.Member) -> None:
        partition = OffsetCommitRequestPartition(
            partition_index=member.partitions[0], committed_offset=_OFFSET_PLACEHOLDER, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=member.group.name,
            generation_id_or_member_epoch=member.generation,
            member_id=member.id,
            topics=[OffsetCommitRequestTopic(name=member.group.topic, partitions=[partition])],
        )
        self._request = bytearray(light.encode_frame(request, OFFSET_COMMIT_VERSION))
        self._offset_position = self._request.index(_OFFSET.pack(_OFFSET_PLACEHOLDER))
        self._transport: asyncio.Transport
        self._received = b""
        self._expected = b""
        self._stopped: asyncio.Future[None] | None = None
        self.committed = 0
        self.error: Exception | None = None

    @classmethod
    async def open(cls, address: tuple[str, int], member: light.Member) -> Committer:
        _, committer = await asyncio.get_running_loop().create_connection(lambda: cls(member), *address)
        return committer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def commit(self) -> None:
        _OFFSET.pack_into(self._request, self._offset_position, self.committed)
        self._transport.write(bytes(self._request))

    def data_received(self, data: bytes) -> None:
        if self._received:
            data = self._received + data
        if data != self._expected:
            if len(data) < SIZE_LENGTH or len(data) < SIZE_LENGTH + int.from_bytes(data[:SIZE_LENGTH], "big"):
                self._received = data
                return
            self._read(data)
        self._received = b""
        self.committed += 1
        if self._stopped is not None:
            self._transport.close()
        else:
            self.commit()

    def _read(self, data: bytes) -> None:
        assert OffsetCommitRequest.API_KEY is not None
        _, position = decode_response_header(data, SIZE_LENGTH, OffsetCommitRequest.API_KEY, OFFSET_COMMIT_VERSION)
        response, _ = OffsetCommitResponse.decode(data, position, OFFSET_COMMIT_VERSION)
        code = response.topics[0].partitions[0].error_code
        if code != 0:
            self.error = RuntimeError(f"an offset was not committed: error {code}")
            self._transport.close()
        self._expected = data

    def connection_lost(self, error: Exception | None) -> None:
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
            self.error = self.error or error or ConnectionResetError("the broker closed the connection")
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def stop(self) -> None:
        """Stop after the pending response."""
        if self._stopped is None:
            self._stopped = asyncio.get_running_loop().create_future()
        await self._stopped
        if self.error is not None:
            raise self.error
