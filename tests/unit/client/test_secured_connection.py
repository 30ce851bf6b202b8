"""The TLS handshake of a client with hostile and misconfigured servers."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kavka.client.connection import Connection
from kavka.client.errors import AuthenticationFailed, Disconnected, KafkaTimeout
from kavka.security.authority import DAY, Authority, Certificate
from kavka.security.client_security import ClientSecurity
from kavka.security.key_stores import StoreSource
from kavka.security.principal import SecurityProtocol
from kavka.security.tls import TlsSettings, client_context, server_context
from tests.support.loops import run_in_loop

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read, and never respond."""
    while await reader.read(4096):
        pass


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(4)
    writer.close()


async def connect(
    authority: Authority, certificate: Certificate | None, folder: Path, *, serve: Serve = ignore, timeout: float = 10.0
) -> Exception:
    """Start a server, connect to it over TLS, and return the error. The server has TLS if
    `certificate` is not None."""
    context = None
    if certificate is not None:
        path = str(certificate.write_pem(folder / "server.pem"))
        context = server_context(TlsSettings(key_store=StoreSource("ssl.keystore.", "PEM", path)))
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    trusted = StoreSource("ssl.truststore.", "PEM", pem=authority.pem)
    security = ClientSecurity(SecurityProtocol.SSL, client_context(TlsSettings(trust_store=trusted)))
    try:
        port = server.sockets[0].getsockname()[1]
        connection = await Connection.open("127.0.0.1", port, timeout=timeout, security=security)
    except (AuthenticationFailed, Disconnected, KafkaTimeout) as error:
        return error
    finally:
        server.close()
    connection.close()
    raise AssertionError("connected")


HOST = ("127.0.0.1",)


@pytest.mark.parametrize(
    ("hosts", "valid_for", "self_signed", "message"),
    [
        (HOST, -DAY, False, "its certificate is not valid now (certificate has expired); renew it"),
        (HOST, DAY, True, "its certificate is not trusted (self-signed certificate); set ssl.truststore.location"),
        (("other.example.com",), DAY, False, "its certificate is for another host (IP address mismatch"),
        ((), DAY, False, "its certificate is for another host"),
    ],
)
def test_a_certificate_is_rejected(
    tmp_path: Path, hosts: tuple[str, ...], valid_for: datetime.timedelta, self_signed: bool, message: str
) -> None:
    authority = Authority()
    certificate = authority.certificate_of("broker", hosts=hosts, valid_for=valid_for, self_signed=self_signed)
    error = asyncio.run(connect(authority, certificate, tmp_path))
    assert isinstance(error, AuthenticationFailed)
    assert message in str(error) and "\n" not in str(error)


def test_a_certificate_of_another_authority_is_rejected(tmp_path: Path) -> None:
    error = asyncio.run(connect(Authority(), Authority("Other CA").certificate_of("broker", hosts=HOST), tmp_path))
    assert isinstance(error, AuthenticationFailed) and "its certificate is not trusted" in str(error)


@run_in_loop
async def test_a_connection_to_a_silent_server_times_out(tmp_path: Path) -> None:
    authority = Authority()
    error = await connect(authority, None, tmp_path, timeout=0.3)
    assert isinstance(error, KafkaTimeout) and "within 0.3 s" in str(error)
    # The handshake succeeds, and ApiVersions has no response.
    error = await connect(authority, authority.certificate_of("broker", hosts=HOST), tmp_path, timeout=0.5)
    assert isinstance(error, KafkaTimeout)


@run_in_loop
async def test_a_server_without_tls_is_reported(tmp_path: Path) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x10 no TLS here")
        await reader.read(4096)

    closed = await connect(Authority(), None, tmp_path, serve=close)
    assert isinstance(closed, Disconnected) and "is it a port without TLS?" in str(closed)
    responded = await connect(Authority(), None, tmp_path, serve=respond)
    assert isinstance(responded, AuthenticationFailed) and "is it a port without TLS?" in str(responded)
