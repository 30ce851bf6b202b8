"""The Starlette application: its routes, startup and shutdown."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from kavka.common.metrics import CONTENT_TYPE
from kavka.console import pages as _pages  # noqa: F401  (the import registers the pages)
from kavka.console.alerts import Alerts
from kavka.console.auth import ANONYMOUS, Auth, Role, User, UsersError, UsersFile
from kavka.console.bodies import first_value, group_values, local_path, read_body
from kavka.console.cluster import ClusterHandle
from kavka.console.context import Console, Context
from kavka.console.errors import Refused, explain
from kavka.console.guard import Guard, authenticate, check_origin, check_token, cookie_name
from kavka.console.jsons import JsonResponse
from kavka.console.live import EventStream, samples
from kavka.console.logins import Logins
from kavka.console.masks import MaskTable
from kavka.console.oidc import IdentityProvider, read_oidc_settings
from kavka.console.openapi import description
from kavka.console.pages.topic_moves import load_throttled_topics, remove_ended_throttles
from kavka.console.registry import OPERATIONS, Done, Operation, audited_arguments
from kavka.console.rights import Rights, RightsTable, limited
from kavka.console.sampler import Sampler
from kavka.console.settings import ConsoleSettings
from kavka.console.store import AuditLine, Store
from kavka.console.views import HERE, PAGES, Page, View, topic_names

logger = logging.getLogger(__name__)
audit_log = logging.getLogger("kavka.console.audit")

MAX_BODY_BYTES = 8 * 1024 * 1024
MAX_LOGIN_BODY_BYTES = 64 * 1024
"""The limit for unauthenticated requests; other bodies are read after authentication."""
MONITORING = ("/health", "/healthz", "/metrics")
HOME = Page("/", "Home", lambda view: view, "", Role.NONE, "", "", "", False, ())  # type: ignore[arg-type, return-value]
"""A page that every link may open."""
CACHED_FOR_A_YEAR = "public, max-age=31536000, immutable"


def create_app(settings: ConsoleSettings) -> Starlette:
    """Create the application. Raises SettingsError, UsersError or OSError."""
    settings.check()
    for cluster in settings.clusters:
        # Report invalid settings before the start.
        RightsTable(cluster.own)
        MaskTable(cluster.own)
    users = UsersFile(settings.users) if settings.users is not None else None
    if users is not None and not users.users():
        raise UsersError(f"{settings.users} has no users (kavka console-user --add adds one)")
    store = Store(settings.data)
    store.open()
    provider = IdentityProvider(read_oidc_settings(settings.oidc)) if settings.oidc is not None else None
    console = Console(settings, store, Auth(users, provider is not None), provider)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        for cluster in settings.clusters:
            handle = console.clusters[cluster.name] = ClusterHandle(cluster, store)
            console.alerts[cluster.name] = Alerts(handle, console.metrics.webhooks)

        async def evaluate(handle: ClusterHandle) -> None:
            await console.alerts[handle.name].evaluate()

        sampler = Sampler(list(console.clusters.values()), [evaluate, remove_ended_throttles])
        try:
            for handle in console.clusters.values():
                await handle.start()
                await console.alerts[handle.name].load()
                await load_throttled_topics(handle)
            sampler.start()
            yield
        finally:
            await sampler.close()
            for alerts in console.alerts.values():
                await alerts.close()
            for handle in console.clusters.values():
                await handle.close()
            console.auth.close()
            store.close()

    handlers = Handlers(console)
    return Starlette(
        routes=handlers.routes(),
        middleware=[
            Middleware(Guard, settings=settings),
            Middleware(BasePath, base_path=settings.base_path),
            Middleware(BodyLimit),
            Middleware(GZipMiddleware, minimum_size=2000, compresslevel=3),
        ],
        exception_handlers={HTTPException: handlers.error_response},
        lifespan=lifespan,
    )


class BasePath:
    """Middleware for a console below a path, which proxies do not remove. Monitoring requests may
    omit the path."""

    def __init__(self, app: ASGIApp, base_path: str) -> None:
        self.app = app
        self.base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if self.base_path and scope["type"] == "http" and path not in MONITORING:
            if path in ("", "/", self.base_path):
                await RedirectResponse(self.base_path + "/", 307)(scope, receive, send)
                return
            if not path.startswith(self.base_path + "/"):
                await PlainTextResponse(f"the console is at {self.base_path}/\n", 404)(scope, receive, send)
                return
            scope = {**scope, "root_path": self.base_path}
        await self.app(scope, receive, send)


class BodyLimit:
    """Middleware that rejects bodies larger than any form of the console."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        limit = MAX_LOGIN_BODY_BYTES if path in ("/login", "/logout") else MAX_BODY_BYTES

        async def receive_limited() -> Any:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise Refused("the request body is too large", 413)
            return message

        await self.app(scope, receive_limited, send)


