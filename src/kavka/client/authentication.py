"""The SASL exchange of a client on an open connection, after ApiVersions."""

from __future__ import annotations

import random
import ssl
from typing import TYPE_CHECKING

from kavka.client.errors import AuthenticationFailed, error_of
from kavka.common.errors import ErrorCode
from kavka.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from kavka.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from kavka.security.sasl import SaslError

if TYPE_CHECKING:
    from kavka.client.connection import Connection
    from kavka.security.client_security import ClientSecurity
    from kavka.security.sasl import SaslClient


# A session is renewed after this fraction of its lifetime, as in Kafka: chosen at random, so that
# the connections of many clients do not authenticate at the same time.
_RENEWAL_FRACTIONS = 0.85, 0.95
_CERTIFICATE_REQUIRED = "CERTIFICATE_REQUIRED"
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_EOF_WHILE_READING")


def reauthentication_delay_s(lifetime_ms: int) -> float:
    return lifetime_ms / 1000 * random.uniform(*_RENEWAL_FRACTIONS)


async def authenticate(connection: Connection, security: ClientSecurity, timeout: float) -> int:
    """Authenticate, or authenticate again, and return the lifetime of the session in ms, 0 for no
    limit. Other requests that are sent meanwhile are held until this returns. Raises
    AuthenticationFailed, or an error of the connection."""
    assert security.mechanism is not None and security.new_exchange is not None
    try:
        exchange = await security.new_exchange()
    except SaslError as error:
        raise AuthenticationFailed(f"no connection to {connection.name}: {error}") from None
    # The broker first responds to the requests in flight.
    wait_s = timeout + connection.seconds_to_last_deadline
    pending = connection.send(SaslHandshakeRequest(mechanism=security.mechanism), timeout=wait_s)
    connection.hold_requests()
    try:
        _check_handshake(connection.name, security.mechanism, await pending)
        return await _run(connection, exchange, timeout)
    finally:
        connection.release_requests()


def _check_handshake(name: str, mechanism: str, response: SaslHandshakeResponse) -> None:
    if response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        enabled = ", ".join(response.mechanisms) or "none"
        raise AuthenticationFailed(
            f"{name} does not support the SASL mechanism {mechanism}; set sasl.mechanism to one of: {enabled}"
        )
    if response.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise AuthenticationFailed(f"{name} does not use SASL; set security.protocol to PLAINTEXT or SSL")
    if response.error_code:
        raise AuthenticationFailed(f"{name} rejected the SASL handshake: {error_of(response.error_code).message}")


async def _run(connection: Connection, exchange: SaslClient, timeout: float) -> int:
    message: bytes | None = exchange.initial()
    lifetime_ms = 0
    while message is not None:
        response = await connection.send_ahead(SaslAuthenticateRequest(auth_bytes=message), timeout=timeout)
        if response.error_code:
            reason = response.error_message or error_of(response.error_code).message
            raise AuthenticationFailed(
                f"{connection.name} rejected the authentication: {reason} (check the user, the password and "
                "sasl.mechanism)"
            )
        lifetime_ms = response.session_lifetime_ms
        try:
            message = exchange.respond(bytes(response.auth_bytes))
        except SaslError as error:
            raise AuthenticationFailed(f"the authentication at {connection.name} failed: {error}") from None
    if not exchange.is_complete:
        raise AuthenticationFailed(f"{connection.name} ended the SASL exchange before it was complete")
    return lifetime_ms


def tls_error(error: ssl.SSLError | ssl.CertificateError) -> str:
    """Return what is wrong with a TLS connection, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = error.verify_message
        if error.verify_code in (62, 64):
            return (
                f"its certificate is for another host ({reason}); connect by a name in the certificate, "
                "or set ssl.endpoint.identification.algorithm to none"
            )
        if error.verify_code in (9, 10):
            return f"its certificate is not valid now ({reason}); renew it, or correct the clock"
        return (
            f"its certificate is not trusted ({reason}); set ssl.truststore.location (or ssl.ca.location) to the "
            "certificate of its authority"
        )
    reason = str(getattr(error, "reason", None) or error)
    if _CERTIFICATE_REQUIRED in reason:
        return "it requires a client certificate; set ssl.keystore.location (or ssl.certificate.location)"
    if reason in _NOT_TLS:
        return "it does not use TLS (is it a port without TLS? set security.protocol to PLAINTEXT or SASL_PLAINTEXT)"
    if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        return (
            f"it rejects the client certificate, or requires one ({reason}); "
            "set ssl.keystore.location (or ssl.certificate.location)"
        )
    return f"the TLS handshake failed: {reason}"


def connect_error(error: OSError, is_handshake: bool) -> str:
    if is_handshake and isinstance(error, ConnectionError):
        return (
            "it closed the connection during the TLS handshake (is it a port without TLS? "
            "set security.protocol to PLAINTEXT or SASL_PLAINTEXT)"
        )
    return str(error)
