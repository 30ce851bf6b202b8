"""Streams on a standalone Spark cluster whose workers share nothing with the driver but an object
store: they have an empty virtual environment, and the driver's folder is renamed after the start.

Every test checks that the output has each result exactly once.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kavka import Admin
from tests.integration.test_streams_spark import fill, lasting
from tests.support import jars
from tests.support.cluster_jobs import write_job
from tests.support.missing import skip_loudly
from tests.support.our_consumer import read_all
from tests.support.processes import ManagedProcess, wait_until
from tests.support.s3 import S3, client_jars
from tests.support.spark_standalone import Standalone, kill_descendants
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.records]

KAVKA = (sys.executable, "-m", "kavka.cli.main")
WAIT = 400.0
TABLE = 10
LINES = [f"w{number % 7} w{number % 3}" for number in range(300)]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pack") / "environment.tar.gz"
    done = subprocess.run([*KAVKA, "pipeline", "pack", "--output", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    try:
        client_jars()
        jars.class_path("s3proxy-3.3.0")
    except jars.JavaMissing as error:
        skip_loudly(str(error))
    with S3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A cluster for tests that kill none of its parts."""
    with Standalone(tmp_path_factory.mktemp("cluster"), workers=2, is_isolated=True) as cluster:
        yield cluster


class Runs:
    """Starts drivers of one application, each in a separate folder."""

    def __init__(self, target: Target, topic: str, s3: S3, archive: Path, folder: Path, parts: str) -> None:
        self.topic, self._target, self._s3, self._archive = topic, target, s3, archive
        self._folder, self._parts = folder, parts
        self.drivers: list[ManagedProcess] = []

    def start(self, master: str, *options: str) -> ManagedProcess:
        """Start a driver, wait until it runs, and rename its folder."""
        folder = self._folder / f"driver{len(self.drivers)}"
        job = write_job(folder)
        shutil.copy(self._archive, folder)
        process = self.run(job, master, *options)

        def has_started() -> bool:
            return b"RUNNING" in self.record(len(self.drivers) - 1) or not process.running()

        wait_until(has_started, timeout=WAIT, what="the driver", interval=0.2)
        assert process.running(), process.log_tail()
        folder.rename(self._folder / f"moved{len(self.drivers)}")
        return process

    def run(self, job: Path, master: str, *options: str) -> ManagedProcess:
        number = len(self.drivers)
        spark = {
            **self._s3.settings(),
            "spark.jars": client_jars(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss2m",
        }
        temporary = self._folder / f"tmp{number}"
        temporary.mkdir()
        process = ManagedProcess(
            [*KAVKA, "pipeline", "run", str(job), "--master", master,
             "--archive", str(job.parent / "environment.tar.gz"), "--bootstrap-server", self._target.bootstrap_servers,
             "--config", f"state.dir={self._s3.root}/state",
             *(f"--conf={name}={value}" for name, value in spark.items()), *options],
            log=self._folder / f"driver{number}.log",
            cwd=temporary,
            env={"SOURCE": self.topic, "PARTS": self._parts, "KAVKA_PIPELINE_DIR": str(self._folder / f"notes{number}"),
                 "TMPDIR": str(temporary)},
        )  # fmt: skip
        self.drivers.append(process)
        return process

    def record(self, number: int) -> bytes:
        path = self._folder / f"notes{number}" / f"app-{self.topic}.json"
        return path.read_bytes() if path.exists() else b""

    def close(self) -> None:
        for process in self.drivers:
            if process.running():
                kill_descendants(process.pid)
            process.kill()

    # --- results

    def counts(self, output: str) -> Counter[tuple[str, int]]:
        records = read_all(self._target, f"{self.topic}-{output}", isolation_level="read_committed")
        return Counter((record.key.decode(), int.from_bytes(record.value)) for record in records)

    def values(self, output: str) -> Counter[str]:
        return Counter(record.value.decode() for record in read_all(self._target, f"{self.topic}-{output}"))

    def committed(self, topic: str) -> int:
        """The number of records of a topic that the application has processed."""
        with Admin(bootstrap_servers=self._target.bootstrap_servers) as admin:
            offsets = admin.list_consumer_group_offsets(f"app-{self.topic}")
        return sum(offset.offset for tp, offset in offsets.items() if offset is not None and tp.topic == topic)

    def wait_for(self, output: str, expected: Counter[tuple[str, int]]) -> None:
        """Wait until the topic has the expected results, each once, and nothing else."""
        try:
            wait_until(
                lambda: sum(self.counts(output).values()) >= expected.total() or not self.drivers[-1].running(),
                timeout=WAIT, what=f"the results in {output}", interval=0.5,
            )  # fmt: skip
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.drivers[-1].log_tail()}") from None
        assert self.counts(output) == expected, self.drivers[-1].log_tail()

    def wait_for_some(self, output: str, number: int) -> None:
        def has_some() -> bool:
            return self.counts(output).total() >= number or not self.drivers[-1].running()

        wait_until(has_some, timeout=WAIT, what=f"{number} results in {output}", interval=0.2)
        assert self.drivers[-1].running(), self.drivers[-1].log_tail()


def each_count_once(keys: list[str]) -> Counter[tuple[str, int]]:
    return Counter((key, number) for key, total in Counter(keys).items() for number in range(1, total + 1))


