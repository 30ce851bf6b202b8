"""The security of one listener: its TLS context, its SASL mechanisms, and its principals.

The broker creates it from the settings and replaces `context` when certificates change. Connections
use it; only the loop thread does.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kavka.common.metrics import Counter
from kavka.security.principal import ANONYMOUS, USER, Principal, SecurityProtocol
from kavka.security.sasl import SaslServer

# Returns the name of the principal of a certificate (DER), or raises ValueError.
CertificateName = Callable[[bytes], str]


@dataclass(frozen=True)
class Mechanism:
    """A SASL mechanism of a listener. `max_reauth_ms` 0 is no limit of a session."""

    new_exchange: Callable[[], SaslServer]
    max_reauth_ms: int = 0


@dataclass
class ListenerSecurity:
    """`context` is None without TLS. `mechanisms` is empty without SASL."""

    name: str
    protocol: SecurityProtocol
    context: ssl.SSLContext | None = None
    certificate_name: CertificateName | None = None
    mechanisms: Mapping[str, Mechanism] = field(default_factory=dict)
    max_receive_bytes: int = 524288
    failure_delay_s: float = 0.1
    failures: Counter | None = None
    successes: Counter | None = None

    def principal_of(self, certificate: bytes | None) -> Principal:
        """Return the principal of a TLS connection without SASL. Raises ValueError if no mapping
        rule applies."""
        if certificate is None or self.certificate_name is None:
            return ANONYMOUS
        return Principal(USER, self.certificate_name(certificate))

    def count_failure(self) -> None:
        if self.failures is not None:
            self.failures.value += 1

    def count_success(self) -> None:
        if self.successes is not None:
            self.successes.value += 1
