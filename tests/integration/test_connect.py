"""Distributed Connect workers: REST interface, assignment of connectors to workers, failover, dead
letter topics."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, NewTopic, Producer
from tests.support import connect_requests
from tests.support.connect_worker import TIMEOUT_S, ConnectWorker
from tests.support.missing import need_command
from tests.support.our_consumer import read_all
from tests.support.processes import wait_until
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]

GOLDEN = Path(connect_requests.__file__).parents[1] / "golden" / "connect-rest-3.9.1.json"
SOURCE, SINK = connect_requests.SOURCE, connect_requests.SINK


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("connect")


@pytest.fixture(scope="module")
def workers(target: Target, folder: Path) -> Iterator[list[ConnectWorker]]:
    """Two workers of one group."""
    workers: list[ConnectWorker] = []
    settings = {"exactly.once.source.support": "enabled"}
    try:
        for number in range(2):
            worker_folder = folder / str(number)
            worker_folder.mkdir()
            workers.append(
                ConnectWorker(worker_folder, target.bootstrap_servers, f"connect-{folder.name}", folder, **settings)
            )
        for worker in workers:
            worker.wait_until_ready()
        yield workers
        for worker in workers:
            assert worker.process.stop(120) == 0, worker.process.log_tail()
    finally:
        for worker in workers:
            worker.process.kill()


@pytest.fixture
def admin(target: Target) -> Iterator[Admin]:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


def produce(target: Target, topic: str, values: list[bytes | None]) -> None:
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value=value, key=f"k{number}", headers=[("h", b"1")])


def find_leader(workers: list[ConnectWorker]) -> ConnectWorker | None:
    """Return the leader according to the first worker's log, or None if it is not in `workers`."""
    leader_name = workers[0].log().rpartition("the leader is ")[2].split(",")[0]
    return next((worker for worker in workers if worker.name == leader_name), None)


def test_the_rest_interface_responds_like_apaches(workers: list[ConnectWorker], folder: Path) -> None:
    (folder / "in.txt").write_text("one\ntwo\n")
    leader = find_leader(workers)
    assert leader is not None
    responses = connect_requests.conversation(leader.url, str(folder))
    assert len(responses) == len(json.loads(GOLDEN.read_text()))
    for response, expected in zip(responses, json.loads(GOLDEN.read_text()), strict=True):
        assert response == expected


def test_a_third_party_client_manages_connectors(
    workers: list[ConnectWorker], folder: Path, target: Target, topic: str
) -> None:
    from kafka_connect import KafkaConnect

    (folder / "managed.txt").write_text("a\nb\n")
    client = KafkaConnect(url=workers[1].url)
    assert client.get_cluster_info()["version"] == "3.9.1"
    assert SOURCE in {plugin["class"] for plugin in client.list_connector_plugins()}
    config = {"connector.class": "FileStreamSource", "file": str(folder / "managed.txt"), "topic": topic}
    validation = client.validate_connector_config("FileStreamSource", {**config, "topic": None, "tasks.max": "0"})
    errors = {
        check["value"]["name"]: check["value"]["errors"] for check in validation["configs"] if check["value"]["errors"]
    }
    assert set(errors) == {"name", "topic", "tasks.max"}
    assert errors["topic"] == ['Missing required configuration "topic" which has no default value.']
    assert errors["tasks.max"][0].startswith("Invalid value 0 for configuration tasks.max: ")
    created = client.create_connector({"name": "managed", "config": config})
    assert created["name"] == "managed"
    workers[1].wait_for_task("managed", "RUNNING")
    wait_until(
        lambda: client.list_connector_topics("managed") == {"managed": {"topics": [topic]}}, timeout=TIMEOUT_S,
        what="the topic in the list of the connector", interval=0.2,
    )  # fmt: skip
    wait_until(
        lambda: [bytes(record.value) for record in read_all(target, topic)] == [b"a", b"b"], timeout=TIMEOUT_S,
        what="the topic contains both lines", interval=0.5,
    )  # fmt: skip
    assert client.get_connector("managed")["type"] == "source"
    client.pause_connector("managed")
    workers[0].wait_for_task("managed", "PAUSED")
    client.resume_connector("managed")
    workers[0].wait_for_task("managed", "RUNNING")
    client.restart_connector("managed", include_tasks=True)
    workers[0].wait_for_task("managed", "RUNNING")
    offsets = workers[0].request("GET", "/connectors/managed/offsets")[1]["offsets"]
    assert offsets[0]["partition"] == {"filename": str(folder / "managed.txt")}
    assert offsets[0]["offset"]["position"] == 4
    client.delete_connector("managed")
    wait_until(
        lambda: not workers[0].status("managed"), timeout=TIMEOUT_S, what="the connector is deleted", interval=0.2
    )


