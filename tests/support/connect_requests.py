"""Requests to Kafka Connect's REST interface whose answers are the same for Apache's and for ours."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"


def ask(url: str, method: str, path: str, body: Any = None, text: str | None = None) -> tuple[int, Any]:
    """(status, JSON of the body or None)."""
    data = text.encode() if text is not None else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            code, found = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        code, found = error.code, error.read()
    try:
        return code, json.loads(found) if found else None
    except ValueError:
        return code, found.decode()


def conversation(url: str, folder: str) -> list[list[Any]]:
    """[request, status, answer] for a connector's life, in order. What differs by nature is left out."""
    source = {"connector.class": SOURCE, "file": f"{folder}/in.txt", "topic": "probe-lines", "tasks.max": "1"}
    asked: list[list[Any]] = []

    def one(method: str, path: str, body: Any = None, text: str | None = None) -> Any:
        code, found = ask(url, method, path, body, text)
        asked.append([f"{method} {path}", code, _plain(found, folder)])
        return found

    def until(state: str, tasks: int) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            code, found = ask(url, "GET", "/connectors/probe/status")
            states = [found["connector"]["state"], *(task["state"] for task in found["tasks"])] if code == 200 else []
            if states == [state] * (tasks + 1):
                return
            time.sleep(0.2)
        raise TimeoutError(f"{state}: {found}")

    one("GET", "/connectors")
    one("GET", "/connectors/probe")
    one("GET", "/connectors/probe/status")
    one("GET", "/connectors/probe/config")
    one("DELETE", "/connectors/probe")
    one("PUT", "/connectors/probe/pause")
    one("GET", "/nothing")
    one("PUT", "/connectors")
    one("POST", "/connectors", {"name": "probe", "config": {k: v for k, v in source.items() if k != "topic"}})
    one("POST", "/connectors", {"name": "probe", "config": {}})
    one("POST", "/connectors", {"name": "probe", "config": source, "initial_state": "stopped"})
    until("STOPPED", 0)
    one("GET", "/connectors/probe/status")
    one("POST", "/connectors", {"name": "probe", "config": source})
    one("GET", "/connectors/probe/tasks")
    one("GET", "/connectors/probe/tasks/0/status")
    one("PUT", "/connectors/probe/resume")
    until("RUNNING", 1)
    one("GET", "/connectors")
    one("GET", "/connectors/probe")
    one("GET", "/connectors/probe/config")
    one("GET", "/connectors/probe/status")
    one("GET", "/connectors/probe/tasks/0/status")
    one("GET", "/connectors/probe/tasks/7/status")
    one("GET", "/connectors?expand=status&expand=info")
    one("DELETE", "/connectors/probe/offsets")
    one("PATCH", "/connectors/probe/offsets", {"offsets": []})
    one("PUT", "/connectors/probe/pause")
    until("PAUSED", 1)
    one("PUT", "/connectors/probe/resume")
    until("RUNNING", 1)
    one("PATCH", "/connectors/probe/config", {"tasks.max": "2"})
    until("RUNNING", 1)
    one("GET", "/connectors/probe/config")
    one("POST", "/connectors/probe/restart")
    one("POST", "/connectors/probe/tasks/0/restart")
    one("PUT", "/connectors/probe/stop")
    until("STOPPED", 0)
    one("PATCH", "/connectors/probe/offsets", {"offsets": []})
    one("DELETE", "/connectors/probe/offsets")
    one("DELETE", "/connectors/probe")
    one("GET", "/connectors")
    one("PUT", "/connectors/probe/config", {**source, "name": "other"})
    return asked


def _plain(found: Any, folder: str) -> Any:
    """Without what is another each time: workers, traces, folders."""
    if isinstance(found, dict):
        return {k: _plain(v, folder) for k, v in found.items() if k not in ("worker_id", "trace", "url", "servlet")}
    if isinstance(found, list):
        return [_plain(one, folder) for one in found]
    if isinstance(found, str):
        return found.replace(folder, "FOLDER")
    return found
