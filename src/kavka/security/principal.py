"""[pure] The identity of a connection, and the security protocols of listeners."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

USER = "User"


class Principal(NamedTuple):
    """The identity of a connection. `str()` is Kafka's text form, for example `User:alice`."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")


class SecurityProtocol(Enum):
    """The protocol of a listener. The values are Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)
