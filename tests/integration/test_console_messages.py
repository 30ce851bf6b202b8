"""Messages in the console's API: pages without gaps or duplicates, formats, limits, and the
commands of docs/console-messages.md."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from kavka import Admin, NewTopic, Producer
from kavka.common.types import TopicPartition
from tests.support import avro
from tests.support.console import ConsoleProcess, of_default
from tests.support.fake_connect import fake_connect
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import wait_until

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "console-messages.md"
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KavkaProcess]:
    with KavkaProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, broker: KavkaProcess) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(tmp_path_factory.mktemp("console"), broker.bootstrap_servers) as console:
        yield console


@pytest.fixture(scope="module")
def large_topic(broker: KavkaProcess) -> str:
    """A topic with 40 partitions, more than the console reads at a time. One message in ten has a
    mark. One transaction was aborted."""
    servers = broker.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic("many", 40, 1)])
    with Producer(bootstrap_servers=servers) as producer:
        for number in range(4000):
            mark = ', "mark": true' if number % 10 == 0 else ""
            producer.send("many", f'{{"id": {number}{mark}}}'.encode(), partition=number % 40, timestamp=1000 + number)
        producer.flush()
    with Producer(bootstrap_servers=servers, transactional_id="many") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("many", b'{"id": 4000, "mark": true}', partition=7, timestamp=9000).get(TIMEOUT_S)
        producer.abort_transaction()
    return "many"


def search(console: ConsoleProcess, **query: Any) -> dict[str, Any]:
    response: dict[str, Any] = console.api("/messages?" + urlencode({"seconds": 60, **query}))
    return response


def all_pages(console: ConsoleProcess, **query: Any) -> list[int]:
    ids, cursor = [], ""
    while True:
        page = search(console, cursor=cursor, **query)
        ids += [json.loads(message["value"]["text"])["id"] for message in page["messages"]]
        assert len(page["messages"]) <= query.get("limit", 50)
        cursor = page["cursor"]
        if page["done"]:
            return ids


@pytest.mark.parametrize("start", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [7, 300])
def test_the_pages_have_every_matching_message_once(
    console: ConsoleProcess, large_topic: str, start: str, limit: int
) -> None:
    marked = list(range(0, 4000, 10))
    ids = all_pages(console, topic=large_topic, start=start, limit=limit, path="$.mark", committed=True)
    assert sorted(ids) == marked
    assert sorted(all_pages(console, topic=large_topic, start=start, limit=1000, committed=True)) == list(range(4000))
    assert 4000 in all_pages(console, topic=large_topic, start=start, limit=1000)


def test_a_search_starts_at_the_newest_message_a_time_or_an_offset(console: ConsoleProcess, large_topic: str) -> None:
    page = search(console, topic=large_topic, limit=30, committed=True)
    assert [json.loads(m["value"]["text"])["id"] for m in page["messages"]] == list(range(3999, 3969, -1))
    page = search(console, topic=large_topic, start="time", at="1970-01-01T00:00:04.990Z", committed=True, limit=1000)
    assert sorted(m["timestamp"] for m in page["messages"]) == list(range(4990, 5000))
    page = search(console, topic=large_topic, start="offset", at=98, partition="3, 5-6", limit=1000)
    assert sorted((m["partition"], m["offset"]) for m in page["messages"]) == [
        (p, o) for p in (3, 5, 6) for o in (98, 99)
    ]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"start": "yesterday"}, "start"),
        ({"start": "tail"}, "start"),
        ({"start": "offset", "at": "-1"}, "at"),
        ({"start": "time", "at": "noon"}, "at"),
        ({"partition": "x"}, "partition"),
        ({"partition": "0-99999"}, "partition"),
        ({"limit": "100000"}, "limit"),
        ({"expression": "1 +"}, "expression"),
        ({"path": "$."}, "path"),
        ({"header": "="}, "header"),
        ({"value_format": "pickle"}, "value_format"),
        ({"value_format": "avro", "value_schema": "{"}, "value_schema"),
        ({"cursor": "1:x"}, "cursor"),
        ({"unknown": "x"}, "unknown"),
    ],
)
def test_an_invalid_parameter_is_named_in_the_error(
    console: ConsoleProcess, large_topic: str, query: dict[str, str], field: str
) -> None:
    response = console.get(of_default("/messages?" + urlencode({"topic": large_topic, **query})))
    assert (response.status, response.json()["field"]) == (400, field), response.text


def test_an_unknown_topic_or_message_is_not_found(console: ConsoleProcess, large_topic: str) -> None:
    assert console.get(of_default("/messages?topic=nowhere")).status == 404
    assert console.get(of_default(f"/messages?topic={large_topic}&partition=77")).status == 404
    assert console.get(of_default(f"/messages/one?topic={large_topic}&partition=0&offset=100000")).status == 404
    response = console.post(of_default("/messages/produce"), {"topic": "nowhere", "value": "x"})
    assert (response.status, response.json()["field"]) == (404, "topic")


def test_large_messages_do_not_fill_the_memory(console: ConsoleProcess, broker: KavkaProcess) -> None:
    """Read all pages of 200 messages of 900 KB, newest first. The console's memory is bounded."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("large", 2, 1)])
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(200):
            producer.send("large", b"%d " % number + b"x" * 900_000, partition=number % 2)
        producer.flush()
    initial_bytes = console.process.rss_bytes()
    numbers, cursor = [], ""
    while True:
        page = search(console, topic="large", limit=150, cursor=cursor)
        numbers += [int(message["value"]["text"].split()[0]) for message in page["messages"]]
        assert all(message["value"]["cut"] for message in page["messages"])
        cursor = page["cursor"]
        if page["done"]:
            break
    assert sorted(numbers) == list(range(200))
    growth = console.process.rss_bytes() - initial_bytes
    assert growth < 90 << 20, f"{growth >> 20} MB more"


