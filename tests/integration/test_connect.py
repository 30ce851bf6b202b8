"""Workers of Connect: REST as Apache's, connectors shared out, taken over, failing on their own,
dead letters."""

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
    """Two of one group."""
    made: list[ConnectWorker] = []
    more = {"exactly.once.source.support": "enabled"}
    try:
        for number in range(2):
            place = folder / str(number)
            place.mkdir()
            made.append(ConnectWorker(place, target.bootstrap_servers, f"connect-{folder.name}", folder, **more))
        for worker in made:
            worker.wait_until_ready()
        yield made
        for worker in made:
            assert worker.process.stop(120) == 0, worker.process.log_tail()
    finally:
        for worker in made:
            worker.process.kill()


@pytest.fixture
def admin(target: Target) -> Iterator[Admin]:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


def fill(target: Target, topic: str, values: list[bytes | None]) -> None:
    with Producer(bootstrap_servers=target.bootstrap_servers) as producer:
        for number, value in enumerate(values):
            producer.send(topic, value=value, key=f"k{number}", headers=[("h", b"1")])


def leader_of(workers: list[ConnectWorker]) -> ConnectWorker | None:
    """As the first of them has last heard; None: one that is not among them."""
    last = workers[0].log().rpartition("the leader is ")[2].split(",")[0]
    return next((worker for worker in workers if worker.name == last), None)


def test_the_rest_interface_responds_as_apaches_does(workers: list[ConnectWorker], folder: Path) -> None:
    (folder / "in.txt").write_text("one\ntwo\n")
    leader = leader_of(workers)
    assert leader is not None
    ours = connect_requests.conversation(leader.url, str(folder))
    assert len(ours) == len(json.loads(GOLDEN.read_text()))
    for mine, theirs in zip(ours, json.loads(GOLDEN.read_text()), strict=True):
        assert mine == theirs


def test_a_client_that_we_did_not_write_manages_connectors(
    workers: list[ConnectWorker], folder: Path, target: Target, topic: str
) -> None:
    from kafka_connect import KafkaConnect

    (folder / "managed.txt").write_text("a\nb\n")
    client = KafkaConnect(url=workers[1].url)
    assert client.get_cluster_info()["version"] == "3.9.1"
    assert SOURCE in {plugin["class"] for plugin in client.list_connector_plugins()}
    config = {"connector.class": "FileStreamSource", "file": str(folder / "managed.txt"), "topic": topic}
    checked = client.validate_connector_config("FileStreamSource", {**config, "topic": None, "tasks.max": "0"})
    wrong = {
        check["value"]["name"]: check["value"]["errors"] for check in checked["configs"] if check["value"]["errors"]
    }
    assert set(wrong) == {"name", "topic", "tasks.max"}
    assert wrong["topic"] == ['Missing required configuration "topic" which has no default value.']
    assert wrong["tasks.max"][0].startswith("Invalid value 0 for configuration tasks.max: ")
    made = client.create_connector({"name": "managed", "config": config})
    assert made["name"] == "managed"
    workers[1].wait_for_task("managed", "RUNNING")
    wait_until(
        lambda: client.list_connector_topics("managed") == {"managed": {"topics": [topic]}}, timeout=TIMEOUT_S,
        what="the topic is known", interval=0.2,
    )  # fmt: skip
    wait_until(
        lambda: [bytes(record.value) for record in read_all(target, topic)] == [b"a", b"b"], timeout=TIMEOUT_S,
        what="the lines are there", interval=0.5,
    )  # fmt: skip
    assert client.get_connector("managed")["type"] == "source"
    client.pause_connector("managed")
    workers[0].wait_for_task("managed", "PAUSED")
    client.resume_connector("managed")
    workers[0].wait_for_task("managed", "RUNNING")
    client.restart_connector("managed", include_tasks=True)
    workers[0].wait_for_task("managed", "RUNNING")
    offsets = workers[0].ask("GET", "/connectors/managed/offsets")[1]["offsets"]
    assert offsets[0]["partition"] == {"filename": str(folder / "managed.txt")}
    assert offsets[0]["offset"]["position"] == 4
    client.delete_connector("managed")
    wait_until(lambda: not workers[0].status("managed"), timeout=TIMEOUT_S, what="it is gone", interval=0.2)


def test_the_commands_of_the_page_work(workers: list[ConnectWorker]) -> None:
    page = (Path(connect_requests.__file__).parents[2] / "docs" / "connect.md").read_text()
    script = page.partition("```sh\ncurl")[2].partition("```")[0]
    need_command("curl")
    for number, line in enumerate(f"curl{script}".strip().splitlines()):
        if number > 1:
            # A reader pauses between the commands of the page; the test waits for the effect of
            # each.
            workers[0].wait_for("people", lambda status: bool(status["tasks"]), "it is known")
        done = subprocess.run(
            ["sh", "-c", line.replace("localhost:8083", workers[0].name)], capture_output=True, text=True, check=True
        )
        assert "error_code" not in done.stdout, done.stdout


