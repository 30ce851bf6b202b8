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


def test_a_plain_header_has_a_client_id_and_no_tagged_fields() -> None:
    header = RequestHeader(api_key=0, api_version=8, correlation_id=7, client_id="me")

    assert encoded(header) == b"\x00\x00\x00\x08\x00\x00\x00\x07\x00\x02me"


def test_the_client_id_of_a_flexible_header_is_still_a_plain_string() -> None:
    header = RequestHeader(api_key=0, api_version=9, correlation_id=7, client_id="me")

    assert encoded(header) == b"\x00\x00\x00\x09\x00\x00\x00\x07\x00\x02me\x00"


def test_the_first_controlled_shutdown_has_no_client_id() -> None:
    header = RequestHeader(api_key=ApiKey.CONTROLLED_SHUTDOWN, api_version=0, correlation_id=7)

    assert encoded(header) == b"\x00\x07\x00\x00\x00\x00\x00\x07"
    assert request_header_version(ApiKey.CONTROLLED_SHUTDOWN, 1) == 1
    assert request_header_version(ApiKey.CONTROLLED_SHUTDOWN, 3) == 2


def test_every_header_decodes_to_what_was_encoded() -> None:
    for key, api in APIS.items():
        for version in range(api.min_version, api.max_version + 1):
            for client_id in (None, "", "größe"):
                if request_header_version(key, version) == 0 and client_id is not None:
                    continue
                header = RequestHeader(api_key=key, api_version=version, correlation_id=-5, client_id=client_id)
                data = encoded(header)

                assert RequestHeader.decode(memoryview(b"xx" + data + b"body"), 2) == (header, 2 + len(data))


def test_tagged_fields_of_a_header_are_stepped_over() -> None:
    data = b"\x00\x00\x00\x09\x00\x00\x00\x07\xff\xff\x01\x63\x02ab"

    header, pos = RequestHeader.decode(data, 0)

    assert header == RequestHeader(api_version=9, correlation_id=7)
    assert pos == len(data)


def test_an_api_versions_request_that_is_too_new_has_a_flexible_header() -> None:
    assert request_header_version(ApiKey.API_VERSIONS, 99) == 2
    assert request_header_version(ApiKey.API_VERSIONS, 2) == 1


@pytest.mark.parametrize("length", range(12))
def test_a_header_that_is_cut_short_is_refused(length: int) -> None:
    data = b"\x00\x00\x00\x09\x00\x00\x00\x07\x00\x02me\x00"

    with pytest.raises(ProtocolError, match="malformed request header"):
        RequestHeader.decode(data[:length], 0)


def test_a_header_with_a_client_id_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(ProtocolError):
        RequestHeader.decode(b"\x00\x00\x00\x08\x00\x00\x00\x07\x00\x02\xff\xff", 0)


def test_a_header_of_an_unknown_api_is_read_as_far_as_it_is_known() -> None:
    header, _pos = RequestHeader.decode(b"\x7f\xff\x00\x01\x00\x00\x00\x07\x00\x02me", 0)

    assert header == RequestHeader(api_key=0x7FFF, api_version=1, correlation_id=7, client_id="me")


def test_a_response_has_tagged_fields_in_its_header_when_it_is_flexible() -> None:
    assert encode_response_header(ApiKey.PRODUCE, 8, 7) == b"\x00\x00\x00\x07"
    assert encode_response_header(ApiKey.PRODUCE, 9, 7) == b"\x00\x00\x00\x07\x00"
    assert decode_response_header(b"\x00\x00\x00\x07\x01\x00\x01x", 0, ApiKey.PRODUCE, 9) == (7, 8)
    with pytest.raises(ProtocolError, match="malformed response header"):
        decode_response_header(b"\x00\x00\x00\x07", 0, ApiKey.PRODUCE, 9)


def test_a_response_to_api_versions_always_has_the_first_header() -> None:
    for version in range(5):
        assert response_header_version(ApiKey.API_VERSIONS, version) == 0
        assert encode_response_header(ApiKey.API_VERSIONS, version, 7) == b"\x00\x00\x00\x07"
