"""Kafka Connect's REST interface, on Starlette.

Every handler calls a method of the herder in a worker thread, since these methods wait for brokers.
A request that only the leader or the owner of the connector may handle is forwarded to that worker.
"""

from __future__ import annotations

import json
import logging
import math
import traceback
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kavka.client.admin import Admin
from kavka.common.errors import KafkaError
from kavka.common.metrics import CONTENT_TYPE
from kavka.pipeline.connect import loggers
from kavka.pipeline.connect.access import Access, Guard
from kavka.pipeline.connect.basic_auth import BasicAuth, Users
from kavka.pipeline.connect.errors import ConnectError
from kavka.pipeline.connect.herder import Herder, RestError, WrongWorker
from kavka.pipeline.connect.metrics import registry_of
from kavka.pipeline.connect.peers import PeerError, PeerResponse, Peers
from kavka.pipeline.connect.providers import Secrets
from kavka.pipeline.connect.settings import client_settings
from kavka.pipeline.connect.stores import PAUSED, STARTED, STOPPED
from kavka.pipeline.spark.cluster import admin_settings

logger = logging.getLogger(__name__)

# The version of Kafka Connect whose REST interface this implements.
VERSION, COMMIT = "3.9.1", "kavka"
_PHRASES = {404: "Not Found", 405: "Method Not Allowed", 415: "Unsupported Media Type"}
_CONFLICT = "Cannot complete request because of a conflicting operation (e.g. worker rebalance)"
_JSON = "application/json"
_MAX_BODY_BYTES = 4 << 20
_MAX_DEPTH = 64
_MAX_SETTINGS = 2000
"""The limit on the settings of a configuration: every transformation searches all of them."""
_MAX_VALUES = 100_000
"""The limit on JSON values in a body: 4 MiB of empty lists take 300 MiB, and 40 requests run
concurrently."""
_HEALTH_TIMEOUT_S = 10.0


def error(code: int, message: str) -> JSONResponse:
    return JSONResponse({"error_code": code, "message": message}, status_code=code)


