"""[pure] Signatures of requests between workers (KIP-507), and the session key that signs them.

The leader creates the key and writes it to the config topic, which only workers may read. A new key
replaces it after `inter.worker.key.ttl.ms`. The signature covers the body of the request.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kavka.pipeline.connect.errors import ConnectError

SIGNATURE = "X-Connect-Authorization"
ALGORITHM = "X-Connect-Request-Signature-Algorithm"

# Java's names, in lower case: the digest of the MAC and the default key size in bytes.
_ALGORITHMS = {
    "hmacsha1": ("sha1", 64),
    "hmacsha224": ("sha224", 28),
    "hmacsha256": ("sha256", 32),
    "hmacsha384": ("sha384", 48),
    "hmacsha512": ("sha512", 64),
}
ALGORITHMS = ("HmacSHA1", "HmacSHA224", "HmacSHA256", "HmacSHA384", "HmacSHA512")


class SignatureError(Exception):
    """A request without a valid signature. `code` is the status of the response."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class SessionKey:
    """A key of the workers, with the time of its creation in milliseconds."""

    secret: bytes = field(repr=False)
    algorithm: str
    created_ms: int

    def record(self) -> dict[str, Any]:
        """Returns the value of Kafka Connect's record `session-key`."""
        key = base64.b64encode(self.secret).decode()
        return {"key": key, "algorithm": self.algorithm, "creation-timestamp": self.created_ms}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> SessionKey | None:
        """Returns the key in a record; None if the record is invalid."""
        try:
            secret = base64.b64decode(record["key"], validate=True)
            key = cls(secret, str(record["algorithm"]), int(record["creation-timestamp"]))
        except (KeyError, TypeError, ValueError):
            return None
        return key if secret else None


@dataclass(frozen=True)
class KeySettings:
    """The settings `inter.worker.…`."""

    key_algorithm: str = "HmacSHA256"
    key_bits: int | None = None
    ttl_ms: int = 3_600_000
    signature_algorithm: str = "HmacSHA256"
    verification_algorithms: tuple[str, ...] = ("HmacSHA256",)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> KeySettings:
        """Raises ConnectError if the worker would not accept its own signatures."""
        algorithms = settings["inter.worker.verification.algorithms"]
        if settings["inter.worker.signature.algorithm"].lower() not in {name.lower() for name in algorithms}:
            raise ConnectError("inter.worker.signature.algorithm: must be in inter.worker.verification.algorithms")
        return cls(
            settings["inter.worker.key.generation.algorithm"],
            settings["inter.worker.key.size"],
            settings["inter.worker.key.ttl.ms"],
            settings["inter.worker.signature.algorithm"],
            tuple(algorithms),
        )

    def new_key(self, now_ms: int) -> SessionKey:
        return SessionKey(secrets.token_bytes(self._key_bytes()), self.key_algorithm, now_ms)

    def must_replace(self, key: SessionKey | None, now_ms: int) -> bool:
        """Whether the leader must create a key: there is none, it has expired, or it does not match
        the settings."""
        if key is None or key.algorithm.lower() != self.key_algorithm.lower() or len(key.secret) != self._key_bytes():
            return True
        return self.ttl_ms > 0 and now_ms >= key.created_ms + self.ttl_ms

    def _key_bytes(self) -> int:
        return _ALGORITHMS[self.key_algorithm.lower()][1] if self.key_bits is None else (self.key_bits + 7) // 8

    def signature(self, key: SessionKey, body: bytes) -> dict[str, str]:
        """Returns the headers that sign the body."""
        mac = _mac(key, self.signature_algorithm, body)
        return {SIGNATURE: base64.b64encode(mac).decode(), ALGORITHM: self.signature_algorithm}

    def verify(self, key: SessionKey | None, body: bytes, headers: Mapping[str, str]) -> None:
        """Raises SignatureError, with the status and the message of Kafka Connect, unless the
        headers sign the body. The names of `headers` are case insensitive."""
        algorithm, text = headers.get(ALGORITHM), headers.get(SIGNATURE)
        if algorithm is None or text is None:
            raise SignatureError(400, "Internal request missing required signature")
        if algorithm.lower() not in {allowed.lower() for allowed in self.verification_algorithms}:
            raise SignatureError(
                400,
                f"This worker does not support the '{algorithm[:100]}' key signing algorithm used by other workers. "
                f"This worker is currently configured to use: [{', '.join(self.verification_algorithms)}]. "
                "Check that all workers' configuration files permit the same set of signature algorithms, "
                "and correct any misconfigured worker and restart it.",
            )
        try:
            signature = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise SignatureError(400, "The signature of the internal request is not base64") from None
        if key is None:
            raise SignatureError(503, "This worker has not read a session key from the config topic yet")
        if not hmac.compare_digest(signature, _mac(key, algorithm, body)):
            raise SignatureError(403, "Internal request contained invalid signature.")


def _mac(key: SessionKey, algorithm: str, body: bytes) -> bytes:
    return hmac.digest(key.secret, body, getattr(hashlib, _ALGORITHMS[algorithm.lower()][0]))
