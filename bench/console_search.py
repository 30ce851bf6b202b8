"""A search over a million messages in the console: the time to the first hit, the total time, the
memory of the console, and the time to stop a search."""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

from bench.console import Bar
from bench.measure import Options, Row
from bench.sides import Side
from kavka import Admin, NewTopic, Producer
from tests.support.console import ConsoleProcess
from tests.support.processes import wait_until

TOPIC, MESSAGES, PARTITIONS = "haystack", 1_000_000, 3
HAY = b'{"id": %d, "name": "user-%d", "text": "' + b"x" * 60 + b'"}'
SEARCHES = {
    "a text": {"text": "needle"},
    "a JSON path": {"path": "$.needle == true"},
}


class FirstHit(Bar):
    MAX_VALUE, BAR_TEXT = 500.0, "< 500 ms"


class Memory(Bar):
    MAX_VALUE, BAR_TEXT = 150.0, "< 150 MiB"


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    values = {name: _measure(side) for name, side in sides.items()}
    pairs = {what: [(values["kavka"][what], values["apache"][what])] for what in values["kavka"]}
    rows: list[Row] = []
    for search in SEARCHES:
        title = f"a search for {search} in 1,000,000 messages"
        rows.append(
            FirstHit(f"{title}: time to the first hit, which is the first message", "ms", pairs[f"{search} first"])
        )
        rows.append(Row(f"{title}: total time", "s", pairs[f"{search} all"]))
    rows.append(Memory("memory of the console after these searches", "MiB", pairs["memory"]))
    rows.append(Row("stop of a search after its client disconnected", "ms", pairs["stop"]))
    return rows


def _measure(side: Side) -> dict[str, float]:
    with Admin(bootstrap_servers=side.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    with Producer(bootstrap_servers=side.bootstrap) as producer:
        for index in range(MESSAGES):
            if index in (0, MESSAGES // 2, MESSAGES - 1):
                producer.send(TOPIC, b'{"needle": true}', partition=0)
            else:
                producer.send(TOPIC, HAY % (index, index % 1000))
        producer.flush()
    with (
        tempfile.TemporaryDirectory(prefix="kavka-bench-search-") as folder,
        ConsoleProcess(Path(folder), side.bootstrap) as console,
    ):
        wait_until(lambda: console.responds("/api/clusters/default/overview"), timeout=120, what="the console")
        values = {}
        for search, query in SEARCHES.items():
            first_hit, total, hits = _search(console.port, query)
            if hits != 3:
                raise RuntimeError(f"the search had {hits} hits instead of 3")
            values |= {f"{search} first": first_hit * 1000, f"{search} all": total}
            print(f"  {side.title}: {search}: first hit {first_hit * 1000:.0f} ms, all {total:.1f} s", flush=True)
        values["memory"] = console.process.rss_bytes() / (1 << 20)
        values["stop"] = _stop_seconds(console) * 1000
        return values


def _open(port: int, query: dict[str, str]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", f"/c/default/messages/stream?{urlencode({'topic': TOPIC, 'start': 'oldest', **query})}")
    return connection, connection.getresponse()


def _search(port: int, query: dict[str, str]) -> tuple[float, float, int]:
    """Return the seconds to the first hit and to the end, and the number of hits."""
    started = time.perf_counter()
    connection, response = _open(port, query)
    first_hit, name = 0.0, b""
    try:
        for line in response:
            if line.startswith(b"event: "):
                name = line[7:].strip()
            elif line.startswith(b"data: ") and name == b"hits" and not first_hit:
                first_hit = time.perf_counter() - started
            elif line.startswith(b"data: ") and name == b"end":
                return first_hit, time.perf_counter() - started, json.loads(line[6:])["hits"]
    finally:
        connection.close()
    raise RuntimeError("the search did not end")


def _stop_seconds(console: ConsoleProcess) -> float:
    """Return the seconds until a search stops after its client disconnects."""
    connection, response = _open(console.port, {"path": "$.nothing == 1"})
    wait_until(lambda: console.searches() == 1, timeout=60, what="the search")
    started = time.perf_counter()
    response.close()
    connection.close()
    wait_until(lambda: console.searches() == 0, timeout=60, what="the end of the search")
    return time.perf_counter() - started
