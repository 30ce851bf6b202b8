"""The listeners of the REST interface: addresses, TLS, and the address that other workers use."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from kavka.client.security_config import tls_values
from kavka.common.config import ConfigError, ConfigKey, ConfigType, OneOf
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.peers import Peers

PREFIX = "listeners.https."
HTTP, HTTPS = "http", "https"
_LISTENER = re.compile(r"(https?)://(\[[0-9a-f:.%]+\]|[0-9a-z\-%._]*)(?::([0-9]{1,5}))?/?", re.IGNORECASE)
_DEFAULT_PORT = 8083
_BACKLOG = 100
_CLIENT_AUTH = ConfigKey(
    "ssl.client.auth", ConfigType.STRING, "none", "", OneOf(("none", "requested", "required"), ignore_case=True)
)


class Address(NamedTuple):
    """An entry of `listeners`. The host "" means all addresses."""

    scheme: str
    host: str
    port: int


def addresses(settings: Mapping[str, Any]) -> list[Address]:
    """[pure] Returns the addresses of `listeners`. Raises ConnectError."""
    parsed = []
    for text in settings["listeners"]:
        match = _LISTENER.fullmatch(text.strip())
        port = int(match[3] or _DEFAULT_PORT) if match is not None else 0
        if match is None or port > 65535:
            raise ConnectError(
                f"listeners: '{text}' is not allowed, it must be a list of URLs: http://host:port,https://host:port"
            )
        parsed.append(Address(match[1].lower(), match[2].strip("[]"), port))
    if not parsed:
        raise ConnectError("listeners: must not be empty")
    return parsed


class TlsStores:
    """Creates the TLS contexts of a worker from `listeners.https.ssl.…`, or from `ssl.…` if no
    setting has the prefix, as in Kafka Connect. All errors are ConnectError with the name of the
    setting."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        prefixed = {
            name.removeprefix(PREFIX): text for name, text in properties.items() if name.startswith(f"{PREFIX}ssl.")
        }
        self._prefix = PREFIX if prefixed else ""
        self._settings = prefixed or {name: text for name, text in properties.items() if "ssl." in name}

    def server_context(self) -> ssl.SSLContext:
        return self._context(is_server=True)

    def client_context(self) -> ssl.SSLContext:
        return self._context(is_server=False)

    def _context(self, is_server: bool) -> ssl.SSLContext:
        # `cryptography` is loaded only if a listener or another worker has TLS.
        from kavka.security.tls import TlsSettings, client_context, server_context

        try:
            client_auth = _CLIENT_AUTH.parse(self._settings.get("ssl.client.auth") or "none").lower()
            settings = TlsSettings.from_values({**tls_values(self._settings), "ssl.client.auth": client_auth})
            return server_context(settings) if is_server else client_context(settings)
        except ConfigError as error:
            raise ConnectError(f"{self._prefix}{error.name}: {error.reason}") from None


class Listeners:
    """The bound sockets of the REST interface. The constructor binds them, because the worker's id
    contains a port. Raises ConnectError for a bad setting, and OSError."""

    def __init__(self, settings: Mapping[str, Any], properties: Mapping[str, str]) -> None:
        self._settings = settings
        self._addresses = addresses(settings)
        advertised = self._advertised()
        stores = TlsStores(properties)
        has_tls = any(address.scheme == HTTPS for address in self._addresses)
        context = stores.server_context() if has_tls else None
        self.peers = Peers(stores.client_context)
        if has_tls:
            self.peers.load_tls()
        self.tls: dict[socket.socket, ssl.SSLContext | None] = {}
        """The TLS context of each socket, in the order of `listeners`."""
        try:
            for address in self._addresses:
                self.tls[_bind(address)] = context if address.scheme == HTTPS else None
        except OSError:
            self.close()
            raise
        port = self.sockets[self._addresses.index(advertised)].getsockname()[1]
        host = settings["rest.advertised.host.name"] or advertised.host
        if host in ("", "0.0.0.0", "::"):
            host = _own_address()
        self.name = f"{f'[{host}]' if ':' in host else host}:{settings['rest.advertised.port'] or port}"
        """The worker's id: the advertised host and port."""
        self.url = f"{advertised.scheme}://{self.name}"

    @property
    def sockets(self) -> list[socket.socket]:
        return list(self.tls)

    @property
    def host_names(self) -> set[str]:
        """The names that requests may use for this worker."""
        names = {address.host for address in self._addresses}
        return {"localhost", *names, self._settings["rest.advertised.host.name"] or ""} - {""}

    @property
    def are_loopback(self) -> bool:
        """Whether only programs on this machine can reach the listeners."""
        bound = (listener.getsockname()[0].partition("%")[0] for listener in self.sockets)
        return all(ipaddress.ip_address(address).is_loopback for address in bound)

    def close(self) -> None:
        for listener in self.tls:
            listener.close()

    def _advertised(self) -> Address:
        """Returns the first listener of the advertised protocol: `rest.advertised.listener`, or
        HTTP if there is such a listener, as in Kafka Connect."""
        schemes = [address.scheme for address in self._addresses]
        scheme = (self._settings["rest.advertised.listener"] or (HTTP if HTTP in schemes else HTTPS)).lower()
        if scheme not in schemes:
            raise ConnectError(f"rest.advertised.listener: listeners has no {scheme}:// address")
        return self._addresses[schemes.index(scheme)]


def _bind(address: Address) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(f"listeners: cannot listen on {address.host or '*'}:{address.port}: {error.strerror}") from None
    return listener


def _own_address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
