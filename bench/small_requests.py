"""The cost of small requests: one 100-byte record per Produce request, one request at a time on
each of 32 connections."""

from __future__ import annotations

import asyncio
from typing import cast

from bench import light
from bench.measure import Options, Row, in_pairs, paired
from bench.sides import Side
from tests.support import wire

CONNECTIONS = 32
DURATION_S = 5.0
WARM_UP_S = 15.0
PRODUCE_VERSION = 7


class Requester(asyncio.Protocol):
    """Sends the same request again when its response is complete."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._received = b""
        self._is_stopped = False
        self.responses = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4], "big"):
            return
        self._received = b""
        self.responses += 1
        if not self._is_stopped:
            self._transport.write(self._request)

    def stop(self) -> None:
        self._is_stopped = True
        self._transport.close()


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    rates: dict[tuple[str, int], float] = {}

    def once(side: Side, index: int, seconds: float = DURATION_S) -> float:
        """Return the requests per second of broker CPU time."""
        start_cpu = side.cpu_seconds()
        responses = light.run(lambda: _responses(side, seconds))
        rates[side.name, index] = responses / seconds
        return responses / (side.cpu_seconds() - start_cpu)

    for side in sides.values():
        side.new_topic("benchmark")
        once(side, -1, WARM_UP_S)
    per_core = in_pairs(sides, options.pairs, once, title="small requests per second of broker CPU time")
    what = f"one 100-byte record per request, {CONNECTIONS} connections: requests per broker core"
    return [
        Row(what, "/s", per_core, "≥ 1.5 ×", 1.5),
        Row("the same, requests per second", "/s", paired(rates, options.pairs)),
    ]


async def _responses(side: Side, seconds: float) -> int:
    body = wire.produce_request("benchmark", 0, wire.batch([b"x" * 100]), version=PRODUCE_VERSION)
    request = wire.request(wire.PRODUCE, PRODUCE_VERSION, body)
    loop = asyncio.get_running_loop()
    requesters = [
        (await loop.create_connection(lambda: Requester(request), *side.address))[1] for _ in range(CONNECTIONS)
    ]
    await asyncio.sleep(seconds)
    for requester in requesters:
        requester.stop()
    return sum(requester.responses for requester in requesters)
