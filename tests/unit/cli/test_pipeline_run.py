"""`kavka pipeline run` with bad input, and the settings of Spark that its options set. Spark is not
started."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from kavka import streams
from kavka.cli import pipeline

JOB = """
from kavka.streams import StreamsBuilder
import steps_beside_the_job, parts_beside_the_job.more

CONFIG = {"application.id": "app", "bootstrap.servers": "localhost:1", "spark.jars": "first.jar"}

def build():
    builder = StreamsBuilder()
    builder.stream("lines").map_values(steps_beside_the_job.upper).to("out")
    return builder.build()
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KAVKA_PIPELINE_DIR", str(tmp_path / "records"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0].endswith("_beside_the_job")]:
        del sys.modules[name]
    # The command changes these variables; they are restored after the test.
    monkeypatch.setenv("PATH", os.environ["PATH"])
    for variable in ("SPARK_MASTER", "PYSPARK_PYTHON", "KAVKA_SPARK_LOG_LEVEL", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(variable, "unchanged")
    (tmp_path / "steps_beside_the_job.py").write_text("def upper(line):\n    return line.upper()\n")
    (tmp_path / "parts_beside_the_job").mkdir()
    (tmp_path / "parts_beside_the_job" / "__init__.py").touch()
    (tmp_path / "parts_beside_the_job" / "more.py").touch()
    path = tmp_path / "job.py"
    path.write_text(JOB)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CONFIG = {}\ndef build():\n    return missing\n", "line 3: NameError: name 'missing' is not defined"),
        ("x = (\n", "line 1: SyntaxError"),
        ("import no_such_module\n", "line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("CONFIG = {}\n", "must define build()"),
        ("CONFIG = {}\ndef build():\n    return 'a topology'\n", "must return a Topology"),
    ],
)
def test_an_error_in_a_job_is_one_line(job: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    job.write_text(text)
    assert pipeline.main(["run", str(job)]) == 1
    output = capsys.readouterr().err
    assert message in output and output.count("\n") == 1, output
    if "line" in message:
        assert pipeline.main(["run", str(job), "--verbose"]) == 1
        assert "Traceback" in capsys.readouterr().err


def test_an_unreachable_master_is_one_line(job: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{closed.getsockname()[1]}"
        arguments = ["run", str(job), "--master", master, "--config", f"state.dir={tmp_path / 'state'}"]
        assert pipeline.main(arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "starting app on Spark"
    assert lines[1].startswith(f"kavka pipeline: cannot connect to the Spark master {master}")
    assert len(lines) == 2


def test_options_are_settings_of_spark(job: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    configs: list[dict[str, Any]] = []

    def application(topology: Any, config: dict[str, Any]) -> Any:
        configs.append(config)
        raise streams.StreamsException("not started")

    monkeypatch.setattr(streams, "KafkaStreams", application)
    arguments = [
        "run", str(job), "--master", "yarn", "--archive", "environment.tar.gz", "--package", "g:a:1", "--package",
        "g:b:2", "--jars", "second.jar", "--py-files", "other.zip", "--conf", "spark.executor.cores=2",
    ]  # fmt: skip
    assert pipeline.main(arguments) == 1
    (config,) = configs
    assert {name: value for name, value in config.items() if name.startswith("spark.")} == {
        "spark.master": "yarn",
        "spark.archives": "environment.tar.gz",
        "spark.jars": "first.jar,second.jar",
        "spark.jars.packages": "g:a:1,g:b:2",
        "spark.executor.cores": "2",
        "spark.submit.pyFiles": f"other.zip,{tmp_path}/parts_beside_the_job,{tmp_path}/steps_beside_the_job.py",
    }


@pytest.mark.parametrize("option", ["--conf", "--config"])
def test_a_setting_needs_a_value(job: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["run", str(job), option, "spark.executor.cores"]) == 1
    assert "give name=value" in capsys.readouterr().err
