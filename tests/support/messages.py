"""Requests of any version as message objects over a socket, without a client that hides
responses."""

from __future__ import annotations

import socket
from struct import Struct
from types import TracebackType
from typing import Any

from kavka.protocol.api_keys import APIS, ApiKey

_SIZE = Struct(">i")
_HEAD = Struct(">hhih")


class Messages:
    def __init__(self, address: tuple[str, int], timeout: float = 20.0, client_id: str = "test") -> None:
        self._client_id = client_id.encode()
        self._socket = socket.create_connection(address, timeout)
        self._correlation = 0

    def call(self, request: Any, version: int) -> Any:
        info = APIS[ApiKey(request.API_KEY)]
        flexible = info.flexible_from is not None and version >= info.flexible_from
        self._correlation += 1
        head = _HEAD.pack(request.API_KEY, version, self._correlation, len(self._client_id))
        out: list[bytes] = [head, self._client_id]
        if flexible:
            out.append(b"\0")
        request.encode(out, version)
        body = b"".join(bytes(piece) for piece in out)
        self._socket.sendall(_SIZE.pack(len(body)) + body)
        (size,) = _SIZE.unpack(self._exactly(4))
        answer = self._exactly(size)
        assert int.from_bytes(answer[:4], "big") == self._correlation
        start = 5 if flexible and request.API_KEY != ApiKey.API_VERSIONS else 4
        response, end = info.response_class().decode(memoryview(answer), start, version)
        assert end == len(answer), f"{len(answer) - end} bytes are left of the answer"
        return response

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return data

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Messages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
