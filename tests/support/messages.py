"""A client that sends message objects of any version and returns the responses unchanged."""

from __future__ import annotations

import socket
from struct import Struct
from typing import Any, Self

from kavka.protocol.api_keys import APIS, ApiKey
from kavka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kavka.protocol.messages.sasl_handshake import SaslHandshakeRequest

_SIZE = Struct(">i")
_HEAD = Struct(">hhih")


class Messages:
    def __init__(
        self, address: tuple[str, int], timeout: float = 20.0, client_id: str = "test", source: str = ""
    ) -> None:
        """With `source` the client connects from that address."""
        self._client_id = client_id.encode()
        self._socket = socket.create_connection(address, timeout, (source, 0) if source else None)
        self._correlation = 0

    def call(self, request: Any, version: int) -> Any:
        info = APIS[ApiKey(request.API_KEY)]
        is_flexible = info.flexible_from is not None and version >= info.flexible_from
        self._correlation += 1
        head = _HEAD.pack(request.API_KEY, version, self._correlation, len(self._client_id))
        pieces: list[bytes] = [head, self._client_id]
        if is_flexible:
            pieces.append(b"\0")
        request.encode(pieces, version)
        body = b"".join(bytes(piece) for piece in pieces)
        self._socket.sendall(_SIZE.pack(len(body)) + body)
        (size,) = _SIZE.unpack(self._receive(4))
        data = self._receive(size)
        assert int.from_bytes(data[:4], "big") == self._correlation
        start = 5 if is_flexible and request.API_KEY != ApiKey.API_VERSIONS else 4
        response, end = info.response_class().decode(memoryview(data), start, version)
        assert end == len(data), f"{len(data) - end} bytes follow the response"
        return response

    def log_in(self, username: str, password: str) -> None:
        """Authenticate by SASL with the mechanism PLAIN."""
        assert self.call(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        token = f"\0{username}\0{password}".encode()
        assert self.call(SaslAuthenticateRequest(auth_bytes=token), 0).error_code == 0

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return data

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
