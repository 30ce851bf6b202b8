"""Where the jars of ZooKeeper are found, and the command that starts the server."""

from __future__ import annotations

from pathlib import Path

import pytest

from kavka.cli import zookeeper_jars
from kavka.cli.zookeeper_jars import NoZooKeeper, find_jars, server_command


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (zookeeper_jars.JARS_VARIABLE, zookeeper_jars.HOME_VARIABLE, "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)


def distribution(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    return folder


def test_jars_of_a_distribution_are_in_lib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path / "lib", "zookeeper-3.9.3.jar", "zookeeper-jute-3.9.3.jar", "jline-2.14.6.jar", "README.txt")
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    assert [jar.name for jar in find_jars()] == ["zookeeper-3.9.3.jar", "zookeeper-jute-3.9.3.jar"]


def test_jar_folders_take_precedence_over_a_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = distribution(tmp_path / "a", "zookeeper-3.8.4.jar")
    second = distribution(tmp_path / "b", "slf4j-api-2.0.17.jar", "spark-core.jar")
    distribution(tmp_path / "home" / "lib", "zookeeper-3.9.3.jar")
    monkeypatch.setenv("KAVKA_ZOOKEEPER_JARS", f"{first}:{second}")
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path / "home"))
    assert [jar.name for jar in find_jars()] == ["zookeeper-3.8.4.jar", "slf4j-api-2.0.17.jar"]


@pytest.mark.parametrize("name", ["KAVKA_ZOOKEEPER_JARS", "ZOOKEEPER_HOME"])
def test_configured_folder_without_jars_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    distribution(tmp_path / "lib", "zookeeper-jute-3.9.3.jar")
    monkeypatch.setenv(name, str(tmp_path))
    with pytest.raises(NoZooKeeper, match=name):
        find_jars()


def test_error_without_jars_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_jars.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NoZooKeeper, match="pip install pyspark"):
        find_jars()


def test_missing_java_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path / "lib", "zookeeper-3.9.3.jar")
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoZooKeeper, match="requires Java"):
        server_command(tmp_path / "zoo.cfg")


def test_java_options_of_the_caller_take_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path / "lib", "zookeeper-3.9.3.jar")
    java = distribution(tmp_path / "jdk" / "bin", "java") / "java"
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    command = server_command(tmp_path / "zoo.cfg", jvm=["-Xmx1g"])
    assert command[0] == str(java)
    assert command.index("-Xmx64m") < command.index("-Xmx1g") < command.index("-cp")
    assert command[-2:] == [zookeeper_jars.SERVER_CLASS, str(tmp_path / "zoo.cfg")]
