from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kavka.broker.settings import Settings
from kavka.cli import running, server, shards
from kavka.common.config import ConfigError

CLUSTER = {"zookeeper.connect": "localhost:2181", "broker.id": "4", "log.dirs": "/a,/b"}


def planned(count: int, **changes: str) -> list[Settings]:
    """Return the settings of all brokers of a unit."""
    static = CLUSTER | {name.replace("_", "."): value for name, value in changes.items()}
    return [
        Settings(static | dict(text.split("=", 1) for text in shard.overrides))
        for shard in shards.plan(Settings(static), count)
    ]


def test_ids_ports_and_folders_of_the_brokers_are_consecutive() -> None:
    brokers = planned(
        3, listeners="PLAINTEXT://:9092,SSL://[::1]:9192", advertised_listeners="PLAINTEXT://k.example.org:19092",
        metrics_listener="http://localhost:9404", node_id="4",
    )  # fmt: skip
    assert [broker.broker_id for broker in brokers] == [4, 5, 6]
    assert [str(listener) for listener in brokers[2].listeners] == ["PLAINTEXT://:9094", "SSL://[::1]:9194"]
    assert [broker.advertised_listeners[0].port for broker in brokers] == [19092, 19093, 19094]
    assert brokers[1].log_dirs == (Path("/a/broker.5"), Path("/b/broker.5"))
    assert [broker.metrics_listener for broker in brokers] == [("127.0.0.1", 9405 + index) for index in range(3)]


def test_rack_is_the_machine_unless_it_is_set() -> None:
    assert {broker.broker_rack for broker in planned(2)} == {socket.gethostname()}
    assert {broker.broker_rack for broker in planned(2, broker_rack="room-1")} == {"room-1"}


def test_port_0_stays_a_free_port() -> None:
    assert [broker.listeners[0].port for broker in planned(2, listeners="PLAINTEXT://:0")] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "count", "words"),
    [
        ({"zookeeper_connect": ""}, 2, "zookeeper.connect: must be set with --shards"),
        ({"broker_id": "-1"}, 2, "broker.id: must be set with --shards"),
        ({"metrics_listener": "http://localhost:0"}, 2, "metrics.listener: port 0"),
        ({"listeners": "PLAINTEXT://:9092,SSL://:9093"}, 2, "broker 4 and broker 5 would both use port 9093"),
        ({"listeners": "PLAINTEXT://:9092", "metrics_listener": "http://localhost:9093"}, 2, "use port 9093"),
        ({"listeners": "PLAINTEXT://:65535"}, 2, "65536"),
        ({"broker_id": "1000"}, 2, "reserved.broker.max.id"),
    ],
)
def test_impossible_unit_is_refused(changes: dict[str, str], count: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        planned(count, **changes)


def check(path: Path, count: int) -> None:
    settings = Settings(CLUSTER | {"log.dirs": str(path)})
    shards.check_folders(settings, shards.plan(settings, count))


def test_fewer_brokers_are_refused_while_the_others_have_partitions(tmp_path: Path) -> None:
    check(tmp_path / "missing", 1)
    for broker_id in (4, 5):
        (tmp_path / f"broker.{broker_id}" / "orders-0").mkdir(parents=True)
    check(tmp_path, 2)
    check(tmp_path, 3)
    with pytest.raises(ConfigError, match=r"broker\.5 has partitions of broker 5.*kafka-reassign-partitions"):
        check(tmp_path, 1)
    (tmp_path / "broker.5" / "orders-0").rmdir()
    (tmp_path / "broker.5" / "meta.properties").write_text("version=0\n")
    check(tmp_path, 1)


def test_data_of_a_broker_without_shards_is_not_ignored(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=0\nbroker.id=4\n")
    with pytest.raises(ConfigError, match=r"move all files of the folder to .*broker\.4"):
        check(tmp_path, 2)


def test_data_of_a_unit_is_not_ignored_without_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broker.0").mkdir()
    (tmp_path / "broker.0" / "meta.properties").write_text("version=0\n")
    assert server.main(["--override", f"log.dirs={tmp_path}"]) == 1
    assert capsys.readouterr().err.endswith("broker.0; add --shards\n")


def test_brokers_of_a_supervisor_are_recognised_by_their_folders() -> None:
    supervisor = running.RunningSupervisor(1, "1", "", ["/a", "/b"])
    assert supervisor.has_broker(running.RunningBroker(2, "1", "", 0, ["/a/broker.0", "/b/broker.0"]))
    assert not supervisor.has_broker(running.RunningBroker(2, "1", "", 0, ["/a"]))
    assert not supervisor.has_broker(running.RunningBroker(2, "1", "", 0, []))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--shards", "2"], "zookeeper.connect: must be set with --shards"),
        (["--shards", "none"], "--shards none: it must be auto or a number"),
        (["--shards", "2", "--override", "zookeeper.connect=x:1", "--override", "broker.id=1000"], "reserved.broker"),
    ],
)
def test_impossible_unit_is_reported_in_one_line(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server.main(argv) == 1
    output = capsys.readouterr()
    assert words in output.err
    assert output.err.count("\n") == 1
