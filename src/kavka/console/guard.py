"""The checks of every request (Host, Origin, session, CSRF token) and the security headers.

- Host must be an IP address, localhost, the name of the listener, or a name of `--allowed-host`.
  This prevents DNS rebinding.
- A request must come from the console's pages: Origin and Sec-Fetch-Site, if present, must match.
  Otherwise a page of another site could make the browser start searches and open event streams. The
  only exception is navigation by a link to a page.
- A request other than GET or HEAD with a session cookie must have a CSRF token. A program without
  a cookie must send JSON, which a foreign page cannot send without a CORS preflight; the console
  never approves a preflight.
- The response headers forbid content of other origins, inline scripts and styles, and frames.
"""

from __future__ import annotations

import base64
import binascii

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kavka.common.web import host_name, is_address, is_foreign
from kavka.console.attempts import TooManyAttempts
from kavka.console.auth import Auth, User, UsersError
from kavka.console.errors import Refused
from kavka.console.settings import ConsoleSettings

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
CSRF_HEADER = "x-csrf-token"


class Guard:
    """ASGI middleware that checks the Host and adds the headers. Request handlers call
    `authenticate` and `check_token` for the other checks."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings) -> None:
        self.app = app
        self.names = {"localhost", settings.host.lower(), *(name.lower() for name in settings.allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if not self.is_allowed_host(Headers(scope=scope).get("host", "")):
            await with_headers(
                {"type": "http.response.start", "status": 421, "headers": [(b"content-type", b"text/plain")]}
            )
            await send({"type": "http.response.body", "body": b"this host name is not allowed (--allowed-host)\n"})
            return
        await self.app(scope, receive, with_headers)

    def is_allowed_host(self, host: str) -> bool:
        name = host_name(host)
        return name in self.names or is_address(name)


def cookie_name(settings: ConsoleSettings) -> str:
    # Cookies are not separated by port: two consoles on a machine must not share a session.
    return f"kavka_console_{settings.port}"


def check_origin(request: Request, may_navigate: bool = False) -> None:
    """Raise Refused (403) if a page of another origin sent the request. `may_navigate` accepts a
    user who follows a link."""
    headers = request.headers
    origin = headers.get("origin")
    is_downgrade = request.url.scheme == "https" and (origin or "").lower().startswith("http://")
    if is_downgrade or is_foreign(origin, headers.get("sec-fetch-site"), headers.get("host", "")):
        is_navigation = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        if not (may_navigate and is_navigation and request.method == "GET" and origin is None):
            raise Refused("the request came from another site: nothing was done", 403)


def check_token(request: Request, auth: Auth, received: str, cookie: str) -> None:
    """Raise Refused (403) if a request that changes something comes from another origin or has no
    valid CSRF token. A request without a session cookie needs no token, but must be JSON."""
    check_origin(request)
    token = request.cookies.get(cookie, "")
    if token:
        if not auth.csrf_matches(token, request.headers.get(CSRF_HEADER) or received):
            raise Refused("the console was restarted since this page was loaded: reload it; nothing was done", 403)
        return
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused("without a session, send JSON (Content-Type: application/json)", 403)


async def authenticate(request: Request, auth: Auth, cookie: str) -> User | None:
    """Return the user of the session cookie, or of HTTP Basic authentication for programs, or None.
    Raises Refused: 429 after too many attempts, 503 if the users file is invalid."""
    user = auth.session_user(request.cookies.get(cookie, ""))
    if user is not None:
        return user
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    if not colon:
        return None
    try:
        return await auth.check_basic(name, password, request.client.host if request.client else "")
    except TooManyAttempts as error:
        raise Refused(str(error), 429) from None
    except UsersError as error:
        raise Refused(str(error), 503) from None
