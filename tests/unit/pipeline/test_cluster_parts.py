"""The parts of a job on a Spark cluster: files, versions, the claim of a driver, the archive. Spark
is not started."""

from __future__ import annotations

import os
import socket
import sys
import tarfile
import threading
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kavka
from kavka.client.admin.base import AdminError
from kavka.client.errors import error_of
from kavka.common.errors import ErrorCode, KafkaError
from kavka.pipeline.spark import fencing, packing, session, versions
from kavka.pipeline.spark.errors import PipelineError
from kavka.pipeline.spark.fencing import Claim, Fenced
from kavka.pipeline.spark.files import HadoopPath, check_accessible, delete, path_of, replace_text, spark_uri
from kavka.pipeline.streams.errors import StreamsException
from kavka.pipeline.streams.layout import FORMAT, read_layout, write_layout
from kavka.pipeline.streams.local_state import executor_folder


def no_session() -> Any:
    raise AssertionError("a local path needs no session")


# --- files


@pytest.mark.parametrize("text", ["/state/app", "file:///state/app", "file:/state/app"])
def test_a_plain_path_is_on_this_machine_whatever_hadoops_default_is(text: str) -> None:
    path = path_of(text, no_session)
    assert path == Path("/state/app")
    assert spark_uri(path) == "file:///state/app"


def test_other_schemes_are_paths_of_hadoop() -> None:
    path = path_of("s3a://bucket/state/", no_session) / "app" / "checkpoint"
    assert isinstance(path, HadoopPath)
    assert (str(path), path.name, str(path.parent)) == (
        "s3a://bucket/state/app/checkpoint",
        "checkpoint",
        "s3a://bucket/state/app",
    )
    assert spark_uri(path) == str(path)


def test_a_local_file_is_replaced_and_a_folder_deleted(tmp_path: Path) -> None:
    file = tmp_path / "app" / "topology.json"
    file.parent.mkdir()
    replace_text(file, "1")
    replace_text(file, "2")
    assert [path.name for path in file.parent.iterdir()] == ["topology.json"]
    assert file.read_text() == "2"
    delete(file.parent)
    delete(file.parent)
    assert not file.parent.exists()


def test_a_file_system_that_does_not_respond_is_named() -> None:
    class Silent(HadoopPath):
        def exists(self) -> bool:
            released.wait(60)
            raise OSError("refused")

    released = threading.Event()
    path = Silent("s3a://bucket/state", no_session)
    with pytest.raises(OSError, match="s3a://bucket/state does not respond after 0 s: check the address"):
        check_accessible(path, timeout=0.01)
    released.set()
    with pytest.raises(OSError, match="refused"):
        check_accessible(path)


