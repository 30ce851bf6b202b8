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
    with folder.locked(create=True):
        folder.plan_zookeeper(21_810)
        folder.plan_brokers(brokers, 29_092, overrides)
    return folder


def settings(member: Member) -> dict[str, str]:
    return parse_properties(member.config.read_text())


def test_members_are_read_back_with_different_ports_data_and_logs(tmp_path: Path) -> None:
    planned(tmp_path, 3)
    folder = ClusterFolder(tmp_path)
    assert [member.name for member in folder.members] == ["zookeeper", "broker 0", "broker 1", "broker 2"]
    assert not any(member.is_alive for member in folder.members)
    assert len({member.port for member in folder.members}) == 4
    assert len({settings(broker)["log.dirs"] for broker in folder.brokers}) == 3
    for broker in folder.brokers:
        properties = settings(broker)
        assert properties["broker.id"] == str(broker.id)
        assert properties["listeners"] == f"PLAINTEXT://{broker.address}"
        assert properties["zookeeper.connect"] == folder.zookeeper.address
        assert properties["offsets.topic.replication.factor"] == "3"


def test_replication_factor_is_limited_by_the_number_of_brokers(tmp_path: Path) -> None:
    folder = planned(tmp_path, 1)
    properties = settings(folder.brokers[0])
    assert (properties["default.replication.factor"], properties["transaction.state.log.min.isr"]) == ("1", "1")


def test_overrides_and_edits_are_preserved_when_brokers_are_added(tmp_path: Path) -> None:
    folder = planned(tmp_path, 1, "num.partitions=7")
    with folder.brokers[0].config.open("a") as file:
        file.write("log.retention.hours=1\n")
    with folder.locked():
        folder.plan_brokers(2, 29_092, ["message.max.bytes=5"])
    first, second = (settings(broker) for broker in ClusterFolder(tmp_path).brokers)
    assert (first["num.partitions"], first["log.retention.hours"], first["message.max.bytes"]) == ("7", "1", "5")
    assert (second["num.partitions"], second["message.max.bytes"]) == ("7", "5")
    assert "log.retention.hours" not in second


def test_process_that_reuses_the_pid_is_not_a_member(tmp_path: Path) -> None:
    member = Member(tmp_path, 1, 0, os.getpid(), running.start_time(os.getpid()))
    other = Member(tmp_path, 1, 0, os.getpid(), "1")
    assert member.is_alive and not other.is_alive
    other.kill()


def test_port_in_use_is_skipped() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert _free_port(port, ()) > port
        assert _free_port(port, (port + 1,)) > port + 1


def test_lock_excludes_other_commands(tmp_path: Path) -> None:
    folder = planned(tmp_path, 1)
    with folder.locked(), pytest.raises(ToolError, match="another command"), ClusterFolder(tmp_path).locked():
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"members": []}', json.dumps({"members": [{"colour": "blue"}]})])
def test_corrupt_file_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ToolError, match="is corrupt; delete"):
        ClusterFolder(tmp_path)
