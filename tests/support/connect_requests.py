"""Requests to Kafka Connect's REST interface to which Apache's and Kavka's workers respond
alike."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
SINK = "org.apache.kafka.connect.file.FileStreamSinkConnector"


def request(url: str, method: str, path: str, body: Any = None, text: str | None = None) -> tuple[int, Any]:
    """Send a request. Return the status and the JSON of the body, or None without a body."""
    data = text.encode() if text is not None else None if body is None else json.dumps(body).encode()
    http_request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(http_request, timeout=120) as response:
            code, content = response.status, response.read()
    except urllib.error.HTTPError as error:
        code, content = error.code, error.read()
    try:
        return code, json.loads(content) if content else None
    except ValueError:
        return code, content.decode()


def conversation(url: str, folder: str) -> list[list[Any]]:
    """Send the requests of a connector's life cycle. Return [request, status, response] of each,
    without values that always differ."""
    source = {"connector.class": SOURCE, "file": f"{folder}/in.txt", "topic": "probe-lines", "tasks.max": "1"}
    exchanges: list[list[Any]] = []

    def exchange(method: str, path: str, body: Any = None, text: str | None = None) -> Any:
        code, content = request(url, method, path, body, text)
        exchanges.append([f"{method} {path}", code, _without_variable_values(content, folder)])
        return content

    def wait_for_state(state: str, *tasks: int) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            code, body = request(url, "GET", "/connectors/probe/status")
            states = [body["connector"]["state"], *(task["state"] for task in body["tasks"])] if code == 200 else []
            if set(states) == {state} and len(states) - 1 in tasks:
                return
            time.sleep(0.2)
        raise TimeoutError(f"the connector did not reach the state {state}: {body}")

    exchange("GET", "/connectors")
    exchange("GET", "/connectors/probe")
    exchange("GET", "/connectors/probe/status")
    exchange("GET", "/connectors/probe/config")
    exchange("DELETE", "/connectors/probe")
    exchange("PUT", "/connectors/probe/pause")
    exchange("GET", "/nothing")
    exchange("PUT", "/connectors")
    exchange("POST", "/connectors", {"name": "probe", "config": {k: v for k, v in source.items() if k != "topic"}})
    exchange("POST", "/connectors", {"name": "probe", "config": {}})
    exchange("POST", "/connectors", {"name": "probe", "config": source, "initial_state": "stopped"})
    wait_for_state("STOPPED", 0)
    exchange("GET", "/connectors/probe/status")
    exchange("POST", "/connectors", {"name": "probe", "config": source})
    exchange("GET", "/connectors/probe/tasks")
    exchange("GET", "/connectors/probe/tasks/0/status")
    exchange("PUT", "/connectors/probe/resume")
    wait_for_state("RUNNING", 1)
    exchange("GET", "/connectors")
    exchange("GET", "/connectors/probe")
    exchange("GET", "/connectors/probe/config")
    exchange("GET", "/connectors/probe/status")
    exchange("GET", "/connectors/probe/tasks/0/status")
    exchange("GET", "/connectors/probe/tasks/7/status")
    exchange("GET", "/connectors?expand=status&expand=info")
    exchange("DELETE", "/connectors/probe/offsets")
    exchange("PATCH", "/connectors/probe/offsets", {"offsets": []})
    exchange("PUT", "/connectors/probe/pause")
    wait_for_state("PAUSED", 1)
    exchange("PUT", "/connectors/probe/resume")
    wait_for_state("RUNNING", 1)
    exchange("PATCH", "/connectors/probe/config", {"tasks.max": "2"})
    # Apache's source of lines has one task.
    wait_for_state("RUNNING", 1, 2)
    exchange("GET", "/connectors/probe/config")
    exchange("POST", "/connectors/probe/restart")
    exchange("POST", "/connectors/probe/tasks/0/restart")
    exchange("PUT", "/connectors/probe/stop")
    wait_for_state("STOPPED", 0)
    exchange("PATCH", "/connectors/probe/offsets", {"offsets": []})
    exchange("DELETE", "/connectors/probe/offsets")
    exchange("DELETE", "/connectors/probe")
    exchange("GET", "/connectors")
    exchange("PUT", "/connectors/probe/config", {**source, "name": "other"})
    return exchanges


def _without_variable_values(value: Any, folder: str) -> Any:
    """Remove the values that differ between runs: worker ids, traces, folders."""
    if isinstance(value, dict):
        return {
            k: _without_variable_values(v, folder)
            for k, v in value.items()
            if k not in ("worker_id", "trace", "url", "servlet")
        }
    if isinstance(value, list):
        return [_without_variable_values(entry, folder) for entry in value]
    if isinstance(value, str):
        return value.replace(folder, "FOLDER")
    return value