def test_a_poison_record_is_kept_in_the_dead_letter_topic_or_fails_the_task(
    workers: list[ConnectWorker], folder: Path, target: Target, admin: Admin, topic: str
) -> None:
    admin.create_topics([NewTopic(topic, 1)])
    poison = [b'{"id": 1}', b"nonsense", b'{"id": "x"}', b'{"id": 2}']
    fill(target, topic, poison)
    common = {
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
        **common,
        "file": str(folder / "good.txt"),
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": f"{topic}-dead",
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    workers[0].create("tolerant", tolerant)
    workers[0].create("strict", {**common, "file": str(folder / "strict.txt")})
    failed = workers[0].wait_for_task("strict", "FAILED")
    assert "TRANSFORMATION" in failed["tasks"][0]["trace"] or "VALUE_CONVERTER" in failed["tasks"][0]["trace"]
    assert failed["connector"]["state"] == "RUNNING"
    out = folder / "good.txt"
    wait_until(
        lambda: out.exists() and out.read_text().split() == ["1", "2"], timeout=TIMEOUT_S, what="the good are written",
        interval=0.5,
    )  # fmt: skip
    assert workers[0].status("tolerant")["tasks"][0]["state"] == "RUNNING"
    dead = read_all(target, f"{topic}-dead")
    assert [(bytes(record.key), bytes(record.value)) for record in dead] == [(b"k1", poison[1]), (b"k2", poison[2])]
    headers = [{name: value.decode() for name, value in record.headers} for record in dead]
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
    fill(target, topic, [b'{"id": 3}'])
    wait_until(lambda: out.read_text().split() == ["1", "2", "3"], timeout=TIMEOUT_S, what="it goes on", interval=0.5)
    for name in ("tolerant", "strict"):
        assert workers[0].ask("DELETE", f"/connectors/{name}")[0] == 204


def test_connectors_are_shared_out_and_taken_over_when_a_worker_dies(
    workers: list[ConnectWorker], folder: Path, target: Target, topic: str
) -> None:
    """It kills a worker, which leaves one. Lines arrive once, whatever died in between."""
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
        what="each worker has one", interval=0.5,
    )  # fmt: skip
    dead = workers[1]
    name = next(name for name in names if workers[0].status(name)["tasks"][0]["worker_id"] == dead.name)
    wait_until(lambda: len(read_all(target, f"{topic}-{name}")) == 50, timeout=TIMEOUT_S, what="50 lines", interval=0.5)
    with (folder / f"{name}.txt").open("a") as file:
        file.write("".join(f"{name} {number}\n" for number in range(50, 100)))
    dead.process.kill()
    workers.remove(dead)
    workers[0].wait_for(
        name,
        lambda s: [(t["state"], t["worker_id"]) for t in s["tasks"]] == [("RUNNING", workers[0].name)],
        "it is taken over",
    )
    wait_until(
        lambda: len(read_all(target, f"{topic}-{name}")) >= 100, timeout=TIMEOUT_S, what="all lines", interval=0.5
    )
    lines = [bytes(record.value).decode() for record in read_all(target, f"{topic}-{name}")]
    assert lines == [f"{name} {number}" for number in range(100)]
    for name in names:
        assert workers[0].ask("DELETE", f"/connectors/{name}")[0] == 204


def test_a_killed_single_worker_resumes_after_a_restart(
    workers: list[ConnectWorker], folder: Path, target: Target, topic: str
) -> None:
    """The last test of this file. A paused connector stays paused; lines and records are stored
    once."""
    while len(workers) > 1:
        workers.pop().process.stop(120)
    (worker,) = workers
    wait_until(lambda: leader_of(workers) is worker, timeout=TIMEOUT_S, what="it is alone", interval=0.2)
    names = ["moving-sink", "moving-source", "resting-source"]
    files = {name: folder / f"{name}.txt" for name in names}
    for name in names[1:]:
        files[name].write_text("".join(f"{number}\n" for number in range(50)))
        made = {"topic.creation.default.partitions": "1", "topic.creation.default.replication.factor": "1"}
        config = {"connector.class": SOURCE, "file": str(files[name]), "topic": f"{topic}-{name}", **made}
        worker.create(name, config)
    sink = {"connector.class": SINK, "file": str(files["moving-sink"]), "topics": f"{topic}-moving-source"}
    worker.create("moving-sink", {**sink, "exactly.once": "true"})
    expect_lines(files["moving-sink"], 50)
    wait_until(
        lambda: len(read_all(target, f"{topic}-resting-source")) == 50, timeout=TIMEOUT_S, what="50 lines", interval=0.5
    )
    assert worker.ask("PUT", "/connectors/resting-source/pause")[0] == 202
    worker.wait_for_task("resting-source", "PAUSED")
    offsets = worker.ask("GET", "/connectors/resting-source/offsets")
    for name in names[1:]:
        with files[name].open("a") as file:
            file.write("".join(f"{number}\n" for number in range(50, 2000)))
    worker.kill_and_start()
    worker.wait_until_ready()
    assert sorted(worker.ask("GET", "/connectors")[1]) == names
    for name, state in zip(names, ("RUNNING", "RUNNING", "PAUSED"), strict=True):
        worker.wait_for_task(name, state)
    expect_lines(files["moving-sink"], 2000)
    assert numbers(read_all(target, f"{topic}-moving-source")) == list(range(2000))
    assert worker.ask("GET", "/connectors/resting-source/offsets") == offsets
    assert numbers(read_all(target, f"{topic}-resting-source")) == list(range(50))
    assert worker.ask("PUT", "/connectors/resting-source/resume")[0] == 202
    wait_until(
        lambda: len(read_all(target, f"{topic}-resting-source")) >= 2000, timeout=TIMEOUT_S, what="it goes on",
        interval=0.5,
    )  # fmt: skip
    assert numbers(read_all(target, f"{topic}-resting-source")) == list(range(2000))


def numbers(records: list[Any]) -> list[int]:
    return [int(bytes(record.value)) for record in records]


def expect_lines(file: Path, count: int) -> None:
    """The numbers up to `count` in their order, as there is one partition, and nothing else."""

    def there() -> bool:
        return file.exists() and file.read_text().count("\n") >= count

    wait_until(there, timeout=TIMEOUT_S, what=f"{count} lines in {file.name}", interval=0.2)
    assert file.read_text().split() == [str(number) for number in range(count)]
