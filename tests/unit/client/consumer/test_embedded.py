"""The embedded protocol of a classic group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.client.consumer import embedded
from kavka.client.consumer.assignors import Assignment, Subscription
from kavka.common.types import TopicPartition as TP
from kavka.protocol.primitives import ProtocolError

partitions = st.sets(st.builds(TP, st.text(min_size=1, max_size=5), st.integers(0, 9))).map(
    lambda partitions: tuple(sorted(partitions))
)


@given(
    st.frozensets(st.text(max_size=5)), st.none() | st.binary(), partitions, st.integers(-1, 99), st.none() | st.text()
)
def test_subscription_round_trips(topics, user_data, owned, generation, rack) -> None:
    subscription = Subscription(topics, user_data, owned, generation, "i", rack)
    assert embedded.read_subscription(embedded.write_subscription(subscription), "i") == subscription


@given(partitions, st.none() | st.binary())
def test_assignment_round_trips(assigned, user_data) -> None:
    assignment = Assignment(assigned, user_data)
    assert embedded.read_assignment(embedded.write_assignment(assignment)) == assignment


def test_bytes_are_those_of_kafka() -> None:
    data = embedded.write_assignment(Assignment((TP("a", 1), TP("a", 0))))
    assert data.hex() == "000100000001000161000000020000000000000001ffffffff"


def test_oldest_and_newer_versions_are_decoded() -> None:
    oldest = bytes.fromhex("000000000001000161ffffffff")
    assert embedded.read_subscription(oldest) == Subscription(frozenset("a"))
    newer = b"\x00\x09" + embedded.write_subscription(Subscription(frozenset("a")))[2:] + b"more"
    assert embedded.read_subscription(newer).topics == {"a"}


def test_empty_data_is_an_empty_assignment() -> None:
    assert embedded.read_assignment(b"") == Assignment()


@pytest.mark.parametrize("data", [b"\x00", b"\xff\xff", b"\x00\x00\x00", b"\x00\x00\x7f\xff\xff\xff"])
def test_invalid_data_is_rejected(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        embedded.read_assignment(data)
