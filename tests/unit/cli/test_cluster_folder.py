from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from kavka.cli import running
from kavka.cli.cluster_folder import ClusterFolder, Member, _free_port
from kavka.cli.tool import ToolError
from kavka.common.properties import parse_properties


def planned(path: Path, brokers: int, *overrides: str) -> ClusterFolder:
    folder = ClusterFolder(path)
    with folder.locked(make=True):
        folder.plan_zookeeper(21_810)
        folder.plan_brokers(brokers, 29_092, overrides)
    return folder


def settings(member: Member) -> dict[str, str]:
    return parse_properties(member.config.read_text())


def test_a_plan_is_read_back_and_each_member_has_its_own_port_data_and_log(tmp_path: Path) -> None:
    planned(tmp_path, 3)
    folder = ClusterFolder(tmp_path)
    assert [member.name for member in folder.members] == ["zookeeper", "broker 0", "broker 1", "broker 2"]
    assert not any(member.alive for member in folder.members)
    assert len({member.port for member in folder.members}) == 4
    assert len({settings(broker)["log.dirs"] for broker in folder.brokers}) == 3
    for broker in folder.brokers:
        found = settings(broker)
        assert found["broker.id"] == str(broker.id)
        assert found["listeners"] == f"PLAINTEXT://{broker.address}"
        assert found["zookeeper.connect"] == folder.zookeeper.address
        assert found["offsets.topic.replication.factor"] == "3"


def test_a_small_cluster_has_as_many_replicas_as_brokers(tmp_path: Path) -> None:
    folder = planned(tmp_path, 1)
    found = settings(folder.brokers[0])
    assert (found["default.replication.factor"], found["transaction.state.log.min.isr"]) == ("1", "1")


def test_overrides_and_what_somebody_wrote_into_the_file_are_kept_when_it_grows(tmp_path: Path) -> None:
    folder = planned(tmp_path, 1, "num.partitions=7")
    with folder.brokers[0].config.open("a") as file:
        file.write("log.retention.hours=1\n")
    with folder.locked():
        folder.plan_brokers(2, 29_092, ["message.max.bytes=5"])
    first, second = (settings(broker) for broker in ClusterFolder(tmp_path).brokers)
    assert (first["num.partitions"], first["log.retention.hours"], first["message.max.bytes"]) == ("7", "1", "5")
    assert (second["num.partitions"], second["message.max.bytes"]) == ("7", "5")
    assert "log.retention.hours" not in second


def test_another_process_with_the_same_id_is_not_a_member(tmp_path: Path) -> None:
    mine = Member(tmp_path, 1, 0, os.getpid(), running.start_time(os.getpid()))
    other = Member(tmp_path, 1, 0, os.getpid(), "1")
    assert mine.alive and not other.alive
    other.kill()


def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert _free_port(port, ()) > port
        assert _free_port(port, (port + 1,)) > port + 1


def test_only_one_command_works_at_a_time(tmp_path: Path) -> None:
    folder = planned(tmp_path, 1)
    with folder.locked(), pytest.raises(ToolError, match="another command"), ClusterFolder(tmp_path).locked():
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"members": []}', json.dumps({"members": [{"colour": "blue"}]})])
def test_a_file_that_is_not_readable_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ToolError, match="begin anew"):
        ClusterFolder(tmp_path)
