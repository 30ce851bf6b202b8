"""Gets tokens for OAUTHBEARER from an identity provider: the flow of client credentials (RFC 6749,
4.4), or a file with a token.

A token is used until `sasl.login.refresh.window.factor` of its lifetime has passed. If no new token
is available then, the token is used until it expires.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from kavka.common.config import ConfigError
from kavka.security.sasl import SaslError
from kavka.security.tls import TlsSettings, client_context

URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "sasl.oauthbearer.scope"
MAX_RESPONSE_BYTES = 1024 * 1024
DEFAULT_TIMEOUT_MS = 10_000
_SCHEMES = ("http", "https", "file")
# Responses that a retry does not change: the credentials or the request are wrong.
_FINAL_STATUSES = frozenset(range(400, 500)) - {408, 429}


class _Token(NamedTuple):
    text: str
    refresh_at_s: float
    expires_at_s: float


class _FinalError(SaslError):
    """A retry does not help."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send the client's secret to another server."""

    def redirect_request(self, *args: Any) -> None:
        return None


class TokenEndpoint:
    """The tokens of one client. `values` are the client's settings, `options` of its JAAS entry.
    Only the loop thread uses it; requests block a worker thread. Raises ConfigError."""

    def __init__(
        self, values: Mapping[str, Any], options: Mapping[str, str], now_s: Callable[[], float] = time.time
    ) -> None:
        self._url: str = values[URL]
        self._now_s = now_s
        parts = urlsplit(self._url)
        if parts.scheme not in _SCHEMES:
            raise ConfigError(URL, f"'{self._url}' is not allowed; it must be a URL of {', '.join(_SCHEMES)}")
        self._is_file = parts.scheme == "file"
        self._request = self._url if self._is_file else _request(self._url, values, options)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirects()]
        if parts.scheme == "https":
            context = client_context(TlsSettings.from_values(options))
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)
        connect_ms = values.get("sasl.login.connect.timeout.ms") or DEFAULT_TIMEOUT_MS
        self._timeout_s = max(connect_ms, values.get("sasl.login.read.timeout.ms") or 0) / 1000
        self._backoff_s = (values.get("sasl.login.retry.backoff.ms") or 100) / 1000
        self._max_backoff_s = (values.get("sasl.login.retry.backoff.max.ms") or 10_000) / 1000
        self._refresh_factor: float = values.get("sasl.login.refresh.window.factor") or 0.8
        self._token: _Token | None = None
        self._refreshing: asyncio.Task[_Token] | None = None

    async def token(self) -> str:
        """Return a token that has not expired. Raises SaslError."""
        token = self._token
        if token is not None and self._now_s() < token.refresh_at_s:
            return token.text
        # One request serves all connections that wait for a token.
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="kavka-token")
            self._refreshing.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            self._token = await asyncio.shield(self._refreshing)
        except SaslError:
            if token is None or self._now_s() >= token.expires_at_s:
                raise
        assert self._token is not None
        return self._token.text

    async def _refresh(self) -> _Token:
        delay_s, ends_at = self._backoff_s, time.monotonic() + self._max_backoff_s
        while True:
            try:
                return self._parsed(await asyncio.to_thread(self._fetch))
            except _FinalError:
                raise
            except SaslError:
                if time.monotonic() + delay_s >= ends_at:
                    raise
            await asyncio.sleep(delay_s)
            delay_s *= 2

    def _fetch(self) -> bytes:
        try:
            with self._opener.open(self._request, timeout=self._timeout_s) as response:
                raw: bytes = response.read(MAX_RESPONSE_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                detail = _error_of(error.read(MAX_RESPONSE_BYTES))
            kind = _FinalError if error.code in _FINAL_STATUSES else SaslError
            raise kind(f"the token endpoint {self._url} responded {error.code}{detail}") from None
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise SaslError(f"no token from {self._url}: {reason}") from None
        if len(raw) > MAX_RESPONSE_BYTES:
            raise _FinalError(f"the response of the token endpoint {self._url} is too large")
        return raw

    def _parsed(self, raw: bytes) -> _Token:
        lifetime_s: Any = None
        if self._is_file:
            text: Any = raw.decode(errors="replace").strip()
        else:
            try:
                response = json.loads(raw)
                text, lifetime_s = response.get("access_token"), response.get("expires_in")
            except (ValueError, AttributeError, RecursionError):
                text = None
        if not isinstance(text, str) or not text:
            raise _FinalError(f"the response of the token endpoint {self._url} has no access_token")
        now_s = self._now_s()
        expires_at_s = _expiry_of(text)
        if expires_at_s is None:
            expires_at_s = now_s + (float(lifetime_s) if isinstance(lifetime_s, (int, float)) else 0.0)
        return _Token(text, now_s + self._refresh_factor * max(0.0, expires_at_s - now_s), expires_at_s)


def _request(url: str, values: Mapping[str, Any], options: Mapping[str, str]) -> urllib.request.Request:
    client_id = options.get("clientId") or values.get(CLIENT_ID)
    secret = options.get("clientSecret") or values.get(CLIENT_SECRET)
    scope = options.get("scope") or values.get(SCOPE)
    if not client_id or not secret:
        raise ConfigError(
            CLIENT_ID if not client_id else CLIENT_SECRET,
            f"must be set for {URL} (in JAAS: clientId and clientSecret)",
        )
    if values.get("sasl.oauthbearer.header.urlencode"):
        client_id, secret = quote_plus(client_id), quote_plus(secret)
    form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
    headers = {
        "Authorization": "Basic " + b64encode(f"{client_id}:{secret}".encode()).decode(),
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    return urllib.request.Request(url, urlencode(form).encode(), headers)


def _error_of(raw: bytes) -> str:
    """Return the error of a response (RFC 6749, 5.2), to append to a message."""
    try:
        response = json.loads(raw)
        words = [response[name] for name in ("error", "error_description") if isinstance(response.get(name), str)]
    except (ValueError, AttributeError, RecursionError):
        return ""
    text = ": ".join(words)[:200]
    return f": {text}" if text.isprintable() and text else ""


def _expiry_of(token: str) -> float | None:
    """Return the claim `exp` of a JSON Web Token, which the broker verifies, not the client."""
    try:
        payload = token.split(".")[1]
        expiry = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4))).get("exp")
    except (IndexError, ValueError, AttributeError, RecursionError):
        return None
    return float(expiry) if isinstance(expiry, (int, float)) else None
