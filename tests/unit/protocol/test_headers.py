from __future__ import annotations

import pytest

from kavka.protocol.api_keys import APIS, ApiKey
from kavka.protocol.headers import (
    RequestHeader,
    decode_response_header,
    encode_response_header,
    request_header_version,
    response_header_version,
)
from kavka.protocol.primitives import ProtocolError


def encoded(header: RequestHeader) -> bytes:
    out: list[bytes] = []
    header.encode(out)
    return b"".join(out)


def test_header_v1_has_client_id_and_no_tagged_fields() -> None:
    header = RequestHeader(api_key=0, api_version=8, correlation_id=7, client_id="me")

    assert encoded(header) == b"\x00\x00\x00\x08\x00\x00\x00\x07\x00\x02me"


def test_client_id_of_flexible_header_is_plain_string() -> None:
    header = RequestHeader(api_key=0, api_version=9, correlation_id=7, client_id="me")

    assert encoded(header) == b"\x00\x00\x00\x09\x00\x00\x00\x07\x00\x02me\x00"


def test_controlled_shutdown_v0_has_no_client_id() -> None:
    header = RequestHeader(api_key=ApiKey.CONTROLLED_SHUTDOWN, api_version=0, correlation_id=7)

    assert encoded(header) == b"\x00\x07\x00\x00\x00\x00\x00\x07"
    assert request_header_version(ApiKey.CONTROLLED_SHUTDOWN, 1) == 1
    assert request_header_version(ApiKey.CONTROLLED_SHUTDOWN, 3) == 2


def test_headers_round_trip() -> None:
    for key, api in APIS.items():
        for version in range(api.min_version, api.max_version + 1):
            for client_id in (None, "", "größe"):
                if request_header_version(key, version) == 0 and client_id is not None:
                    continue
                header = RequestHeader(api_key=key, api_version=version, correlation_id=-5, client_id=client_id)
                data = encoded(header)

                assert RequestHeader.decode(memoryview(b"xx" + data + b"body"), 2) == (header, 2 + len(data))


def test_tagged_fields_of_header_are_skipped() -> None:
    data = b"\x00\x00\x00\x09\x00\x00\x00\x07\xff\xff\x01\x63\x02ab"

    header, pos = RequestHeader.decode(data, 0)

    assert header == RequestHeader(api_version=9, correlation_id=7)
    assert pos == len(data)


def test_unknown_version_of_api_versions_has_flexible_header() -> None:
    assert request_header_version(ApiKey.API_VERSIONS, 99) == 2
    assert request_header_version(ApiKey.API_VERSIONS, 2) == 1


@pytest.mark.parametrize("length", range(12))
def test_truncated_header_is_rejected(length: int) -> None:
    data = b"\x00\x00\x00\x09\x00\x00\x00\x07\x00\x02me\x00"

    with pytest.raises(ProtocolError, match="malformed request header"):
        RequestHeader.decode(data[:length], 0)


def test_client_id_that_is_not_utf_8_is_rejected() -> None:
    with pytest.raises(ProtocolError):
        RequestHeader.decode(b"\x00\x00\x00\x08\x00\x00\x00\x07\x00\x02\xff\xff", 0)


def test_header_of_unknown_api_is_decoded() -> None:
    header, _pos = RequestHeader.decode(b"\x7f\xff\x00\x01\x00\x00\x00\x07\x00\x02me", 0)

    assert header == RequestHeader(api_key=0x7FFF, api_version=1, correlation_id=7, client_id="me")


def test_flexible_response_header_has_tagged_fields() -> None:
    assert encode_response_header(ApiKey.PRODUCE, 8, 7) == b"\x00\x00\x00\x07"
    assert encode_response_header(ApiKey.PRODUCE, 9, 7) == b"\x00\x00\x00\x07\x00"
    assert decode_response_header(b"\x00\x00\x00\x07\x01\x00\x01x", 0, ApiKey.PRODUCE, 9) == (7, 8)
    with pytest.raises(ProtocolError, match="malformed response header"):
        decode_response_header(b"\x00\x00\x00\x07", 0, ApiKey.PRODUCE, 9)


def test_api_versions_response_always_has_header_v0() -> None:
    for version in range(5):
        assert response_header_version(ApiKey.API_VERSIONS, version) == 0
        assert encode_response_header(ApiKey.API_VERSIONS, version, 7) == b"\x00\x00\x00\x07"