def test_the_documented_curl_commands_work(workers: list[ConnectWorker]) -> None:
    page = (Path(connect_requests.__file__).parents[2] / "docs" / "connect.md").read_text()
    script = page.partition("```sh\ncurl")[2].partition("```")[0]
    need_command("curl")
    for number, line in enumerate(f"curl{script}".strip().splitlines()):
        if number > 1:
            # Requests are asynchronous: wait for the effect of the previous command.
            workers[0].wait_for("people", lambda status: bool(status["tasks"]), "the connector has tasks")
        result = subprocess.run(
            ["sh", "-c", line.replace("localhost:8083", workers[0].name)], capture_output=True, text=True, check=True
        )
        assert "error_code" not in result.stdout, result.stdout


def test_an_invalid_record_goes_to_the_dead_letter_topic_or_fails_the_task(
    workers: list[ConnectWorker], folder: Path, target: Target, admin: Admin, topic: str
) -> None:
    """One test of many steps, because a connector takes seconds to start."""
    admin.create_topics([NewTopic(topic, 1)])
    values = [b'{"id": 1}', b"nonsense", b'{"id": "x"}', b'{"id": 2}']
    produce(target, topic, values)
    config = {
        "connector.class": SINK,
        "topics": topic,
        "value.converter": "JsonConverter",
        "value.converter.schemas.enable": "false",
        "transforms": "id,number",
        "transforms.id.type": "org.apache.kafka.connect.transforms.ExtractField$Value",
        "transforms.id.field": "id",
        "transforms.number.type": "org.apache.kafka.connect.transforms.Cast$Value",
        "transforms.number.spec": "int32",
    }
    tolerant = {
        **config,
        "file": str(folder / "good.txt"),
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": f"{topic}-dead",
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    workers[0].create("tolerant", tolerant)
    workers[0].create("strict", {**config, "file": str(folder / "strict.txt")})
    status = workers[0].wait_for_task("strict", "FAILED")
    assert "TRANSFORMATION" in status["tasks"][0]["trace"] or "VALUE_CONVERTER" in status["tasks"][0]["trace"]
    assert status["connector"]["state"] == "RUNNING"
    output = folder / "good.txt"
    wait_until(
        lambda: output.exists() and output.read_text().split() == ["1", "2"],
        timeout=TIMEOUT_S,
        what="the valid records are written",
        interval=0.5,
    )
    assert workers[0].status("tolerant")["tasks"][0]["state"] == "RUNNING"
    dead_letters = read_all(target, f"{topic}-dead")
    assert [(bytes(record.key), bytes(record.value)) for record in dead_letters] == [
        (b"k1", values[1]),
        (b"k2", values[2]),
    ]
    headers = [{name: value.decode() for name, value in record.headers} for record in dead_letters]
    prefix = "__connect.errors."
    for number, header in enumerate(headers, start=1):
        assert header["h"] == "1"
        assert header[f"{prefix}topic"] == topic
        assert header[f"{prefix}partition"] == "0"
        assert header[f"{prefix}offset"] == str(number)
        assert header[f"{prefix}connector.name"] == "tolerant"
        assert header[f"{prefix}task.id"] == "0"
        assert header[f"{prefix}exception.class.name"] == "org.apache.kafka.connect.errors.DataException"
    assert [header[f"{prefix}stage"] for header in headers] == ["VALUE_CONVERTER", "TRANSFORMATION"]
    assert headers[0][f"{prefix}class.name"] == "org.apache.kafka.connect.json.JsonConverter"
    assert headers[1][f"{prefix}class.name"] == "org.apache.kafka.connect.transforms.Cast$Value"
    assert headers[1][f"{prefix}exception.message"] == "Value (x) was out of range for requested data type"
    produce(target, topic, [b'{"id": 3}'])
    wait_until(
        lambda: output.read_text().split() == ["1", "2", "3"], timeout=TIMEOUT_S, what="the next record", interval=0.5
    )
    for name in ("tolerant", "strict"):
        assert workers[0].request("DELETE", f"/connectors/{name}")[0] == 204


def test_connectors_are_spread_over_workers_and_move_when_a_worker_is_killed(
    workers: list[ConnectWorker], folder: Path, target: Target, topic: str
) -> None:
    """Each line is produced exactly once. Afterwards only one worker is running."""
    names = ["first", "second"]
    for name in names:
        (folder / f"{name}.txt").write_text("".join(f"{name} {number}\n" for number in range(50)))
        config = {"connector.class": SOURCE, "file": str(folder / f"{name}.txt"), "topic": f"{topic}-{name}"}
        workers[0].create(name, config)
    owners = {}
    for name in names:
        owners[name] = workers[0].wait_for_task(name, "RUNNING")["tasks"][0]["worker_id"]
    wait_until(
        lambda: len({workers[0].status(name)["tasks"][0]["worker_id"] for name in names}) == 2, timeout=TIMEOUT_S,
        what="each worker has one connector", interval=0.5,
    )  # fmt: skip
    killed = workers[1]
    name = next(name for name in names if workers[0].status(name)["tasks"][0]["worker_id"] == killed.name)
    wait_until(lambda: len(read_all(target, f"{topic}-{name}")) == 50, timeout=TIMEOUT_S, what="50 lines", interval=0.5)
    with (folder / f"{name}.txt").open("a") as file:
        file.write("".join(f"{name} {number}\n" for number in range(50, 100)))
    killed.process.kill()
    workers.remove(killed)
    workers[0].wait_for(
        name,
        lambda s: [(t["state"], t["worker_id"]) for t in s["tasks"]] == [("RUNNING", workers[0].name)],
        "the connector runs on the other worker",
    )
    wait_until(
        lambda: len(read_all(target, f"{topic}-{name}")) >= 100, timeout=TIMEOUT_S, what="all lines", interval=0.5
    )
    lines = [bytes(record.value).decode() for record in read_all(target, f"{topic}-{name}")]
    assert lines == [f"{name} {number}" for number in range(100)]
    for name in names:
        assert workers[0].request("DELETE", f"/connectors/{name}")[0] == 204


def test_a_killed_single_worker_resumes_after_a_restart(
    workers: list[ConnectWorker], folder: Path, target: Target, topic: str
) -> None:
    """This test must be the last in the file: it stops all other workers. A paused connector stays
    paused. Each line is written exactly once."""
    while len(workers) > 1:
        workers.pop().process.stop(120)
    (worker,) = workers
    wait_until(
        lambda: find_leader(workers) is worker,
        timeout=TIMEOUT_S,
        what="the remaining worker is the leader",
        interval=0.2,
    )
    names = ["active-sink", "active-source", "paused-source"]
    files = {name: folder / f"{name}.txt" for name in names}
    for name in names[1:]:
        files[name].write_text("".join(f"{number}\n" for number in range(50)))
        topic_creation = {"topic.creation.default.partitions": "1", "topic.creation.default.replication.factor": "1"}
        config = {"connector.class": SOURCE, "file": str(files[name]), "topic": f"{topic}-{name}", **topic_creation}
        worker.create(name, config)
    sink = {"connector.class": SINK, "file": str(files["active-sink"]), "topics": f"{topic}-active-source"}
    worker.create("active-sink", {**sink, "exactly.once": "true"})
    expect_lines(files["active-sink"], 50)
    wait_until(
        lambda: len(read_all(target, f"{topic}-paused-source")) == 50, timeout=TIMEOUT_S, what="50 lines", interval=0.5
    )
    assert worker.request("PUT", "/connectors/paused-source/pause")[0] == 202
    worker.wait_for_task("paused-source", "PAUSED")
    offsets = worker.request("GET", "/connectors/paused-source/offsets")
    for name in names[1:]:
        with files[name].open("a") as file:
            file.write("".join(f"{number}\n" for number in range(50, 2000)))
    worker.kill_and_start()
    worker.wait_until_ready()
    assert sorted(worker.request("GET", "/connectors")[1]) == names
    for name, state in zip(names, ("RUNNING", "RUNNING", "PAUSED"), strict=True):
        worker.wait_for_task(name, state)
    expect_lines(files["active-sink"], 2000)
    assert numbers(read_all(target, f"{topic}-active-source")) == list(range(2000))
    assert worker.request("GET", "/connectors/paused-source/offsets") == offsets
    assert numbers(read_all(target, f"{topic}-paused-source")) == list(range(50))
    assert worker.request("PUT", "/connectors/paused-source/resume")[0] == 202
    wait_until(
        lambda: len(read_all(target, f"{topic}-paused-source")) >= 2000, timeout=TIMEOUT_S, what="2000 lines",
        interval=0.5,
    )  # fmt: skip
    assert numbers(read_all(target, f"{topic}-paused-source")) == list(range(2000))


def numbers(records: list[Any]) -> list[int]:
    return [int(bytes(record.value)) for record in records]


def expect_lines(file: Path, count: int) -> None:
    """Wait until the file contains the numbers below `count` in order, and nothing else."""

    def has_lines() -> bool:
        return file.exists() and file.read_text().count("\n") >= count

    wait_until(has_lines, timeout=TIMEOUT_S, what=f"{count} lines in {file.name}", interval=0.2)
    assert file.read_text().split() == [str(number) for number in range(count)]