def test_a_corrupt_batch_does_not_hide_other_batches(console: ConsoleProcess, broker: KavkaProcess) -> None:
    """A byte of the batch is changed on disk, so its CRC does not match."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("corrupt", 1, 1)])
    with Producer(bootstrap_servers=broker.bootstrap_servers, compression_type="gzip") as producer:
        for number in range(5):
            producer.send("corrupt", b"%d" % number).get(TIMEOUT_S)
    (segment,) = broker.log_dirs[0].glob("corrupt-0/*.log")
    with segment.open("r+b") as file:
        for _ in range(2):
            file.seek(8, 1)
            file.seek(int.from_bytes(file.read(4), "big"), 1)
        file.seek(70, 1)
        file.write(b"?")
    notice = "offsets 2 to 2 of partition 0 cannot be read: "
    for start in ("oldest", "newest"):
        page = search(console, topic="corrupt", start=start)
        assert sorted(message["value"]["text"] for message in page["messages"]) == ["0", "1", "3", "4"]
        assert page["done"] and [text[: len(notice)] for text in page["notices"]] == [notice]
    download = console.get("/c/default/messages/download?topic=corrupt&start=oldest").json()
    assert [message["offset"] for message in download if "offset" in message] == [0, 1, 3, 4]
    assert [message["notice"][: len(notice)] for message in download if "notice" in message] == [notice]
    assert console.get(of_default("/messages/one?topic=corrupt&partition=0&offset=3")).status == 200


def test_hostile_messages_are_cheap_to_process(console: ConsoleProcess, broker: KavkaProcess) -> None:
    """20 Avro messages claim 10^12 records with 4000 fields each. 20 JSON lists make a filter
    expensive."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("hostile", 1, 1)])
    fields = [{"name": f"f{n}", "type": "null"} for n in range(4000)]
    schema = {"type": "array", "items": {"type": "record", "name": "R", "fields": fields}}
    avro_bomb = avro.container(schema, (1, avro.number(10**12) + b"\0"))
    json_list = json.dumps([1] * 10_000).encode()
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for value in [avro_bomb, json_list] * 20:
            producer.send("hostile", value)
        producer.flush()
    initial_bytes = console.process.rss_bytes()
    page = search(console, topic="hostile", limit=40)
    assert [message["value"]["kind"] for message in page["messages"]] == ["json", "hex"] * 20
    assert "more than 200000 values" in page["messages"][1]["value"]["problem"]
    page = search(console, topic="hostile", expression="value[*] > value[*]")
    assert page["done"] and page["notices"][-1] == "20 messages were not compared"
    assert "the filters need more than" in page["notices"][0]
    growth = console.process.rss_bytes() - initial_bytes
    assert growth < 200 << 20, f"{growth >> 20} MB more"