def test_the_state_of_another_application_is_refused(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir(mode=0o700)
    write_layout(tmp_path / "first", {"format": FORMAT})
    assert read_layout(tmp_path / "first") == {"format": FORMAT, "application": "first"}
    (tmp_path / "first").rename(tmp_path / "second")
    with pytest.raises(StreamsException, match="belongs to the application first: set a new application"):
        read_layout(tmp_path / "second")


# --- executors


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SPARK_EXECUTOR_DIRS": "/a:/b"}, "/a"),
        ({"LOCAL_DIRS": "/c,/d"}, "/c"),
        ({"SPARK_LOCAL_DIRS": "/e,/f"}, "/e"),
        ({"KAVKA_STATE_DIR": "/g", "SPARK_EXECUTOR_DIRS": "/a:/b"}, "/g"),
    ],
)
def test_state_is_in_the_folder_of_the_executor(
    variables: Mapping[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KAVKA_STATE_DIR", "SPARK_EXECUTOR_DIRS", "LOCAL_DIRS", "SPARK_LOCAL_DIRS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert executor_folder() == Path(expected) / f"kavka-streams-{os.getuid()}"


# --- versions


def test_a_job_of_another_version_is_refused_before_it_is_loaded() -> None:
    driver, data = versions.pickled({"answer": 42})
    assert versions.unpickled(driver, data) == {"answer": 42}
    with pytest.raises(PipelineError, match=r"the driver has Kavka 9\.9 with Python .*kavka pipeline pack"):
        versions.unpickled(("9.9", driver[1]), b"not a pickle")
    with pytest.raises(PipelineError, match=r"with Python 2\.7, and the executor on .* has Kavka"):
        versions.unpickled((driver[0], "2.7"), b"not a pickle")


@pytest.mark.parametrize(
    ("line", "remedy"),
    [
        ("ModuleNotFoundError: No module named 'kavka'", "the executors have no Kavka: make an archive"),
        ("python3: No module named kavka.pipeline.streams.daemon", "the executors have no Kavka: make an archive"),
        ("ModuleNotFoundError: No module named 'steps'", "the executors have no module steps: send it with --py-files"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12", "the executors do not run Python"),
        ('Cannot run program "python3.11": error=2', "python3.11 is not on the PATH of an executor"),
    ],
)
def test_missing_parts_of_executors_have_a_remedy(line: str, remedy: str) -> None:
    assert (versions.remedy_for(["SparkException: Job aborted", line]) or "").startswith(remedy)
    assert versions.remedy_for(["ValueError: no"]) is None


# --- fencing


class Coordinator:
    """Gives each claim a higher epoch."""

    def __init__(self, error: KafkaError | None = None) -> None:
        self.epoch, self.error = -1, error

    def fence_producers(self, name: str, timeout: float) -> dict[str, tuple[int, int]]:
        if self.error is not None:
            raise self.error
        self.epoch += 1
        return {name: (7, self.epoch)}

    def describe_transactions(self, names: list[str], timeout: float) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return {name: SimpleNamespace(producer_id=7, producer_epoch=self.epoch) for name in names}


def refused(code: ErrorCode) -> AdminError:
    return AdminError({"app-driver": error_of(code)}, {})


def test_the_last_driver_has_the_application() -> None:
    coordinator: Any = Coordinator()
    first = fencing.claim(coordinator, "app:1")
    assert first == Claim("app:1-driver", 7, 0) == Claim.from_text(first.to_text())
    fencing.check(coordinator, first)
    second = fencing.claim(coordinator, "app:1")
    assert second is not None
    with pytest.raises(Fenced, match="another driver of the application app:1 was started"):
        fencing.check(coordinator, first)
    fencing.check(coordinator, second)


def test_a_forgotten_claim_is_not_fenced_and_other_errors_are_raised() -> None:
    claim = Claim("app-driver", 7, 0)
    fencing.check(Coordinator(refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)), claim)  # type: ignore[arg-type]
    with pytest.raises(KafkaError):
        fencing.check(Coordinator(refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)), claim)  # type: ignore[arg-type]


def test_without_the_right_to_claim_an_application_runs_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    coordinator: Any = Coordinator(refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    assert fencing.claim(coordinator, "app") is None
    assert "kafka-acls --add" in caplog.text
    with pytest.raises(KafkaError):
        fencing.claim(Coordinator(refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)), "app")  # type: ignore[arg-type]


# --- sessions


def test_modules_are_copied_so_that_the_originals_may_go(tmp_path: Path) -> None:
    for path in ("a/steps.py", "b/steps.py", "b/parts/__init__.py", "c/more.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    names = ["a/steps.py", "b/steps.py", "b/parts", "c"]
    copies = session._copies([*(str(tmp_path / name) for name in names), "s3a://bucket/x.zip"], PipelineError)
    assert [Path(copy).name for copy in copies] == ["steps.py", "steps.py", "parts.zip", "c.zip", "x.zip"]
    assert [Path(copy).read_text() for copy in copies[:2]] == ["a/steps.py", "b/steps.py"]
    assert "parts/__init__.py" in zipfile.ZipFile(copies[2]).namelist()
    assert "more.py" in zipfile.ZipFile(copies[3]).namelist()
    with pytest.raises(PipelineError, match=r"there is no file .* to send"):
        session._copies([str(tmp_path / "missing.py")], PipelineError)


def test_an_archive_is_on_the_module_path_of_the_executors(tmp_path: Path) -> None:
    archive = tmp_path / "environment.tar.gz"
    archive.write_bytes(b"archive")
    settings = {"spark.archives": f"{archive},hdfs:///x.zip#x", "spark.executorEnv.PYTHONPATH": "/opt/mine"}
    session._add_archives(settings, PipelineError)
    first, second = settings["spark.archives"].split(",")
    path, name = first.split("#")
    assert (Path(path).read_bytes(), name, second) == (b"archive", packing.ARCHIVE_FOLDER, "hdfs:///x.zip#x")
    assert settings["spark.executorEnv.PYTHONPATH"] == f"{packing.ARCHIVE_FOLDER}:x:/opt/mine"


def test_a_cluster_runs_the_python_on_the_path_of_each_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": "/usr/bin"})
    session._choose_python("spark://host:7077")
    assert os.environ == {
        "PYSPARK_PYTHON": f"python3.{sys.version_info.minor}",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin",
    }
    monkeypatch.setattr(os, "environ", {"PATH": "/usr/bin"})
    session._choose_python("local[2]")
    assert os.environ == {"PYSPARK_PYTHON": sys.executable, "PATH": "/usr/bin", "SPARK_LOCAL_IP": "127.0.0.1"}
    monkeypatch.setattr(os, "environ", {"PYSPARK_PYTHON": "pypy3"})
    session._choose_python("yarn")
    assert os.environ == {"PYSPARK_PYTHON": "pypy3"}


def test_an_unreachable_master_is_named() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(PipelineError, match=f"cannot connect to the Spark master {master}"):
            session._check_reachable(master, PipelineError)
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            session._check_reachable(f"{master},127.0.0.1:{listening.getsockname()[1]}", PipelineError)
    with pytest.raises(PipelineError, match="cannot connect"):
        session._check_reachable("spark://host:notaport", PipelineError)


# --- the archive


def test_an_archive_has_kavka_and_what_it_requires_but_not_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requires = {"kavka": ["crc32c>=2", 'small>=1; extra == "pipeline"', 'console-only; extra == "console"', "pyspark"]}
    requires |= {"small": ["not-for-this-platform; sys_platform == 'x'"], "crc32c": [], "mine": ["small"]}

    class Installed:
        def __init__(self, name: str) -> None:
            self.name, self.version = name, "1"
            self.metadata = {"Name": name}
            self.requires = requires[name]
            (tmp_path / name / "tests").mkdir(parents=True, exist_ok=True)
            self.files = [Path(name, "__init__.py"), Path(name, "tests", "t.py"), Path("..", "bin", name)]
            for file in self.files[:2]:
                (tmp_path / file).touch()

        def locate_file(self, file: Path) -> Path:
            return tmp_path / file

    def distribution(name: str) -> Any:
        if name not in requires:
            raise packing.PackageNotFoundError(name)
        return Installed(name)

    monkeypatch.setattr(packing, "distribution", distribution)
    output = tmp_path / "environment.tar.gz"
    assert packing.pack(output, ["mine"]) == [f"kavka {kavka.__version__}", "crc32c 1", "mine 1", "small 1"]
    with tarfile.open(output) as archive:
        names = archive.getnames()
    assert {"kavka/__init__.py", "kavka/pipeline/streams/workers.py", "small/__init__.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.startswith(("small/tests", "..", "pyspark"))]
    with pytest.raises(PipelineError, match="missing is not installed here"):
        packing.pack(output, ["missing"])
