"""Requests of a worker to other workers of its group, over HTTP and HTTPS.

The connections use no proxies, follow no redirects, and have the TLS settings of the worker: its
trust store, its certificate, and the check of host names.
"""

from __future__ import annotations

import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any, NamedTuple

from kavka.pipeline.connect.errors import ConnectError

_TIMEOUT_S = 90.0


class PeerResponse(NamedTuple):
    """The response of another worker. The names of `headers` are case insensitive."""

    code: int
    body: bytes
    headers: Any


class PeerError(Exception):
    """No response of the other worker."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any) -> None:
        return None


class Peers:
    """Sends requests to other workers. `new_context` creates the TLS context at the first HTTPS
    request. Any thread may call it."""

    def __init__(self, new_context: Callable[[], ssl.SSLContext] = ssl.create_default_context) -> None:
        self._new_context = new_context
        self._openers: dict[bool, urllib.request.OpenerDirector] = {}
        self._lock = threading.Lock()

    def load_tls(self) -> None:
        """Creates the TLS context now, so that a bad setting is noticed."""
        self._opener(True)

    def send(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout_s: float = _TIMEOUT_S
    ) -> PeerResponse:
        """Returns the response, also if its status is an error. Raises PeerError."""
        if not url.lower().startswith(("http://", "https://")):
            raise PeerError(f"the URL of a worker is not http or https: {url}")
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers}, method=method)
            with self._opener(request.type == "https").open(request, timeout=timeout_s) as response:
                return PeerResponse(response.status, response.read(), response.headers)
        except urllib.error.HTTPError as error:
            try:
                with error:
                    return PeerResponse(error.code, error.read(), error.headers)
            except (OSError, HTTPException) as failure:
                raise PeerError(str(failure) or type(failure).__name__) from failure
        except (OSError, HTTPException, ConnectError, ValueError) as error:
            raise PeerError(str(getattr(error, "reason", None) or error)) from error

    def _opener(self, has_tls: bool) -> urllib.request.OpenerDirector:
        with self._lock:
            if has_tls not in self._openers:
                handlers: list[Any] = [urllib.request.ProxyHandler({}), _NoRedirect()]
                if has_tls:
                    handlers.append(urllib.request.HTTPSHandler(context=self._new_context()))
                self._openers[has_tls] = urllib.request.build_opener(*handlers)
            return self._openers[has_tls]
