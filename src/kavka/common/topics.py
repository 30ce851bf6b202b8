"""[pure] The names of the internal topics."""

from __future__ import annotations

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE})


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS
