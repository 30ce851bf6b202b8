"""The headers of requests and responses, and their versions by API version.

A request header has the api key, api version and correlation id (v0), the client id (v1), and
tagged fields (v2). The client id is a plain nullable string in all versions, never a compact
string. Only ControlledShutdown v0 has a header v0. A response header has the correlation id (v0)
and tagged fields (v1). An ApiVersions response always has a header v0, because the client does not
know the broker's versions yet.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from kavka.protocol.api_keys import APIS, ApiKey
from kavka.protocol.primitives import (
    DECODE_ERRORS,
    ENCODE_ERRORS,
    Buffer,
    Message,
    malformed,
    not_encodable,
    pack_nullable_string,
    skip_tags,
    truncated,
)

_NEVER = 1 << 15
_FLEXIBLE_FROM: dict[int, int] = {
    key: _NEVER if api.flexible_from is None else api.flexible_from for key, api in APIS.items()
}
_API_VERSIONS = int(ApiKey.API_VERSIONS)
_CONTROLLED_SHUTDOWN = int(ApiKey.CONTROLLED_SHUTDOWN)

_unpack_v0 = Struct(">hhi").unpack_from
_unpack_client_id_length = Struct(">h").unpack_from
_pack_v0 = Struct(">hhi").pack
_unpack_int32 = Struct(">i").unpack_from
_pack_int32 = Struct(">i").pack
_pack_int32_and_no_tags = Struct(">ix").pack


def request_header_version(api_key: int, api_version: int) -> int:
    """Return the header version of a request. An unknown newer API version has the header of the
    newest known version."""
    if api_version >= _FLEXIBLE_FROM.get(api_key, _NEVER):
        return 2
    return 0 if api_key == _CONTROLLED_SHUTDOWN and api_version == 0 else 1


def response_header_version(api_key: int, api_version: int) -> int:
    return 1 if api_version >= _FLEXIBLE_FROM.get(api_key, _NEVER) and api_key != _API_VERSIONS else 0


class RequestHeader(Message):
    """The header of a request, in any version."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id")

    def __init__(
        self, *, api_key: int = 0, api_version: int = 0, correlation_id: int = 0, client_id: str | None = None
    ) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    @staticmethod
    def decode(buf: Buffer, pos: int) -> tuple[RequestHeader, int]:
        """Return the header at `pos`, and the position of the body. The API and its version may be
        unknown. Raises ProtocolError."""
        try:
            header = _new(RequestHeader)
            header.api_key, header.api_version, header.correlation_id = api_key, api_version, _ = _unpack_v0(buf, pos)
            header.client_id = None
            pos += 8
            flexible = api_version >= _FLEXIBLE_FROM.get(api_key, _NEVER)
            if not flexible and api_key == _CONTROLLED_SHUTDOWN and api_version == 0:
                return header, pos
            (length,) = _unpack_client_id_length(buf, pos)
            pos += 2
            if length >= 0:
                end = pos + length
                if end > len(buf):
                    raise truncated("client_id", length, len(buf) - pos)
                header.client_id = str(buf[pos:end], "utf-8")
                pos = end
            if flexible:
                pos = skip_tags(buf, pos)
            return header, pos
        except DECODE_ERRORS as error:
            raise malformed("request header", error) from None

    def encode(self, out: list[Any]) -> None:
        header_version = request_header_version(self.api_key, self.api_version)
        try:
            out.append(_pack_v0(self.api_key, self.api_version, self.correlation_id))
            if header_version >= 1:
                out.append(pack_nullable_string(self.client_id))
            if header_version >= 2:
                out.append(b"\x00")
        except ENCODE_ERRORS as error:
            raise not_encodable("request header", error) from None


_new = object.__new__


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    if api_version >= _FLEXIBLE_FROM.get(api_key, _NEVER) and api_key != _API_VERSIONS:
        return _pack_int32_and_no_tags(correlation_id)
    return _pack_int32(correlation_id)


def decode_response_header(buf: Buffer, pos: int, api_key: int, api_version: int) -> tuple[int, int]:
    """Return the correlation id, and the position of the body. Raises ProtocolError."""
    try:
        (correlation_id,) = _unpack_int32(buf, pos)
        pos += 4
        if response_header_version(api_key, api_version) == 1:
            pos = skip_tags(buf, pos)
        return correlation_id, pos
    except DECODE_ERRORS as error:
        raise malformed("response header", error) from None
