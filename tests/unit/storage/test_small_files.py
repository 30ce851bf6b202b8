"""The small files of a data directory: damaged files at the start, and writes that must not block
the loop."""

from __future__ import annotations

import os
import threading
import uuid
from pathlib import Path

import pytest

from kavka.common.types import TopicPartition
from kavka.storage.jobs import Job
from kavka.storage.log_config import LogConfig
from kavka.storage.log_dir import LogDirError
from kavka.storage.log_manager import LogManager
from tests.support.jobs import run_now
from tests.support.logs import FakeClock, append, contents

A, B = TopicPartition("a", 0), TopicPartition("b", 0)

DAMAGE = {
    "empty": b"",
    "zeros": bytes(64),
    "not ASCII": b"0\n1\n\xe9\xff\xfe 0 1\n",
    "digits of another script": "０\n１\na ０ １\n".encode(),
    "superscript": "0\n²\n".encode(),
    "half": b"0\n2\na 0 1\n",
    "too large": b"0\n1\na 99999999999 99999999999999999999\n",
    "many digits": b"0\n1\na 0 " + b"9" * 10_000 + b"\n",
}


def start(root: Path) -> LogManager:
    manager = LogManager([root], lambda topic: LogConfig(), clock=FakeClock())
    manager.open_dirs()
    manager.check_ids(None, None)
    manager.load()
    return manager


def job(manager: LogManager, name: str) -> Job:
    return {job.name: job for job in manager.jobs()}[name]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory after a clean shutdown, with two partitions of two epochs each."""
    manager = start(tmp_path)
    for partition in (A, B):
        log = manager.get_or_create(partition, topic_id=uuid.uuid4())
        append(log, [(b"k", b"v")], epoch=1)
        append(log, [(b"k", b"w")], epoch=4)
    manager.write_ids(1, "cluster")
    manager.shutdown()
    return tmp_path


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name",
    [
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "a-0/leader-epoch-checkpoint",
        f"a-0/{2:020d}.snapshot",
        ".kafka_cleanshutdown",
    ],
)
def test_a_damaged_file_loses_no_data_and_no_epoch(root, name, damage, clean):
    if not clean:
        (root / ".kafka_cleanshutdown").unlink()
    if clean or name != ".kafka_cleanshutdown":
        (root / name).write_bytes(DAMAGE[damage])
    manager = start(root)
    for partition in (A, B):
        log = manager.get(partition)
        assert [value for _, _, value in contents(log)] == [b"v", b"w"]
        assert log.epochs.entries == [(1, 0), (4, 1)]
    manager.shutdown()


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_partition_metadata_file_takes_only_its_partition_offline(root, damage):
    (root / "a-0" / "partition.metadata").write_bytes(DAMAGE[damage])
    manager = start(root)
    assert manager.is_offline(A) and not manager.is_in_failed_dir(A)
    assert len(contents(manager.get(B))) == 2
    manager.abandon()


@pytest.mark.parametrize("damage", DAMAGE)
def test_the_error_of_a_damaged_meta_properties_file_explains_the_fix(root, damage):
    (root / "meta.properties").write_bytes(DAMAGE[damage])
    manager = LogManager([root], lambda topic: LogConfig(), clock=FakeClock())
    manager.open_dirs()
    with pytest.raises(LogDirError, match="restore the file, or remove it") as raised:
        manager.check_ids(1, "cluster")
    assert "\n" not in str(raised.value)
    manager.abandon()


def test_becoming_leader_of_many_partitions_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    manager = start(tmp_path)
    logs = [manager.get_or_create(TopicPartition("t", n)) for n in range(20)]
    loop_thread = threading.get_ident()
    waits: list[int] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda fd, real=real: (waits.append(threading.get_ident()), real(fd)))
    for log in logs:
        log.start_epoch(7)
        append(log, [(b"k", b"v")], epoch=7)
        log.truncate_to(1)
    saving = job(manager, "save-leader-epochs")
    saving.MAX_FILES_PER_ROUND = 15
    assert saving.prepare()
    assert not waits
    worker = threading.Thread(target=saving.run)
    worker.start()
    worker.join()
    assert waits and loop_thread not in waits
    assert saving.finish(None), "five logs are left for the next round"
    run_now(saving)
    assert not any(log.epochs.dirty for log in logs)
    for log in logs:
        assert (log.dir / "leader-epoch-checkpoint").read_text() == "0\n1\n7 0\n"
    assert not saving.prepare()
    manager.abandon()


def test_deleting_a_partition_while_its_epochs_are_written_fails_no_directory(tmp_path):
    manager = start(tmp_path)
    for n in range(3):
        manager.get_or_create(TopicPartition("t", n)).start_epoch(7)
        append(manager.get(TopicPartition("t", n)), [(b"k", b"v")], epoch=7)
    saving = job(manager, "save-leader-epochs")
    assert saving.prepare()
    manager.delete(TopicPartition("t", 1))
    saving.run()
    saving.finish(None)
    assert manager.online_dirs == manager.dirs and len(manager) == 2
    manager.abandon()
