"""All targets by name."""

from __future__ import annotations

from tests.fuzz import protocol, records, storage, text

TARGETS = {target.name: target for module in (protocol, records, storage, text) for target in module.TARGETS}
