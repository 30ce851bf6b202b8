"""The careful half of produce validation: finding the error, opening the records, rewriting them."""

from __future__ import annotations

from kavka.records.batch import corrupt
from kavka.records.rules import ProduceRules, ValidatedBatch


def normalise_produce(
    buf: memoryview | bytearray, rules: ProduceRules, now_ms: int, api_version: int, from_client: bool
) -> ValidatedBatch:
    raise corrupt("not a batch for the fast path")
