"""The settings of transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    max_timeout_ms: int = 900_000
    expiration_ms: int = 7 * 24 * 3_600_000
    abort_check_interval_ms: int = 10_000
    expiration_check_interval_ms: int = 3_600_000

    @classmethod
    def of(cls, settings: Any) -> TransactionConfig:
        return cls(
            max_timeout_ms=settings.transaction_max_timeout_ms,
            expiration_ms=settings.transactional_id_expiration_ms,
            abort_check_interval_ms=settings.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            expiration_check_interval_ms=settings.transaction_remove_expired_transaction_cleanup_interval_ms,
        )