class Handlers:
    """The request handlers of one console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.base = console.settings.base_path
        self.cookie = cookie_name(console.settings)
        self.logins = Logins(self)
        self.rights = {cluster.name: RightsTable(cluster.own) for cluster in console.settings.clusters}

    def routes(self) -> list[Any]:
        return [
            self._route("/", self.home),
            self._route("/health", self.health),
            self._route("/healthz", self.health),
            self._route("/metrics", self.metrics),
            self._route("/login", self.logins.page),
            self._route("/login", self.logins.log_in, "POST"),
            self._route("/login/provider", self.logins.begin_with_provider),
            self._route("/login/callback", self.logins.finish_with_provider),
            self._route("/logout", self.logins.log_out, "POST"),
            self._route("/api/openapi.json", self.openapi),
            *(self._route("/api" + o.path, self._operation_handler(o), o.method) for o in OPERATIONS.values()),
            self._route("/c/{cluster}", self.cluster_home),
            self._route("/c/{cluster}/events", self.events),
            *(self._route("/c/{cluster}" + p.path, self._page_handler(p)) for p in PAGES),
            Mount("/static", Static(directory=HERE / "static")),
        ]

    def _route(self, path: str, handler: Callable[[Request], Awaitable[Response]], method: str = "GET") -> Route:
        duration = self.console.metrics.requests.labels(method, path)

        async def handle(request: Request) -> Response:
            began = time.monotonic()
            try:
                return await handler(request)
            except Exception as error:
                return await self.error_response(request, error)
            finally:
                duration.observe(time.monotonic() - began)

        return Route(path, handle, methods=[method])

    # --- authentication

    async def context(self, request: Request, page: Page | None = None) -> Context:
        """Authenticate a request and return its context. Raises Refused: 401 without a user, 403
        for a request of another origin, 404 for an unknown cluster, 429 after too many attempts,
        503 if the users file is invalid."""
        check_origin(request, may_navigate=page is not None and not page.is_data)
        user = await authenticate(request, self.console.auth, self.cookie)
        if user is None:
            raise Refused("log in first", 401)
        return self._context_of(request, user, page)

    def _context_of(self, request: Request, user: User, page: Page | None = None) -> Context:
        """Return the context of an authenticated user. Raises Refused (404) for an unknown cluster.
        A cluster without any right of the user is unknown to the user."""
        address = request.client.host if request.client else ""
        rights_by_cluster = {name: table.of(user) for name, table in self.rights.items()}
        visible = {name: rights for name, rights in rights_by_cluster.items() if rights.highest >= Role.VIEW}
        clusters = tuple(limited(self.console.clusters[name], rights) for name, rights in visible.items())
        cluster_name = request.path_params.get("cluster")
        if cluster_name is None:
            rights = Rights(max((r.highest for r in visible.values()), default=Role.NONE))
            return Context(self.console, user, address, None, rights, clusters)
        if cluster_name not in visible:
            raise Refused(f"there is no cluster '{cluster_name}' here", 404)
        rights = visible[cluster_name]
        role = rights.on_topics(topic_names(page, request) if page is not None else None)
        cluster = limited(self.console.clusters[cluster_name], rights)
        return Context(self.console, replace(user, role=role), address, cluster, rights, clusters)

    def view(self, request: Request, context: Context, page: Page | None = None) -> View:
        token = request.cookies.get(self.cookie, "")
        if not token:
            token = request.scope["new_token"] = self.console.auth.new_token()
        return View(request, context, page, self.console.auth.new_csrf_token(token))

    def set_cookie(self, request: Request, response: Response, token: str = "") -> Response:
        token = token or request.scope.get("new_token", "")
        if token:
            secure = request.url.scheme == "https"
            path = self.base + "/"
            response.set_cookie(self.cookie, token, httponly=True, samesite="strict", secure=secure, path=path)
        return response

    # --- pages

    async def home(self, request: Request) -> Response:
        context = await self.context(request, HOME)
        if not context.clusters:
            raise Refused(f"{context.user.name} has no rights in any cluster", 403)
        return self.redirect(f"/c/{context.clusters[0].name}", 302)

    async def cluster_home(self, request: Request) -> Response:
        context = await self.context(request, HOME)
        page = "overview" if context.rights.role >= Role.VIEW else "topics"
        return self.redirect(f"/c/{context.cluster.name}/{page}", 302)

    def redirect(self, path: str, status: int = 303) -> RedirectResponse:
        return RedirectResponse(self.base + path, status)

    async def health(self, request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def metrics(self, request: Request) -> Response:
        context = await self.context(request)
        if self.console.auth.is_required:
            context.require(Role.VIEW)
        return Response(self.console.metrics.registry.render(), media_type=CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        await self.context(request)
        return JsonResponse(description())

    def _page_handler(self, page: Page) -> Any:
        async def render(request: Request) -> Response:
            context = await self.context(request, page)
            context.require(page.role, topic_names(page, request))
            context.cluster.mark_viewed()
            return self.set_cookie(request, await page.function(self.view(request, context, page)))

        return render

    async def events(self, request: Request) -> Response:
        context = await self.context(request)
        context.require(Role.VIEW, ())
        return EventStream(samples(context.cluster), context.is_current)

    # --- operations

    def _operation_handler(self, operation: Operation) -> Any:
        async def serve(request: Request) -> Response:
            context = await self.context(request)
            if operation.method == "GET":
                inputs: Mapping[str, Any] = group_values(request.query_params.multi_items())
            else:
                inputs = await read_body(request)
                check_token(request, self.console.auth, first_value(inputs, "csrf"), self.cookie)
            if context.selected_cluster is not None:
                context.selected_cluster.mark_viewed()
            result = await self.perform(operation, context, request.path_params, inputs)
            if isinstance(result, Done) and result.location:
                result = replace(result, location=self.base + result.location)
            if isinstance(result, Response):
                return result
            if isinstance(result, Done) and _wants_page(request):
                return self._redirect_after(request, result)
            return JsonResponse(result)

        return serve

    async def perform(
        self, operation: Operation, context: Context, path: Mapping[str, str], inputs: Mapping[str, Any]
    ) -> Any:
        """Check the role and the inputs, call the operation, and return its result. A POST request
        is written to the audit log with its outcome. `error_response` handles the errors."""
        # The operation itself checks the role on its topics.
        topics = None if operation.topics is None else ()
        if operation.method == "GET":
            context.require(operation.role, topics)
            return await operation.function(context, **operation.arguments(path, inputs))
        outcome, audited = "failed", {name: value for name, value in path.items() if name != "cluster"}
        try:
            context.require(operation.role, topics)
            arguments = operation.arguments(path, inputs)
            audited = audited_arguments(operation, arguments)
            result = await operation.function(context, **arguments)
            outcome = "done"
            return result
        except Exception as error:
            explanation = explain(error)
            outcome = explanation[1] if explanation else f"failed: {type(error).__name__}"
            raise
        finally:
            cluster = context.selected_cluster.name if context.selected_cluster else ""
            await self.audit(context.user.name, context.address, cluster, operation.name, audited, outcome)

    async def audit(
        self, user: str, address: str, cluster: str, action: str, arguments: dict[str, Any], outcome: str
    ) -> None:
        # At a login the name is arbitrary input: a line break could forge another entry.
        name = user if user.isprintable() else repr(user)
        audit_log.info("%s at %s, cluster %s: %s %s: %s", name, address, cluster, action, arguments, outcome)
        line = AuditLine(time.time(), user[:64], address, cluster, action, arguments, outcome)
        try:
            await self.console.store.audit(line)
        except sqlite3.Error as error:
            # The operation has ended: write the entry to the log, and send the response.
            logger.error("Cannot write the audit log (%s): %s", error, line)

    def _redirect_after(self, request: Request, result: Done) -> Response:
        """Redirect to the next page after a form that the browser sent without the script."""
        location = local_path(result.location or _referring_page(request), self.base + "/")
        separator = "&" if "?" in location else "?"
        return RedirectResponse(f"{location}{separator}confirmation={self.console.store_message(result.message)}", 303)

    # --- errors

    async def error_response(self, request: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=400)
        if isinstance(error, HTTPException):
            status, line = error.status_code, _http_message(error)
        else:
            explanation = explain(error)
            if explanation is None:
                logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
                explanation = 500, "internal error of the console; its log has the details"
            status, line = explanation
        if not _wants_page(request):
            field, fields = (error.field, error.fields) if isinstance(error, Refused) else ("", {})
            return JsonResponse({"error": line, "field": field, **({"fields": fields} if fields else {})}, status)
        if status == 401:
            return self.redirect(f"/login?next={quote(request.url.path, safe='/')}")
        user = self.console.auth.session_user(request.cookies.get(self.cookie, ""))
        context = Context(self.console, ANONYMOUS, "")
        if user is not None:
            with contextlib.suppress(Refused):
                context = self._context_of(request, user)
        view = self.view(request, context)
        back = (
            local_path(urlsplit(request.headers.get("referer", "")).path, self.base + "/")
            if request.method == "POST"
            else ""
        )
        return self.set_cookie(request, view.render("error.html", status=status, code=status, line=line, back=back))


class Static(StaticFiles):
    """Static files. Browsers cache a file for a year if its URL contains a hash."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if response.status_code == 200:
            is_versioned = b"v=" in scope["query_string"]
            response.headers["Cache-Control"] = CACHED_FOR_A_YEAR if is_versioned else "no-cache"
        return response


def _referring_page(request: Request) -> str:
    """Return the path and query of the page with the form."""
    page = urlsplit(request.headers.get("referer", ""))
    query = urlencode([(name, value) for name, value in parse_qsl(page.query) if name != "confirmation"])
    return f"{page.path}?{query}" if query else page.path


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _http_message(error: HTTPException) -> str:
    return {404: "there is no such page", 405: "method not allowed"}.get(error.status_code, str(error.detail))
