"""A worker with the part of Connect's REST interface that the console uses, without Kafka."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

PASSWORD = "swordfish"
TRACE = f"ConnectException: <b>no file</b>, login with {PASSWORD}\n\tat x\nCaused by: IOException: no disk\n\tat y"


def definition(name: str, type_name: str = "STRING", required: bool = False, default: Any = None) -> dict[str, Any]:
    group = "Database" if name.startswith("db.") else "Common"
    return {
        "name": name, "type": type_name, "required": required, "default_value": default, "importance": "HIGH",
        "documentation": f"About <b>{name}</b>.", "group": group, "order": 1, "display_name": name.title(),
    }  # fmt: skip


DEFINITIONS = [
    definition("name", required=True),
    definition("connector.class", required=True),
    definition("tasks.max", "INT", default="1"),
    definition("topic", required=True),
    definition("db.pin", "PASSWORD"),
    definition("db.compress", "BOOLEAN", default="false"),
]


class FakeConnect:
    """A running sink `files` with the tasks 0 and 1, and a failed source `broken`. `requests` has
    the requests that change something."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.configs = {
            "files": {"name": "files", "connector.class": "shop.Lines", "topic": "orders", "db.pin": "4711"},
            "broken": {"name": "broken", "connector.class": "shop.Lines", "topic": "x", "db.password": PASSWORD},
        }
        self.states = {"files": "RUNNING", "broken": "FAILED"}
        self.offset_entries = [{"partition": {"file": "in"}, "offset": {"position": 7}}]

    def status(self, name: str) -> dict[str, Any]:
        state = self.states[name]
        trace = {"trace": TRACE} if state == "FAILED" else {}
        tasks = [
            {"id": n, "state": state, "worker_id": "w:8083", **trace} for n in ((0, 1) if name == "files" else (0,))
        ]
        return {
            "name": name, "type": "sink" if name == "files" else "source",
            "connector": {"state": state, "worker_id": "w:8083"}, "tasks": [] if state == "STOPPED" else tasks,
        }  # fmt: skip

    def respond(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if method != "GET" and not path.endswith("/validate"):
            self.requests.append(f"{method} {path}")
        match method, [unquote(part) for part in urlsplit(path).path.split("/")[1:]]:
            case "GET", ["connector-plugins"]:
                return 200, [{"class": "shop.Lines", "type": "source", "version": "1"}]
            case "PUT", ["connector-plugins", _, "config", "validate"]:
                return 200, self._validated(body)
            case "GET", ["connectors"]:
                return 200, {
                    name: {"info": {"type": self.status(name)["type"], "config": config}, "status": self.status(name)}
                    for name, config in self.configs.items()
                }
            case "POST", ["connectors"] if body["name"] in self.configs:
                return 409, {"message": f"Connector {body['name']} already exists"}
            case "POST", ["connectors"]:
                self.configs[body["name"]], self.states[body["name"]] = body["config"], "RUNNING"
                return 201, {}
            case _, ["connectors", name, *_] if name not in self.configs:
                return 404, {"message": f"Connector {name} not found"}
            case "GET", ["connectors", name, "config"]:
                return 200, self.configs[name]
            case "PUT", ["connectors", name, "config"]:
                self.configs[name] = body
                return 200, {}
            case "GET", ["connectors", name, "status"]:
                return 200, self.status(name)
            case "GET", ["connectors", _, "offsets"]:
                return 200, {"offsets": self.offset_entries}
            case "PATCH" | "DELETE", ["connectors", name, "offsets"] if self.states[name] != "STOPPED":
                return 400, {"message": "Connectors must be in the STOPPED state"}
            case "PATCH" | "DELETE", ["connectors", name, "offsets"]:
                self.offset_entries = body["offsets"] if body else []
                return 200, {"message": "The offsets for this connector have been changed successfully"}
            case "DELETE", ["connectors", name]:
                del self.configs[name]
                return 204, None
            case "PUT", ["connectors", name, command]:
                self.states[name] = {"pause": "PAUSED", "resume": "RUNNING", "stop": "STOPPED"}[command]
                return 202, None
            case "POST", ["connectors", name, *_, "restart"]:
                self.states[name] = "RUNNING"
                return 202, {}
        return 404, {"message": "HTTP 404 Not Found"}

    def _validated(self, config: dict[str, str]) -> dict[str, Any]:
        configs = []
        # `Datagen` accepts every configuration.
        for entry in DEFINITIONS if config.get("connector.class") != "Datagen" else ():
            name = entry["name"]
            errors = [f"Missing required configuration {name}"] if entry["required"] and not config.get(name) else []
            if name == "tasks.max" and not config.get(name, "1").isdecimal():
                errors = [f"Invalid value {config[name]} for {name}, after {config.get('db.pin')}"]
            value = {
                "name": name,
                "value": config.get(name),
                "recommended_values": [],
                "errors": errors,
                "visible": True,
            }
            configs.append({"definition": entry, "value": value})
        return {"name": "Lines", "error_count": 0, "groups": ["Common", "Database"], "configs": configs}


@contextmanager
def fake_connect() -> Iterator[tuple[FakeConnect, str]]:
    """Run a worker. Yields it with its address."""
    worker = FakeConnect()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, content = worker.respond(self.command, self.path, json.loads(data) if data else None)
            body = b"" if content is None else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _serve

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield worker, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