class Api:
    """The routes and handlers of the REST interface of one herder. `users` is None without
    authentication. `peers` forwards requests."""

    def __init__(
        self, herder: Herder, access: Access | None = None, users: Users | None = None, peers: Peers | None = None
    ) -> None:
        self.herder = herder
        self._access = access or Access()
        self._users = users
        self._peers = peers or Peers()
        self._cluster_id: str | None = None
        self._metrics = registry_of(herder)

    def app(self) -> Starlette:
        connector = "/connectors/{name:path}"
        plugin = "/connector-plugins/{plugin}"
        routes = [
            self._route("/", "GET", self._root),
            self._route("/connectors", "GET", self._list),
            self._route("/connectors", "POST", self._create),
            self._route(f"{connector}/config", "GET", lambda call, name: self.herder.config(name)),
            self._route(f"{connector}/config", "PUT", self._put_config),
            self._route(f"{connector}/config", "PATCH", self._patch_config),
            self._route(f"{connector}/status", "GET", lambda call, name: self.herder.status(name)),
            self._route(f"{connector}/tasks/{{task:int}}/status", "GET", self._task_status),
            self._route(f"{connector}/tasks/{{task:int}}/restart", "POST", self._restart_task),
            self._route(f"{connector}/restart", "POST", self._restart),
            self._route(f"{connector}/pause", "PUT", lambda call, name: self._target(name, PAUSED)),
            self._route(f"{connector}/resume", "PUT", lambda call, name: self._target(name, STARTED)),
            self._route(f"{connector}/stop", "PUT", lambda call, name: self._target(name, STOPPED)),
            self._route(f"{connector}/tasks", "GET", lambda call, name: self.herder.tasks(name)),
            self._route(f"{connector}/tasks", "POST", self._put_task_configs, is_internal=True),
            self._route(f"{connector}/topics", "GET", lambda call, name: {name: {"topics": self.herder.topics(name)}}),
            self._route(f"{connector}/topics/reset", "PUT", self._reset_topics),
            self._route(f"{connector}/offsets", "GET", lambda call, name: self.herder.offsets(name)),
            self._route(
                f"{connector}/offsets", "PATCH", lambda call, name: {"message": self.herder.alter(name, call.body)}
            ),
            self._route(f"{connector}/offsets", "DELETE", lambda call, name: {"message": self.herder.reset(name)}),
            self._route(connector, "GET", lambda call, name: self.herder.info(name)),
            self._route(connector, "DELETE", self._delete),
            self._route("/connector-plugins", "GET", self._plugins),
            self._route(f"{plugin}/config", "GET", self._plugin_config),
            self._route(f"{plugin}/config/validate", "PUT", self._validate),
            self._route("/health", "GET", self._health),
            self._route("/metrics", "GET", self._render_metrics),
            self._route("/admin/loggers", "GET", self._loggers),
            self._route("/admin/loggers/{logger}", "GET", self._logger),
            self._route("/admin/loggers/{logger}", "PUT", self._set_logger),
        ]
        handlers = {HTTPException: _http_error, Exception: _unexpected}
        middleware = [Middleware(Guard, access=self._access)]
        if self._users is not None:
            middleware.append(Middleware(BasicAuth, users=self._users))
        return Starlette(routes=_by_path(routes), exception_handlers=handlers, middleware=middleware)

    def _route(
        self, path: str, method: str, work: Callable[..., Any], is_internal: bool = False
    ) -> tuple[str, str, Callable[..., Any]]:
        return path, method, self._handler(work, is_internal)

    def _handler(self, work: Callable[..., Any], is_internal: bool) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            data = await _data(request)
            if isinstance(data, Response):
                return data
            if is_internal:
                try:
                    self.herder.verify(data, request.headers)
                except RestError as failure:
                    return error(failure.code, str(failure))
            body = _body(request, data)
            if isinstance(body, Response):
                return body
            return await run_in_threadpool(self._respond, work, Call(request, body))

        return handle

    def _respond(self, work: Callable[..., Any], call: Call) -> Response:
        name = call.request.path_params.get("name")
        try:
            result = work(call) if name is None else work(call, name)
        except RestError as failure:
            return error(failure.code, str(failure))
        except WrongWorker as failure:
            return self._forward(call, failure.url)
        except (ConnectError, KafkaError) as failure:
            return error(500, self._hide(str(failure), call))
        except Exception as failure:
            trace = self._hide(traceback.format_exc(), call)
            logger.error("%s %s failed: %s", call.request.method, call.request.scope["path"], trace)
            return error(500, self._hide(f"{type(failure).__name__}: {failure}", call))
        if isinstance(result, Response):
            return result
        return Response(status_code=204) if result is None else JSONResponse(result)

    def _hide(self, text: str, call: Call) -> str:
        """Returns the text without the secrets of providers and of the request."""
        body = call.body if isinstance(call.body, dict) else {}
        config = body.get("config")
        secrets = Secrets.of({**body, **(config if isinstance(config, dict) else {})})
        return secrets.hide(self.herder.worker.providers.hide(text))

    def _forward(self, call: Call, url: str | None) -> Response:
        """Sends the request to another worker, with the credentials of the client."""
        request = call.request
        if url is None or request.query_params.get("forward") == "false":
            return error(409, _CONFLICT)
        query_string = request.scope["query_string"].decode("latin-1")
        query = f"{query_string}&forward=false" if query_string else "forward=false"
        # Use the unescaped path of the scope: a connector's name may contain any character. Do not
        # use the request's URL: it contains the Host header, which the client chooses.
        target = f"{url.rstrip('/')}{quote(request.scope['path'])}?{query}"
        authorization = request.headers.get("authorization")
        headers = {} if authorization is None else {"Authorization": authorization}
        data = None if call.body is None else json.dumps(call.body).encode()
        try:
            return _forwarded_response(self._peers.send(request.method, target, data, headers))
        except PeerError as failure:
            return error(500, f"IO Error trying to forward REST request: {failure}")

    # --- handlers

    def _root(self, call: Call) -> Any:
        if self._cluster_id is None:
            with Admin(admin_settings(client_settings(self.herder.worker.properties))) as admin:
                self._cluster_id = admin.describe_cluster().cluster_id
        return {"version": VERSION, "commit": COMMIT, "kafka_cluster_id": self._cluster_id}

    def _list(self, call: Call) -> Any:
        expand = {item for text in call.request.query_params.getlist("expand") for item in text.split(",")}
        if not expand:
            return self.herder.names()
        unknown = expand - {"status", "info"}
        entries: dict[str, Any] = {}
        for name in self.herder.names():
            entry = {}
            try:
                if "status" in expand:
                    entry["status"] = self.herder.status(name)
                if "info" in expand:
                    entry["info"] = self.herder.info(name)
            except RestError:
                continue
            entries[name] = entry
        if unknown:
            logger.info("Ignoring unknown expansion type %s", ", ".join(sorted(unknown)))
        return entries

    def _create(self, call: Call) -> Any:
        body = call.body
        if not isinstance(body, dict):
            raise RestError(400, "the body must be an object with name and config")
        config = _settings(body.get("config"), "config")
        name, state = body.get("name"), body.get("initial_state")
        if isinstance(name, (dict, list)) or not isinstance(state, str | None):
            raise RestError(400, "name and initial_state must be strings")
        name = str(name or "").strip() or (config.get("name") or "").strip()
        if not name:
            raise RestError(400, "the body has no name")
        info = self.herder.create(name, config, state)
        return JSONResponse(info, 201, headers=_location(name))

    def _put_config(self, call: Call, name: str) -> Any:
        is_created, info = self.herder.put_config(name, _settings(call.body, "the body"))
        return JSONResponse(info, 201 if is_created else 200, headers=_location(name) if is_created else None)

    def _patch_config(self, call: Call, name: str) -> Any:
        return self.herder.patch_config(name, _settings(call.body, "the body"))

    def _target(self, name: str, state: str) -> Response:
        self.herder.set_target(name, state)
        return Response(status_code=202 if state != STOPPED else 204)

    def _task_status(self, call: Call, name: str) -> Any:
        return self.herder.task_status(name, call.request.path_params["task"])

    def _restart_task(self, call: Call, name: str) -> None:
        self.herder.restart_task(name, call.request.path_params["task"])

    def _restart(self, call: Call, name: str) -> Any:
        plan = self.herder.restart(name, call.flag("includeTasks"), call.flag("onlyFailed"))
        return None if plan is None else JSONResponse(plan, 202)

    def _put_task_configs(self, call: Call, name: str) -> None:
        """An internal request of the worker that runs the connector."""
        self.herder.put_task_configs(name, call.body)

    def _reset_topics(self, call: Call, name: str) -> Response:
        self.herder.reset_topics(name)
        return Response(status_code=200)

    def _delete(self, call: Call, name: str) -> None:
        self.herder.delete(name)

    def _plugins(self, call: Call) -> Any:
        return self.herder.list_plugins(call.request.query_params.get("connectorsOnly", "true").lower() != "false")

    def _plugin_config(self, call: Call) -> Any:
        return self.herder.plugin_options(call.request.path_params["plugin"])

    def _validate(self, call: Call) -> Any:
        return self.herder.validate(call.request.path_params["plugin"], _settings(call.body, "the body"))

    # --- Python loggers

    def _loggers(self, call: Call) -> Any:
        return loggers.levels()

    def _logger(self, call: Call) -> Any:
        name = call.request.path_params["logger"]
        level = loggers.level(name)
        if level is None:
            raise RestError(404, f"Logger {name} not found.")
        return level

    def _set_logger(self, call: Call) -> Any:
        name = call.request.path_params["logger"]
        level = str((call.body or {}).get("level", "") if isinstance(call.body, dict) else "").upper()
        if not level:
            raise RestError(400, "Desired 'level' parameter was not specified in request.")
        if not loggers.is_level(level):
            raise RestError(404, f"invalid log level '{level}'.")
        scope = call.request.query_params.get("scope", "worker")
        if scope.lower() == "cluster":
            self.herder.set_cluster_level(name, level)
            return None
        if scope.lower() != "worker":
            logger.warning("Ignoring the unknown scope %s of a log level: it is set on this worker", scope)
        return loggers.set_level(name, level)

    # --- health and metrics

    def _health(self, call: Call) -> Response:
        problem = self.herder.health(_HEALTH_TIMEOUT_S)
        if problem is None:
            text = "Worker has completed startup and is ready to handle requests."
            return JSONResponse({"status": "healthy", "message": text})
        if not self.herder.is_ready:
            text = f"Worker is still starting up. {problem}"
            return JSONResponse({"status": "starting", "message": text}, 503)
        text = f"Worker was unable to handle this request and may be unable to handle other requests. {problem}"
        return JSONResponse({"status": "unhealthy", "message": text}, 500)

    def _render_metrics(self, call: Call) -> Response:
        return Response(self._metrics.render(), headers={"Content-Type": CONTENT_TYPE})


