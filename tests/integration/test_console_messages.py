"""Messages by the console's API: pages that neither repeat nor leave out, formats, limits, what the
document says."""

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
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import wait_until

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "console-messages.md"
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KavkaProcess]:
    with KavkaProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory, broker: KavkaProcess) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(tmp_path_factory.mktemp("console"), broker.bootstrap_servers) as console:
        yield console


@pytest.fixture(scope="module")
def many(broker: KavkaProcess) -> str:
    """40 partitions, more than are read at a time; one message in ten has a mark; a transaction
    that was aborted."""
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
        producer.send("many", b'{"id": 4000, "mark": true}', partition=7, timestamp=9000).get(PATIENCE_S)
        producer.abort_transaction()
    return "many"


def search(console: ConsoleProcess, **query: Any) -> dict[str, Any]:
    answer: dict[str, Any] = console.api("/messages?" + urlencode({"seconds": 60, **query}))
    return answer


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
def test_page_after_page_has_every_message_that_fits_once(
    console: ConsoleProcess, many: str, start: str, limit: int
) -> None:
    marked = list(range(0, 4000, 10))
    ids = all_pages(console, topic=many, start=start, limit=limit, path="$.mark", committed=True)
    assert sorted(ids) == marked
    assert sorted(all_pages(console, topic=many, start=start, limit=1000, committed=True)) == list(range(4000))
    assert 4000 in all_pages(console, topic=many, start=start, limit=1000)


def test_the_newest_of_all_partitions_come_first(console: ConsoleProcess, many: str) -> None:
    page = search(console, topic=many, limit=30, committed=True)
    assert [json.loads(m["value"]["text"])["id"] for m in page["messages"]] == list(range(3999, 3969, -1))
    # Time, partitions and offsets as beginnings.
    page = search(console, topic=many, start="time", at="1970-01-01T00:00:04.990Z", committed=True, limit=1000)
    assert sorted(m["timestamp"] for m in page["messages"]) == list(range(4990, 5000))
    page = search(console, topic=many, start="offset", at=98, partition="3, 5-6", limit=1000)
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
def test_a_wrong_input_is_named(console: ConsoleProcess, many: str, query: dict[str, str], field: str) -> None:
    answer = console.get(of_default("/messages?" + urlencode({"topic": many, **query})))
    assert (answer.status, answer.json()["field"]) == (400, field), answer.text


def test_a_topic_or_message_that_is_not_there(console: ConsoleProcess, many: str) -> None:
    assert console.get(of_default("/messages?topic=nowhere")).status == 404
    assert console.get(of_default(f"/messages?topic={many}&partition=77")).status == 404
    assert console.get(of_default(f"/messages/one?topic={many}&partition=0&offset=100000")).status == 404
    answer = console.post(of_default("/messages/produce"), {"topic": "nowhere", "value": "x"})
    assert (answer.status, answer.json()["field"]) == (404, "topic")


def test_messages_of_any_size_do_not_fill_the_memory(console: ConsoleProcess, broker: KavkaProcess) -> None:
    """200 messages of 900 KB: every page of them, backwards, and the console stays small."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("large", 2, 1)])
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(200):
            producer.send("large", b"%d " % number + b"x" * 900_000, partition=number % 2)
        producer.flush()
    before = console.process.rss_bytes()
    texts, cursor = [], ""
    while True:
        page = search(console, topic="large", limit=150, cursor=cursor)
        texts += [int(message["value"]["text"].split()[0]) for message in page["messages"]]
        assert all(message["value"]["cut"] for message in page["messages"])
        cursor = page["cursor"]
        if page["done"]:
            break
    assert sorted(texts) == list(range(200))
    grown = console.process.rss_bytes() - before
    assert grown < 90 << 20, f"{grown >> 20} MB more"


def test_a_broken_batch_does_not_hide_the_others(console: ConsoleProcess, broker: KavkaProcess) -> None:
    """Its bytes are changed on disk, so that its checksum is wrong."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("broken", 1, 1)])
    with Producer(bootstrap_servers=broker.bootstrap_servers, compression_type="gzip") as producer:
        for number in range(5):
            producer.send("broken", b"%d" % number).get(PATIENCE_S)
    (segment,) = broker.log_dirs[0].glob("broken-0/*.log")
    with segment.open("r+b") as file:
        for _ in range(2):
            file.seek(8, 1)
            file.seek(int.from_bytes(file.read(4), "big"), 1)
        file.seek(70, 1)
        file.write(b"?")
    notice = "offsets 2 to 2 of partition 0 cannot be read: "
    for start in ("oldest", "newest"):
        page = search(console, topic="broken", start=start)
        assert sorted(message["value"]["text"] for message in page["messages"]) == ["0", "1", "3", "4"]
        assert page["done"] and [text[: len(notice)] for text in page["notices"]] == [notice]
    saved = console.get("/c/default/messages/download?topic=broken&start=oldest").json()
    assert [message["offset"] for message in saved if "offset" in message] == [0, 1, 3, 4]
    assert [message["notice"][: len(notice)] for message in saved if "notice" in message] == [notice]
    assert console.get(of_default("/messages/one?topic=broken&partition=0&offset=3")).status == 200


