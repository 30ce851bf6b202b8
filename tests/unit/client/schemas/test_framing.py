from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka import SerializationError
from kavka.client.schemas import framing


def test_the_header_is_a_zero_and_the_id_in_four_bytes() -> None:
    assert framing.header(0x01020304) == b"\0\1\2\3\4"
    assert framing.schema_id_of(b"\0\1\2\3\4payload") == 0x01020304
    for data in (b"", b"\0\0\0\0", b"\1\0\0\0\1x", b'{"a":1}'):
        with pytest.raises(SerializationError, match="zero byte and a schema id"):
            framing.schema_id_of(data)


def test_the_first_message_type_is_a_single_zero() -> None:
    assert framing.encode_indexes([0]) == b"\0"
    assert framing.encode_indexes([1]) == b"\x02\x02"
    assert framing.encode_indexes([1, 0]) == b"\x04\x02\x00"


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20))
def test_indexes_are_read_as_written(indexes: list[int]) -> None:
    data = b"12345" + framing.encode_indexes(indexes) + b"payload"
    assert framing.decode_indexes(data, 5) == (tuple(indexes), len(data) - 7)


@pytest.mark.parametrize("data", [b"", b"\x04\x02", b"\x80", b"\x01", b"\xff\xff\xff\xff\xff\xff", b"\xd0\x0f\x00"])
def test_incomplete_indexes_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="indexes"):
        framing.decode_indexes(data, 0)
