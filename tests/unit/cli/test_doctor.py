"""The checks of `kavka doctor`: the state of each finding, and its remedy."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kavka.cli import doctor
from kavka.cli.doctor import ADVICE, OK, PROBLEM
from kavka.runtimes import MissingRuntime


def fails_with(message: str):
    def fail(*_: object) -> None:
        raise MissingRuntime(message)

    return fail


def test_the_exit_code_is_1_with_a_problem(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    usage = SimpleNamespace(free=100 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    arguments = ["--json", "--data", str(tmp_path)]
    assert doctor.main(arguments) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"Python", "form", "Java", "Spark", "disk", "clock", "files", "port 9092"} <= {
        f["subject"] for f in findings
    }
    usage.free = 3 << 20
    assert doctor.main(arguments) == 1
    (disk,) = [f for f in json.loads(capsys.readouterr().out) if f["subject"] == "disk"]
    assert (disk["state"], disk["text"]) == (PROBLEM, f"{tmp_path} has 3 MiB of free space")
    assert doctor.main(arguments[1:]) == 1
    assert "problem disk:" in capsys.readouterr().out


def test_the_form_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_compiled", lambda: True)
    assert doctor.check_form().state == OK
    monkeypatch.setattr(doctor, "is_compiled", lambda: False)
    assert doctor.check_form().state == ADVICE
    assert "C compiler" in doctor.check_form().text


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda module: None if module in ("kazoo", "jinja2") else module)
    (finding,) = doctor.check_packages()
    assert (finding.state, finding.text) == (ADVICE, "not installed: console, cluster")
    assert finding.remedy.endswith("pip install 'kavka[console,cluster]'")
    monkeypatch.setattr(doctor, "find_spec", lambda module: None if module == "uvloop" else module)
    assert [finding.state for finding in doctor.check_packages()] == [OK, PROBLEM]


def test_missing_java_and_spark_are_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_java", fails_with("no Java"))
    monkeypatch.setattr(doctor, "pyspark_version", fails_with("no PySpark"))
    assert doctor.check_java() == ("Java", ADVICE, "ZooKeeper and Spark will not start: no Java", "")
    assert doctor.check_spark().text.endswith("no PySpark")


def test_pandas_3_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "pyspark_version", lambda: "4.3.0")
    monkeypatch.setattr(doctor, "find_spec", lambda module: module)
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "3.0.1")
    assert doctor.check_spark() == ("Spark", PROBLEM, "PySpark 4.3.0 with pandas 3.0.1", "pip install 'pandas<3'")


def test_a_port_in_use_is_advice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        finding = doctor.check_port(port, "the broker")
    assert (finding.subject, finding.state) == (f"port {port}", ADVICE)
    assert "server-stop" in finding.remedy
    assert doctor.check_port(port, "the broker").state == OK


@pytest.mark.parametrize(("hard", "state"), [(1024, PROBLEM), (100_000, OK), (resource.RLIM_INFINITY, OK)])
def test_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch, hard: int, state: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, hard))
    assert doctor.check_files().state == state


@pytest.mark.parametrize(("file_system", "state"), [("ext4", OK), ("tmpfs", ADVICE), ("nfs4", ADVICE), ("", OK)])
def test_the_file_system_of_the_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file_system: str, state: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 << 30))
    monkeypatch.setattr(doctor, "_file_system", lambda _: file_system)
    finding = doctor.check_disk(tmp_path / "not" / "created")
    assert finding.state == state
    assert str(tmp_path) in finding.text


def test_a_folder_that_is_not_writable_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert doctor.check_disk(tmp_path).state == PROBLEM


def test_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for synchronized, state in ((True, OK), (None, OK), (False, ADVICE)):
        monkeypatch.setattr(doctor, "_is_synchronized", lambda synchronized=synchronized: synchronized)
        assert doctor.check_clock().state == state
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert doctor.check_clock().state == PROBLEM


def test_a_host_name_that_does_not_resolve_is_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    finding = doctor.check_host_name()
    assert (finding.state, finding.text) == (ADVICE, "no-such-host.invalid does not resolve")
