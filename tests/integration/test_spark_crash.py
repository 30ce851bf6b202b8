"""The exactly-once sink after crashes: a read_committed consumer reads each record exactly once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, NewTopic, Producer
from kavka.streams import KafkaStreams
from tests.integration.test_spark_sink import fill, options, values
from tests.support.kavka_process import KavkaProcess
from tests.support.our_consumer import read_all
from tests.support.processes import ManagedProcess, wait_until
from tests.support.spark import start
from tests.support.spark_crash import GROUPS, STAGES, STREAMS, application, query_of
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.records]

RECORDS = 100


def session_members(leader: int) -> list[int]:
    """The processes in the session of a child process: it and all its descendants."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader:
                members.append(int(entry.name))
    return members


def kill_session(leader: int, excluded: set[int]) -> None:
    for pid in session_members(leader):
        if pid not in excluded:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def crashed(target: Target, topic: str, tmp_path: Path) -> Any:
    """Queries that are killed together, each at a different stage of its second batch."""
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 2), *(NewTopic(f"{topic}-{stage}", 2) for stage in STAGES)])
    for partition in range(2):
        fill(target, topic, range(partition, RECORDS, 2), partition)
    env = {**os.environ, "KAVKA_CRASH_FOLDER": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = ManagedProcess(
        [sys.executable, "-m", "tests.support.spark_crash", target.bootstrap_servers, str(tmp_path), topic, *STAGES],
        log=tmp_path / "driver.log",
        env=env,
        before_exec=os.setsid,
    )
    try:
        halting = set(STAGES) - {"worker_killed"}
        late: set[int] = set()

        def all_halted() -> bool:
            assert process.running(), process.log_tail()
            markers = [path.name.rpartition(".") for path in tmp_path.glob("*.*") if path.name != "driver.log"]
            late.update(int(pid) for stage, _, pid in markers if stage == "late_driver")
            return {stage for stage, _, _ in markers} >= halting

        wait_until(all_halted, timeout=600, what="every query in the stage where it is to be killed", interval=0.2)
        wait_until(
            lambda: len(values(read_all(target, f"{topic}-worker_killed"))) >= RECORDS,
            timeout=120,
            what="the query whose worker was killed",
            interval=0.5,
        )
        kill_session(process.pid, late)
        yield tmp_path
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{process.log_tail()}") from None
    finally:
        kill_session(process.pid, set())
        process.kill()


def restart(spark: Any, target: Target, folder: Path, topic: str, stage: str) -> Any:
    """Restarts the query or application that was killed in this stage."""
    if stage not in STREAMS:
        return start(query_of(spark, target.bootstrap_servers, folder, topic, stage))
    streams = application(spark, target.bootstrap_servers, folder, topic, stage)
    streams.start()
    return streams


def process_all(query: Any) -> None:
    query.process_all_available() if isinstance(query, KafkaStreams) else query.processAllAvailable()


def end(query: Any) -> None:
    query.close() if isinstance(query, KafkaStreams) else query.stop()


def id_of(query: Any) -> str:
    return str(query.query.id if isinstance(query, KafkaStreams) else query.id)


def counts(records: list[Any]) -> dict[str, list[int]]:
    counts: dict[str, list[int]] = defaultdict(list)
    for record in records:
        counts[record.key.decode()].append(int.from_bytes(record.value))
    return {key: sorted(numbers) for key, numbers in counts.items()}


def counts_of(numbers: range) -> dict[str, list[int]]:
    """The expected output of the application: for each key the counts 1, 2 …"""
    kinds = [number % GROUPS for number in numbers]
    return {str(kind): list(range(1, kinds.count(kind) + 1)) for kind in set(kinds)}


def test_a_driver_killed_at_any_stage_writes_each_record_once(
    spark: Any, target: Target, topic: str, crashed: Path
) -> None:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        for stage in ("all_aborted", "half_aborted"):
            # As the coordinator does after transaction.timeout.ms.
            (query_id,) = {
                transaction.transactional_id.rpartition("-")[0].rpartition("-")[0]
                for transaction in admin.list_transactions(states=["Ongoing"])
                if any(
                    tp.topic == f"{topic}-{stage}"
                    for tp in admin.describe_transactions([transaction.transactional_id])[
                        transaction.transactional_id
                    ].partitions
                )
            }
            open_ids = [
                transaction.transactional_id
                for transaction in admin.list_transactions(states=["Ongoing"])
                if transaction.transactional_id.startswith(query_id)
            ]
            assert len(open_ids) == (2 if stage == "all_aborted" else 1)
            admin.fence_producers(open_ids)
        counts_by_stage = {stage: len(read_all(target, f"{topic}-{stage}")) for stage in STAGES}
        assert counts_by_stage["after_commit"] == 80
        assert counts_by_stage["worker_killed"] == 100
        running: dict[str, Any] = {}
        try:
            for stage in STAGES:
                if stage != "late_driver":
                    running[stage] = restart(spark, target, crashed, topic, stage)
            for query in running.values():
                process_all(query)
            running["late_driver"] = restart(spark, target, crashed, topic, "late_driver")
            process_all(running["late_driver"])
            # The driver of before is still there, with its decision in its hand, and is too late.
            (crashed / "late_driver_may_continue").touch()
            time.sleep(2)
            fill(target, topic, [RECORDS])
            for query in running.values():
                process_all(query)
            plain = [stage for stage in STAGES if stage not in STREAMS]
            assert {stage: values(read_all(target, f"{topic}-{stage}")) for stage in plain} == {
                stage: list(range(RECORDS + 1)) for stage in plain
            }
            expected = counts_of(range(RECORDS + 1))
            assert {stage: counts(read_all(target, f"{topic}-{stage}")) for stage in STREAMS} == dict.fromkeys(
                STREAMS, expected
            )
            open_now = [transaction.transactional_id for transaction in admin.list_transactions(states=["Ongoing"])]
            ids = [id_of(query) for query in running.values()]
            assert [name for name in open_now if any(id in name for id in ids)] == []
        finally:
            for query in running.values():
                end(query)


def test_the_broker_killed_and_started_again_loses_and_repeats_nothing(spark: Any, tmp_path: Path, topic: str) -> None:
    with KavkaProcess(tmp_path / "broker") as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, 2), NewTopic(f"{topic}-out", 2), NewTopic(f"{topic}-counts", 2)])
        streams = application(spark, broker.bootstrap_servers, tmp_path, topic, "counts")
        streams.start()
        read = spark.readStream.format("kavka").options(
            **options(broker, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=50)
        )
        query = start(
            read.load()
            .selectExpr("value")
            .writeStream.format("kavka")
            .options(**options(broker, topic=f"{topic}-out", exactlyOnce="true"))
            .option("checkpointLocation", str(tmp_path / "cp"))
        )
        written = 0
        stop = threading.Event()

        def keep_writing() -> None:
            nonlocal written
            with Producer(bootstrap_servers=broker.bootstrap_servers, delivery_timeout_ms=300_000) as producer:
                while not stop.is_set():
                    producer.send(topic, str(written))
                    written += 1
                    time.sleep(0.01)

        writer = threading.Thread(target=keep_writing)
        writer.start()
        try:
            wait_until(lambda: written > 100, timeout=60, what="records")
            broker.kill()
            time.sleep(1)
            broker.start()
            count = written
            wait_until(lambda: written > count + 100, timeout=120, what="records after the start")
        finally:
            stop.set()
            writer.join()
        for running in (query, streams):
            process_all(running)
            end(running)
        assert values(read_all(broker, f"{topic}-out")) == list(range(written))
        assert counts(read_all(broker, f"{topic}-counts")) == counts_of(range(written))
