"""What stands before every request: the Host, the Origin, the session, the token against forged forms, the headers.

- Host: an IP address, localhost, the name it listens at, or one that `--allowed-host` names. A page on the internet
  that makes its own name point here (DNS rebinding) has another.
- Whatever is not GET or HEAD must come from our own pages: Origin and Sec-Fetch-Site say so where a browser sends them,
  and with a session's cookie the token that our forms carry must be there. A program without a cookie sends JSON
  instead, which a foreign page cannot without asking first, and nobody answers that question.
- Headers: nothing is loaded from elsewhere, no inline script or style, no frames.
"""

from __future__ import annotations

import base64
import binascii

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kavka.common.web import host_name, is_address, is_foreign
from kavka.console.attempts import TooSoon
from kavka.console.auth import Auth, User, UsersError
from kavka.console.errors import Refused
from kavka.console.settings import ConsoleSettings

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
SAFE = frozenset({"GET", "HEAD"})
CSRF_HEADER = "x-csrf-token"


class Guard:
    """ASGI middleware. Answers itself only where the Host is wrong; the rest is decided by `check_origin` and
    `authenticate`, which pages and operations call."""

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

        if not self.host_allowed(Headers(scope=scope).get("host", "")):
            await with_headers(
                {"type": "http.response.start", "status": 421, "headers": [(b"content-type", b"text/plain")]}
            )
            await send(
                {"type": "http.response.body", "body": b"the console is not known by this name (--allowed-host)\n"}
            )
            return
        await self.app(scope, receive, with_headers)

    def host_allowed(self, host: str) -> bool:
        name = host_name(host)
        return name in self.names or is_address(name)


def cookie_name(settings: ConsoleSettings) -> str:
    # Cookies know no ports: two consoles on one machine must not throw each other out.
    return f"kavka_console_{settings.port}"


def check_origin(request: Request) -> None:
    """Refuse what a browser says comes from another site."""
    headers = request.headers
    if is_foreign(headers.get("origin"), headers.get("sec-fetch-site"), headers.get("host", "")):
        raise Refused("this came from another site: nothing was done", 403)


def check_token(request: Request, auth: Auth, given: str, cookie: str) -> None:
    """Against forged forms, for whatever changes something."""
    check_origin(request)
    token = request.cookies.get(cookie, "")
    if token:
        if not auth.csrf_fits(token, request.headers.get(CSRF_HEADER) or given):
            raise Refused("this page is from before the console was restarted: load it again; nothing was done", 403)
        return
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused("without a session, send JSON (Content-Type: application/json)", 403)


async def authenticate(request: Request, auth: Auth, cookie: str) -> User | None:
    """By the session's cookie, or by name and password (HTTP Basic) for programs; None for nobody."""
    user = auth.session_user(request.cookies.get(cookie, ""))
    if user is not None:
        return user
    kind, _, encoded = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return None
    if not colon:
        return None
    try:
        return await auth.check_basic(name, password, request.client.host if request.client else "")
    except TooSoon as error:
        raise Refused(str(error), 429) from None
    except UsersError as error:
        raise Refused(str(error), 503) from None
