"""Encoding and decoding round-trips for arbitrary values of every message and version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.protocol.cases import CASES, Case
from tests.unit.protocol.strategies import messages


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_messages_round_trip(case: Case, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(list(case.schema.versions)), label="version")
    message: Any = data.draw(messages(case, version), label="message")

    encoded = message.to_bytes(version)
    decoded, end = case.cls.decode(memoryview(encoded), 0, version)

    assert decoded == message
    assert end == len(encoded)
    assert decoded.to_bytes(version) == encoded