def test_avro_is_produced_and_found_by_its_fields(console: ConsoleProcess, broker: KavkaProcess) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("users", 1, 1)])
    schema = json.dumps({"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]})
    for number in range(3):
        response = console.post(
            of_default("/messages/produce"),
            {"topic": "users", "value": json.dumps({"id": number}), "value_format": "avro", "value_schema": schema},
        )
        assert response.status == 200, response.text
    page = search(
        console, topic="users", value_format="avro", value_schema=schema, expression="value.id == 2", start="oldest"
    )
    assert [(m["value"]["kind"], m["value"]["text"]) for m in page["messages"]] == [("avro", '{"id": 2}')]


def test_the_number_of_searches_is_limited_and_a_search_ends_with_its_connection(
    console: ConsoleProcess, large_topic: str
) -> None:
    readers = []
    for _ in range(8):
        connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=TIMEOUT_S)
        connection.request("GET", f"/c/default/messages/stream?topic={large_topic}&start=tail")
        response = connection.getresponse()
        readers.append((connection, response))
    wait_until(lambda: console.searches() == 8, timeout=TIMEOUT_S, what="eight tails")
    response = console.get(of_default(f"/messages?topic={large_topic}"))
    assert (response.status, "8 searches" in response.error) == (429, True)
    for connection, response in readers:
        response.close()
        connection.close()
    wait_until(lambda: console.searches() == 0, timeout=TIMEOUT_S, what="the end of all tails")
    assert search(console, topic=large_topic)["messages"]


def test_a_download_has_all_messages(console: ConsoleProcess, large_topic: str) -> None:
    response = console.get(
        f"/c/default/messages/download?topic={large_topic}&start=oldest&format=csv&limit=100000&committed=on"
    )
    assert response.headers["Content-Disposition"] == "attachment; filename*=UTF-8''many.csv"
    assert len(response.text.splitlines()) == 4001
    response = console.get(f"/c/default/messages/download?topic={large_topic}&start=oldest&limit=100000&committed=on")
    assert sorted(m["value"]["id"] for m in response.json()) == list(range(4000))
    raw = console.get(f"/c/default/messages/raw?topic={large_topic}&partition=0&offset=0")
    assert raw.headers["Content-Type"] == "application/octet-stream"
    assert raw.text == '{"id": 0, "mark": true}'


def test_the_commands_of_the_document_work(tmp_path: Path, broker: KavkaProcess) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("orders", 1, 1)])
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("orders", b'{"id": 5}').get(TIMEOUT_S)
        admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", 0): 1})
    blocks = re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("curl")]
    responses = []
    with (
        fake_connect() as (_, address),
        ConsoleProcess(tmp_path, broker.bootstrap_servers, "--connect-url", address) as console,
    ):
        for line in lines:
            command = ["sh", "-c", line.replace("http://localhost:9080", console.origin)]
            result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
            responses.append(json.loads(result.stdout))
    search_response, produce_response, plan_response, reset_response, *connector_responses = responses
    assert [m["value"]["text"] for m in search_response["messages"]] == ['{"id": 5}']
    assert produce_response["message"] == "produced to orders, partition 0, offset 1"
    assert plan_response["rows"] == [{"topic": "orders", "partition": 0, "committed": 1, "new": 0, "change": -1}]
    assert reset_response["message"] == "1 offsets of billing were set"
    create_response, connector, restart_response = connector_responses
    assert create_response["message"] == "people was created"
    assert connector["connector"]["state"] == "RUNNING" and connector["config"]["quickstart"] == "users"
    assert "being restarted" in restart_response["message"]


def test_every_expression_of_the_document_compiles() -> None:
    from kavka.console.expressions import compile_expression

    (block,) = re.findall(r"^```text\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    for line in block.splitlines():
        compile_expression(line)
