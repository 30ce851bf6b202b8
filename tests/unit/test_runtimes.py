from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from kavka import runtimes
from kavka.cli.main import EXTRAS
from kavka.runtimes import MissingRuntime, find_java, java_version, pyspark_version

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def script(folder: Path, text: str) -> str:
    path = folder / "java"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_java_home_is_preferred_to_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    java = script(tmp_path / "bin", "true")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == java
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "other"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_java() == java
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingRuntime, match="install Java 17 or newer"):
        find_java()


@pytest.mark.parametrize(
    ("text", "expected"),
    [('openjdk version "21.0.2" 2024-01-16', 21), ('openjdk version "17" 2021-09-14', 17)],
)
def test_the_version_of_java(tmp_path: Path, text: str, expected: int) -> None:
    assert java_version(script(tmp_path, f"echo '{text}' >&2")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo 'java version \"1.8.0_402\"' >&2", "is Java 8, which is too old: install Java 17"),
        ("echo 'No runtime present' >&2; exit 1", r"does not print its version \(No runtime present\)"),
        ("exit 3", r"does not print its version \(exit code 3\)"),
    ],
)
def test_a_java_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MissingRuntime, match=message):
        java_version(script(tmp_path, text))


def test_versions_of_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.3.0")
    assert pyspark_version() == "4.3.0"
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.3.1.jar").touch()
    assert pyspark_version() == "4.3.0"
    (tmp_path / "jars" / "spark-core_2.13-4.2.0.jar").touch()
    with pytest.raises(MissingRuntime, match=r"has Spark 4\.2\.0, but PySpark is 4\.3\.0: unset SPARK_HOME"):
        pyspark_version()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "4.1.9")
    with pytest.raises(MissingRuntime, match=r"PySpark 4\.1\.9 is older than 4\.2"):
        pyspark_version()


def test_the_lowest_pyspark_is_that_of_the_extra() -> None:
    assert f"pyspark>={runtimes.MINIMUM_PYSPARK}" in PROJECT["optional-dependencies"]["pipeline"]


def test_every_module_is_in_an_extra_that_exists() -> None:
    assert set(EXTRAS.values()) <= set(PROJECT["optional-dependencies"])