@dataclass(frozen=True)
class Call:
    """A request with its parsed body."""

    request: Request
    body: Any

    def flag(self, name: str) -> bool:
        return str(self.request.query_params.get(name, "false")).lower() == "true"


def _by_path(routes: list[tuple[str, str, Callable[..., Any]]]) -> list[Route]:
    """Builds one route for each path, so that an unsupported method returns the status 405. The
    longest paths come first, because a connector's name may contain slashes."""
    paths: dict[str, dict[str, Callable[..., Any]]] = {}
    for path, method, handler in routes:
        paths.setdefault(path, {})[method] = handler

    def choose(methods: dict[str, Callable[..., Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            method = "GET" if request.method == "HEAD" else request.method
            response: Response = await methods[method](request)
            return response

        return endpoint

    longest = sorted(paths, key=lambda path: -path.count("/"))
    return [Route(path, choose(paths[path]), methods=list(paths[path])) for path in longest]


def _location(name: str) -> dict[str, str]:
    return {"Location": f"/connectors/{quote(name)}"}


def _settings(body: Any, subject: str) -> dict[str, str | None]:
    if not isinstance(body, dict):
        raise RestError(400, f"{subject} must be an object of settings, strings by name")
    if len(body) > _MAX_SETTINGS:
        raise RestError(400, f"{subject} has {len(body)} settings; the limit is {_MAX_SETTINGS}")
    settings: dict[str, str | None] = {}
    for name, value in body.items():
        if isinstance(value, (dict, list)):
            raise RestError(400, f"the value of {name} is not a string")
        settings[name] = value if value is None or isinstance(value, str) else json.dumps(value)
    return settings


async def _data(request: Request) -> bytes | Response:
    """Returns the bytes of the body, or a response that rejects it. As in Kafka Connect, a body
    requires a JSON Content-Type, which a page of another site cannot send without a preflight
    request."""
    content_type = request.headers.get("content-type")
    if content_type is not None and content_type.partition(";")[0].strip().lower() != _JSON:
        return error(415, "HTTP 415 Unsupported Media Type")
    if request.method not in ("POST", "PUT", "PATCH"):
        return b""
    length = request.headers.get("content-length", "")
    is_too_large = length.isdecimal() and int(length[:20]) > _MAX_BODY_BYTES
    data = bytearray()
    try:
        if not is_too_large:
            async for chunk in request.stream():
                data += chunk
                if is_too_large := len(data) > _MAX_BODY_BYTES:
                    break
    except ClientDisconnect:
        return error(400, "the body is incomplete")
    if is_too_large:
        return error(413, f"the body has more than {_MAX_BODY_BYTES} bytes")
    return bytes(data)


def _body(request: Request, data: bytes) -> Any:
    """Returns the parsed JSON body, or a response that rejects it."""
    if not data.strip():
        return None
    if "content-type" not in request.headers:
        return error(415, "HTTP 415 Unsupported Media Type")
    try:
        return _parsed(data)
    except ValueError as failure:
        return error(400, f"the body is not JSON: {failure}")


def _parsed(data: bytes) -> Any:
    """Returns the JSON value. Raises ValueError if the body is not JSON, or exceeds a limit."""

    def reject(constant: str) -> Any:
        raise ValueError(f"{constant[:20]} is not a number in JSON")

    def finite(text: str) -> float:
        number = float(text)
        return reject(text) if math.isinf(number) else number

    # Each value except the first of a list or object follows a comma, so this is an upper bound.
    if sum(map(data.count, b",[{")) > _MAX_VALUES:
        raise ValueError(f"it has more than {_MAX_VALUES} values")
    try:
        text = data.decode()
        body = json.loads(text, parse_constant=reject, parse_float=finite)
        level: list[Any] = [body]
        for _ in range(_MAX_DEPTH):
            level = [item for value in level if isinstance(value, (dict, list)) for item in _items(value)]
        if level:
            raise ValueError(f"it has more than {_MAX_DEPTH} levels")
        # An unpaired surrogate is not a character.
        json.dumps(body, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(f"it has more than {_MAX_DEPTH} levels") from None
    except (UnicodeDecodeError, UnicodeEncodeError) as failure:
        raise ValueError(f"it is not UTF-8: {failure.reason}") from None
    return body


def _items(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _forwarded_response(response: PeerResponse) -> Response:
    location = response.headers.get("Location")
    headers = {"Location": location} if location else None
    media_type = response.headers.get("Content-Type") if response.body else None
    return Response(response.body, response.code, headers=headers, media_type=media_type)


async def _http_error(request: Request, failure: Exception) -> Response:
    code = failure.status_code if isinstance(failure, HTTPException) else 500
    return error(code, f"HTTP {code} {_PHRASES.get(code, 'Error')}")


async def _unexpected(request: Request, failure: Exception) -> Response:
    return error(500, "HTTP 500 Internal Server Error")