WORDS = each_count_once([word for line in LINES for word in line.split(" ")])


@pytest.fixture
def runs(target: Target, topic: str, s3: S3, archive: Path, tmp_path: Path) -> Iterator[Callable[..., Runs]]:
    """Creates the topics and an application with these parts."""
    created: list[Runs] = []

    def create(*parts: str, lines: list[str] = LINES) -> Runs:
        outputs = {"words": "words", "windows": "windows", "join": "joined", "totals": "totals"}
        with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
            names = [topic, *(f"{topic}-{outputs[part]}" for part in parts)]
            admin.create_topics([lasting(name, 4) for name in [*names, f"{topic}-table"]])
        fill(target, f"{topic}-table", [(str(key).encode(), f"n{key}".encode(), 1) for key in range(TABLE)])
        fill_lines(target, topic, lines)
        created.append(Runs(target, topic, s3, archive, tmp_path, ",".join(parts)))
        return created[-1]

    yield create
    for application in created:
        application.close()


def fill_lines(target: Target, topic: str, lines: list[str], first: int = 0) -> None:
    fill(
        target,
        topic,
        [(str(number % TABLE).encode(), line.encode(), 1000 + number) for number, line in enumerate(lines, first)],
    )


def test_a_job_runs_on_workers_that_share_nothing_but_the_object_store(
    runs: Callable[..., Runs], shared_cluster: Standalone, s3: S3
) -> None:
    application = runs("words", "totals")
    driver = application.start(shared_cluster.master)
    application.wait_for("words", WORDS)
    application.wait_for("totals", each_count_once([str(number % TABLE) for number in range(len(LINES))]))
    names = s3.names()
    assert f"state/app-{application.topic}/topology.json" in names
    assert any(name.startswith(f"state/app-{application.topic}/checkpoint/state/") for name in names)
    # Python's processes on the workers have their state in the folders of their executors.
    tasks = [str(path) for path in shared_cluster.folder.rglob("task-*")]
    assert tasks and all("-tmpdir/" in path for path in tasks), tasks
    assert list(shared_cluster.folder.rglob("steps.py")), "the driver has sent the module of the job to the workers"
    assert driver.stop(timeout=120) == 0, driver.log_tail()


@pytest.mark.matrix
def test_a_lost_worker_changes_no_result(runs: Callable[..., Runs], tmp_path: Path) -> None:
    application = runs("words")
    with Standalone(tmp_path / "cluster", workers=2, is_isolated=True) as cluster:
        application.start(cluster.master)
        application.wait_for_some("words", 100)
        cluster.kill_worker(0)
        application.wait_for("words", WORDS)


def test_a_driver_that_is_killed_is_continued_elsewhere(runs: Callable[..., Runs], shared_cluster: Standalone) -> None:
    application = runs("words")
    driver = application.start(shared_cluster.master)
    application.wait_for_some("words", 100)
    kill_descendants(driver.pid)
    driver.kill()
    application.start(shared_cluster.master)
    application.wait_for("words", WORDS)


@pytest.mark.matrix
def test_a_second_driver_ends_the_first_one(runs: Callable[..., Runs], target: Target, tmp_path: Path) -> None:
    application = runs("words")
    with Standalone(tmp_path / "cluster", workers=2, is_isolated=True) as cluster:
        limits = "--conf=spark.cores.max=1"
        first = application.start(cluster.master, limits)
        application.wait_for_some("words", 100)
        second = application.start(cluster.master, limits)
        assert first.wait(WAIT) == 1
        assert "another driver of the application" in first.log_tail()
        assert "Traceback" not in first.log_tail()
        application.wait_for("words", WORDS)
        assert second.running()


@pytest.mark.matrix
def test_a_restart_of_the_object_store_changes_no_result(
    runs: Callable[..., Runs], shared_cluster: Standalone, s3: S3
) -> None:
    application = runs("words")
    application.start(shared_cluster.master)
    application.wait_for_some("words", 100)
    s3.kill()
    time.sleep(30)
    s3.start()
    application.wait_for("words", WORDS)


@pytest.mark.matrix
def test_a_killed_broker_changes_no_result(
    runs: Callable[..., Runs], shared_cluster: Standalone, target: Target
) -> None:
    application = runs("words")
    application.start(shared_cluster.master)
    application.wait_for_some("words", 100)
    target.kill()
    time.sleep(5)
    target.start()
    application.wait_for("words", WORDS)


@pytest.mark.matrix
def test_windows_and_joins_run_there(runs: Callable[..., Runs], shared_cluster: Standalone, target: Target) -> None:
    application = runs("words", "windows", "join", lines=[])
    application.start(shared_cluster.master)
    # A record is joined with the table as the micro-batches before have left it.
    wait_until(
        lambda: application.committed(f"{application.topic}-table") == TABLE,
        timeout=WAIT,
        what="the table",
        interval=0.5,
    )
    fill_lines(target, application.topic, LINES)
    windowed = [f"{word}@1000" for line in LINES for word in line.split(" ")]
    application.wait_for("words", WORDS)
    application.wait_for("windows", each_count_once(windowed))
    expected = Counter(f"n{number % TABLE}:{line}" for number, line in enumerate(LINES))
    wait_until(lambda: application.values("joined").total() >= len(LINES), timeout=WAIT, what="the join", interval=0.5)
    assert application.values("joined") == expected
