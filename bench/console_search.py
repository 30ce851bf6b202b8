"""A search over a million messages in the console: how soon a hit is on its way to the page after it could be found,
how long the whole search takes, what the console weighs meanwhile, and how soon a stopped one has ended."""

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
    LIMIT, WORDS = 500.0, "< 500 ms"


class Memory(Bar):
    LIMIT, WORDS = 150.0, "< 150 MiB"


def run(sides: dict[str, Side], options: Options) -> list[Row]:
    found = {name: _measure(side) for name, side in sides.items()}
    pairs = {what: [(found["kavka"][what], found["apache"][what])] for what in found["kavka"]}
    rows: list[Row] = []
    for words in SEARCHES:
        title = f"a search for {words} in 1,000,000 messages"
        rows.append(FirstHit(f"{title}: its first hit, which is the first message", "ms", pairs[f"{words} first"]))
        rows.append(Row(f"{title}: all of it", "s", pairs[f"{words} all"]))
    rows.append(Memory("memory of the console after these searches", "MiB", pairs["memory"]))
    rows.append(Row("until a search that its reader left has ended", "ms", pairs["stop"]))
    return rows


def _measure(side: Side) -> dict[str, float]:
    with Admin(bootstrap_servers=side.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
    with Producer(bootstrap_servers=side.bootstrap) as producer:
        for number in range(MESSAGES):
            if number in (0, MESSAGES // 2, MESSAGES - 1):
                producer.send(TOPIC, b'{"needle": true}', partition=0)
            else:
                producer.send(TOPIC, HAY % (number, number % 1000))
        producer.flush()
    with (
        tempfile.TemporaryDirectory(prefix="kavka-bench-search-") as folder,
        ConsoleProcess(Path(folder), side.bootstrap) as console,
    ):
        wait_until(lambda: console.answers("/api/clusters/default/overview"), timeout=120, what="the console")
        found = {}
        for words, wanted in SEARCHES.items():
            first, whole, hits = _search(console.port, wanted)
            if hits != 3:
                raise RuntimeError(f"{hits} hits, not 3")
            found |= {f"{words} first": first * 1000, f"{words} all": whole}
            print(f"  {side.title}: {words}: first hit {first * 1000:.0f} ms, all {whole:.1f} s", flush=True)
        found["memory"] = console.process.rss_bytes() / (1 << 20)
        found["stop"] = _stopped(console) * 1000
        return found


def _open(port: int, wanted: dict[str, str]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", f"/c/default/messages/stream?{urlencode({'topic': TOPIC, 'start': 'oldest', **wanted})}")
    return connection, connection.getresponse()


def _search(port: int, wanted: dict[str, str]) -> tuple[float, float, int]:
    """Seconds until the first hit was here, and until the end; and the number of hits."""
    began = time.perf_counter()
    connection, answer = _open(port, wanted)
    first, name = 0.0, b""
    try:
        for line in answer:
            if line.startswith(b"event: "):
                name = line[7:].strip()
            elif line.startswith(b"data: ") and name == b"hits" and not first:
                first = time.perf_counter() - began
            elif line.startswith(b"data: ") and name == b"end":
                return first, time.perf_counter() - began, json.loads(line[6:])["hits"]
    finally:
        connection.close()
    raise RuntimeError("the search has no end")


def _stopped(console: ConsoleProcess) -> float:
    connection, answer = _open(console.port, {"path": "$.nothing == 1"})
    wait_until(lambda: console.searches() == 1, timeout=60, what="the search")
    began = time.perf_counter()
    answer.close()
    connection.close()
    wait_until(lambda: console.searches() == 0, timeout=60, what="its end")
    return time.perf_counter() - began
