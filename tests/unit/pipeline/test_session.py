"""Building a Spark session. Spark is not started: the tests check the calls of its builder."""

from __future__ import annotations

import importlib.metadata
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.session import build_session


class Builder:
    """Records the settings that it receives."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.level: str | None = None

    def appName(self, name: str) -> Builder:
        return self.config("name", name)

    def master(self, master: str) -> Builder:
        return self.config("master", master)

    def config(self, name: str, value: str) -> Builder:
        self.settings[name] = value
        return self

    def getOrCreate(self) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda level: setattr(self, "level", level)))


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    builder = Builder()
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "pyspark.sql", SimpleNamespace(SparkSession=SimpleNamespace(builder=builder)))
    monkeypatch.setattr("kavka.pipeline.spark.session.check_spark", lambda: None)
    for name in ("SPARK_MASTER", "KAVKA_SPARK_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "unchanged")
    return builder


def test_settings_override_the_defaults(builder: Builder) -> None:
    build_session("words", {"spark.ui.enabled": "true", "spark.x": "1"})
    assert builder.settings == {
        "name": "words",
        "master": "local[*]",
        "spark.ui.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        "spark.x": "1",
    }
    assert builder.level is None


def test_master_and_log_level_come_from_the_environment(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_MASTER", "yarn")
    build_session("words", {}, log_level="OFF")
    assert (builder.settings["master"], builder.level) == ("yarn", "OFF")
    monkeypatch.setenv("KAVKA_SPARK_LOG_LEVEL", "DEBUG")
    build_session("words", {}, "local[3]", log_level="OFF")
    assert (builder.settings["master"], builder.level) == ("local[3]", "DEBUG")


def test_without_pyspark_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    message = r"kavka-mirror runs on Spark: PySpark is not installed: pip install 'kavka\[pipeline\]'"
    with pytest.raises(PipelineError, match=message):
        build_session("kavka-mirror", {})
    with pytest.raises(LookupError):
        build_session("words", {}, error=LookupError)
