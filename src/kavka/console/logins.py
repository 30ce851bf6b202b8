"""Log in and out: with a password, or with the identity provider."""

from __future__ import annotations

import secrets
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from kavka.console.attempts import TooManyAttempts
from kavka.console.auth import ANONYMOUS, MAX_NAME_LENGTH, PROVIDER, UsersError
from kavka.console.bodies import first_value, local_path, read_form
from kavka.console.context import Context
from kavka.console.errors import Refused
from kavka.console.guard import check_token
from kavka.console.oidc import LOGIN_TIMEOUT_S, IdentityProvider, LoginFailed

if TYPE_CHECKING:
    from kavka.console.app import Handlers

URL_CHARACTERS = "/?&=:#%+,;@!~*'()[]"


class Logins:
    """The request handlers of logins."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self._console = handlers.console
        self._base = handlers.base
        self._cookie = handlers.cookie
        self._login_cookie = self._cookie + "_login"

    async def page(self, request: Request) -> Response:
        if not self._console.auth.is_required:
            return self._handlers.redirect("/", 302)
        return self._form(request, "", 200)

    def _form(self, request: Request, error: str, status: int, name: str = "") -> Response:
        view = self._handlers.view(request, Context(self._console, ANONYMOUS, ""))
        values = {
            "error": error,
            "name": name,
            "next_page": local_path(request.query_params.get("next", self._base + "/")),
            "provider": urlsplit(self._console.provider.settings.issuer).hostname if self._console.provider else "",
            "has_passwords": self._console.auth.users is not None,
        }
        return self._handlers.set_cookie(request, view.render("login.html", status=status, **values))

    async def log_in(self, request: Request) -> Response:
        form = await read_form(request)
        # Truncate a name that is too long for the audit log. One character above the limit keeps
        # it invalid.
        name, password = first_value(form, "name")[: MAX_NAME_LENGTH + 1], first_value(form, "password")
        address = request.client.host if request.client else ""
        try:
            check_token(request, self._console.auth, first_value(form, "csrf"), self._cookie)
            user = await self._console.auth.check(name, password, address)
        except Refused as error:
            return self._form(request, str(error), error.status, name)
        except TooManyAttempts as error:
            return self._form(request, str(error), 429, name)
        except UsersError as error:
            return self._form(request, str(error), 503, name)
        self._count("done" if user else "failed")
        await self._handlers.audit(name, address, "", "log_in", {}, "done" if user else "wrong name or password")
        if user is None:
            return self._form(request, "wrong name or password", 401, name)
        response = RedirectResponse(local_path(first_value(form, "next") or self._base + "/", self._base + "/"), 303)
        return self._handlers.set_cookie(request, response, self._console.auth.begin_session(user))

    async def log_out(self, request: Request) -> Response:
        form = await read_form(request)
        check_token(request, self._console.auth, first_value(form, "csrf"), self._cookie)
        self._console.auth.end_session(request.cookies.get(self._cookie, ""))
        response = self._handlers.redirect("/login")
        response.delete_cookie(self._cookie, path=self._base + "/")
        return response

    async def begin_with_provider(self, request: Request) -> Response:
        provider = self._provider()
        try:
            next_page = local_path(request.query_params.get("next", ""), self._base + "/")
            url, login = await provider.begin(self._callback_url(request), next_page)
        except LoginFailed as error:
            return self._form(request, str(error), error.status)
        response = RedirectResponse(url, 302, {"Cache-Control": "no-store"})
        # Lax: the provider's redirect is a request of another site.
        response.set_cookie(
            self._login_cookie, login, int(LOGIN_TIMEOUT_S), path=f"{self._base}/login", httponly=True, samesite="lax",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return response

    async def finish_with_provider(self, request: Request) -> Response:
        provider, address = self._provider(), request.client.host if request.client else ""
        # Every login has its own account, because the name is not known yet.
        name, account = "", f"{PROVIDER}{secrets.token_hex(8)}"
        try:
            self._console.auth.attempts.begin(account, address)
        except TooManyAttempts as error:
            return self._form(request, str(error), 429)
        try:
            login = request.cookies.get(self._login_cookie, "")
            user, next_page = await provider.finish(request.query_params, login, self._callback_url(request))
            name = user.name
            if self._console.auth.users is not None and name in self._console.auth.users.users():
                raise LoginFailed(f"{name} is a user with a password", 403)
        except (LoginFailed, UsersError) as error:
            self._count("failed")
            await self._handlers.audit(name, address, "", "log_in", {"provider": provider.settings.issuer}, str(error))
            return self._form(request, str(error), getattr(error, "status", 503))
        await self._handlers.audit(name, address, "", "log_in", {"provider": provider.settings.issuer}, "done")
        self._count("done")
        self._console.auth.attempts.record_success(account, address)
        # Browsers send the new cookie, which is SameSite=strict, only with requests of a page of
        # the console, not with the redirects of the provider's page.
        response = HTMLResponse(
            f'<!doctype html><title>Kavka</title><a href="{escape(next_page)}">Continue</a>',
            headers={"Refresh": f"0; url={quote(next_page, safe=URL_CHARACTERS)}", "Cache-Control": "no-store"},
        )
        response.delete_cookie(self._login_cookie, path=f"{self._base}/login")
        return self._handlers.set_cookie(request, response, self._console.auth.begin_session(user))

    def _count(self, outcome: str) -> None:
        self._console.metrics.logins.labels(outcome).value += 1

    def _provider(self) -> IdentityProvider:
        if self._console.provider is None:
            raise Refused("there is no identity provider", 404)
        return self._console.provider

    def _callback_url(self, request: Request) -> str:
        return f"{request.url.scheme}://{request.headers.get('host', '')}{self._base}/login/callback"
