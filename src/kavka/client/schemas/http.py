"""HTTP requests to a schema registry, with Confluent's settings.

| Setting | Meaning |
|---|---|
| `schema.registry.url` | one URL or several, tried in this order |
| `basic.auth.user.info` | `user:password`; also in the URL |
| `bearer.auth.token` | a token |
| `schema.registry.ssl.*` | Kafka's `ssl.*` settings |
| `http.connect.timeout.ms`, `http.read.timeout.ms` | timeouts |
| `max.retries`, `retries.wait.ms` | attempts after an error that may pass |

`schema.registry.` may precede the names of authentication and timeouts.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from kavka.client.errors import SchemaRegistryError, SchemaRegistryUnavailable
from kavka.common.config import ConfigError

URL = "schema.registry.url"
PREFIX = "schema.registry."
SSL_PREFIX = "schema.registry.ssl."
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
MAX_RESPONSE_BYTES = 32 * 1024 * 1024
DEFAULT_TIMEOUT_MS = 10_000
_NAMES = (
    "basic.auth.credentials.source", "basic.auth.user.info", "bearer.auth.credentials.source", "bearer.auth.token",
    "http.connect.timeout.ms", "http.read.timeout.ms", "max.retries", "retries.wait.ms", "latest.cache.ttl.sec",
)  # fmt: skip
# Responses after which the same request may succeed.
_TEMPORARY = frozenset({408, 429, 500, 502, 503, 504})


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send the credentials to another server."""

    def redirect_request(self, *args: Any) -> None:
        return None


class _Server(NamedTuple):
    url: str
    """Without credentials and without a final slash."""
    authorization: str | None


class RegistryHttp:
    """Sends requests to the first server that responds. Raises ConfigError."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        values = self.own_settings(settings)
        text = values.get(URL)
        if not text:
            raise ConfigError(URL, "must be set to the URL of a schema registry")
        urls = text if isinstance(text, (list, tuple)) else str(text).split(",")
        self._servers = [_server(str(url).strip(), values) for url in urls]
        self._timeout_s = max(
            number(values, name, DEFAULT_TIMEOUT_MS) for name in ("http.connect.timeout.ms", "http.read.timeout.ms")
        ) / 1000  # fmt: skip
        self._retries = int(number(values, "max.retries", 3))
        self._wait_s = number(values, "retries.wait.ms", 200) / 1000
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if any(server.url.startswith("https:") for server in self._servers):
            handlers.append(urllib.request.HTTPSHandler(context=_context(values)))
        self._opener = urllib.request.build_opener(*handlers)

    @staticmethod
    def own_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a registry among those of a client, by their short names."""
        values = {name: value for name, value in settings.items() if name == URL or name.startswith(SSL_PREFIX)}
        for name in _NAMES:
            value = settings.get(f"{PREFIX}{name}", settings.get(name))
            if value is not None:
                values[name] = value
        return values

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self._servers)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of its response."""
        attempt = 0
        while True:
            error: SchemaRegistryError | None = None
            for server in self._servers:
                try:
                    return self._send(server, method, path, body)
                except SchemaRegistryUnavailable as unavailable:
                    error = unavailable
            assert error is not None
            if attempt >= self._retries:
                raise error
            time.sleep(self._wait_s * 2**attempt)
            attempt += 1

    def _send(self, server: _Server, method: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(server.url + path, data, {"Accept": CONTENT_TYPE}, method=method)
        if data is not None:
            request.add_header("Content-Type", CONTENT_TYPE)
        if server.authorization is not None:
            request.add_unredirected_header("Authorization", server.authorization)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                text = response.read(MAX_RESPONSE_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise _rejection(server, method, path, error) from None
        except (OSError, http.client.HTTPException) as error:
            raise _unavailable(server, error) from None
        if len(text) > MAX_RESPONSE_BYTES:
            raise SchemaRegistryError(
                f"schema registry {server.url}: a response of more than {MAX_RESPONSE_BYTES} bytes"
            )
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise SchemaRegistryError(
                f"schema registry {server.url}: the response to {method} {path} is not JSON; check the path of the URL"
            ) from None


def _server(url: str, values: Mapping[str, Any]) -> _Server:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(URL, f"is not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(URL, "must be a URL of http or https, for example http://localhost:8081")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = host if port is None else f"{host}:{port}"
    plain_url = urlunsplit((parts.scheme, address, parts.path.rstrip("/"), "", ""))
    user_in_url = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    return _Server(plain_url, _authorization(user_in_url, values))


def _authorization(user_in_url: str | None, values: Mapping[str, Any]) -> str | None:
    source = str(values.get("basic.auth.credentials.source", "")).upper()
    if source not in ("", "URL", "USER_INFO"):
        raise ConfigError("basic.auth.credentials.source", f"'{source}' is not supported: URL or USER_INFO")
    bearer_source = str(values.get("bearer.auth.credentials.source", "")).upper()
    if bearer_source not in ("", "STATIC_TOKEN"):
        raise ConfigError("bearer.auth.credentials.source", f"'{bearer_source}' is not supported: STATIC_TOKEN")
    user_info, token = values.get("basic.auth.user.info"), values.get("bearer.auth.token")
    credentials = user_in_url if source == "URL" else user_info or user_in_url
    if credentials and token:
        raise ConfigError("bearer.auth.token", "cannot be set together with basic authentication")
    if token:
        return f"Bearer {token}"
    return f"Basic {b64encode(str(credentials).encode()).decode()}" if credentials else None


def _context(values: Mapping[str, Any]) -> ssl.SSLContext:
    # TLS imports `cryptography`, which takes longer than all other modules of a registry's client.
    from kavka.security.tls import TlsSettings, client_context

    tls = {name.removeprefix(PREFIX): value for name, value in values.items() if name.startswith(SSL_PREFIX)}
    try:
        return client_context(TlsSettings.from_values(tls))
    except ConfigError as error:
        raise ConfigError(f"{PREFIX}{error.name}", error.reason) from None


def number(values: Mapping[str, Any], name: str, default: float) -> float:
    try:
        value = float(values.get(name, default))
    except ValueError:
        raise ConfigError(name, f"'{values[name]}' is not a number") from None
    if value < 0:
        raise ConfigError(name, f"{value:g} is negative")
    return value


def _rejection(server: _Server, method: str, path: str, error: urllib.error.HTTPError) -> SchemaRegistryError:
    with error:
        try:
            body = json.loads(error.read(65536))
            message, code = str(body["message"]), int(body["error_code"])
        except (ValueError, KeyError, TypeError, OSError, RecursionError):
            message, code = str(error.reason), error.code
    prefix = f"schema registry {server.url}"
    message = " ".join(message.split())
    if error.code in _TEMPORARY:
        return SchemaRegistryUnavailable(f"{prefix} is not available: {message} ({code})", error.code, code)
    if error.code in (401, 403):
        setting = "basic.auth.user.info or bearer.auth.token"
        return SchemaRegistryError(f"{prefix} denies access ({error.code}): check {setting}", error.code, code)
    if error.code in range(300, 400):
        return SchemaRegistryError(f"{prefix} redirects to another URL: set {URL} to that URL", error.code, code)
    return SchemaRegistryError(f"{prefix}: {method} {path.partition('?')[0]}: {message} ({code})", error.code, code)


def _unavailable(server: _Server, error: BaseException) -> SchemaRegistryError:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        text = (
            f"schema registry {server.url} is not trusted: {reason.verify_message} (schema.registry.ssl.truststore.*)"
        )
        return SchemaRegistryError(text)
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return SchemaRegistryUnavailable(f"schema registry {server.url} is not available: {' '.join(text.split())}")