def test_messages_made_to_do_harm_cost_little(console: ConsoleProcess, broker: KavkaProcess) -> None:
    """Forty messages of some 20 KB that claim 4000 fields in each of 10^12 records, and lists for
    costly filters."""
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("harm", 1, 1)])
    fields = [{"name": f"f{n}", "type": "null"} for n in range(4000)]
    schema = {"type": "array", "items": {"type": "record", "name": "R", "fields": fields}}
    bomb = avro.container(schema, (1, avro.number(10**12) + b"\0"))
    costly = json.dumps([1] * 10_000).encode()
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for data in [bomb, costly] * 20:
            producer.send("harm", data)
        producer.flush()
    before = console.process.rss_bytes()
    page = search(console, topic="harm", limit=40)
    assert [message["value"]["kind"] for message in page["messages"]] == ["json", "hex"] * 20
    assert "more than 200000 values" in page["messages"][1]["value"]["problem"]
    page = search(console, topic="harm", expression="value[*] > value[*]")
    assert page["done"] and page["notices"][-1] == "20 messages were not compared"
    assert "the filters need more than" in page["notices"][0]
    grown = console.process.rss_bytes() - before
    assert grown < 200 << 20, f"{grown >> 20} MB more"


def test_avro_is_produced_and_found_by_its_fields(console: ConsoleProcess, broker: KavkaProcess) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("users", 1, 1)])
    schema = json.dumps({"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]})
    for number in range(3):
        answer = console.post(
            of_default("/messages/produce"),
            {"topic": "users", "value": json.dumps({"id": number}), "value_format": "avro", "value_schema": schema},
        )
        assert answer.status == 200, answer.text
    page = search(
        console, topic="users", value_format="avro", value_schema=schema, expression="value.id == 2", start="oldest"
    )
    assert [(m["value"]["kind"], m["value"]["text"]) for m in page["messages"]] == [("avro", '{"id": 2}')]


def test_only_so_many_searches_run_at_a_time_and_they_end_with_their_readers(
    console: ConsoleProcess, many: str
) -> None:
    readers = []
    for _ in range(8):
        connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=PATIENCE_S)
        connection.request("GET", f"/c/default/messages/stream?topic={many}&start=tail")
        answer = connection.getresponse()
        readers.append((connection, answer))
    wait_until(lambda: console.searches() == 8, timeout=PATIENCE_S, what="eight tails")
    answer = console.get(of_default(f"/messages?topic={many}"))
    assert (answer.status, "8 searches" in answer.error) == (429, True)
    for connection, answer in readers:
        answer.close()
        connection.close()
    wait_until(lambda: console.searches() == 0, timeout=PATIENCE_S, what="the end of all tails")
    assert search(console, topic=many)["messages"]


def test_a_download_is_streamed_and_whole(console: ConsoleProcess, many: str) -> None:
    answer = console.get(f"/c/default/messages/download?topic={many}&start=oldest&format=csv&limit=100000&committed=on")
    assert answer.headers["Content-Disposition"] == "attachment; filename*=UTF-8''many.csv"
    assert len(answer.text.splitlines()) == 4001
    answer = console.get(f"/c/default/messages/download?topic={many}&start=oldest&limit=100000&committed=on")
    assert sorted(m["value"]["id"] for m in answer.json()) == list(range(4000))
    raw = console.get(f"/c/default/messages/raw?topic={many}&partition=0&offset=0")
    assert raw.headers["Content-Type"] == "application/octet-stream"
    assert raw.text == '{"id": 0, "mark": true}'


def test_the_commands_of_the_document_work_as_they_stand_there(console: ConsoleProcess, broker: KavkaProcess) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("orders", 1, 1)])
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("orders", b'{"id": 5}').get(PATIENCE_S)
        admin.alter_consumer_group_offsets("billing", {TopicPartition("orders", 0): 1})
    blocks = re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("curl")]
    answers = []
    for line in lines:
        command = line.replace("http://localhost:9080", console.origin)
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        answers.append(json.loads(done.stdout))
    searched, produced, planned, done_ = answers
    assert [m["value"]["text"] for m in searched["messages"]] == ['{"id": 5}']
    assert produced["message"] == "produced to orders, partition 0, offset 1"
    assert planned["rows"] == [{"topic": "orders", "partition": 0, "committed": 1, "new": 0, "change": -1}]
    assert done_["message"] == "1 offsets of billing were set"


def test_every_expression_of_the_document_can_be_read() -> None:
    from kavka.console.expressions import compile_expression

    (block,) = re.findall(r"^```text\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    for line in block.splitlines():
        compile_expression(line)
