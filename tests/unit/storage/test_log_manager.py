"""The log manager: opens, creates and deletes logs, and runs their periodic jobs."""

from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from dataclasses import replace

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.storage.cleaner import CleanerSettings
from kavka.storage.log import Log
from kavka.storage.log_dir import LogDirError
from kavka.storage.partition_dir import marked_name, parse_dir_name
from kavka.storage.settings import StorageSettings
from tests.support.jobs import run_now
from tests.support.logs import append, contents
from tests.unit.storage.managers import (
    CONFIG,
    A,
    B,
    C,
    finish_move,
    job,
    records,
)

# --- names


@pytest.mark.parametrize(
    ("name", "topic", "partition", "kind"),
    [
        ("orders-0", "orders", 0, ""),
        ("a-b.c_d-12", "a-b.c_d", 12, ""),
        ("orders-0.0123456789abcdef0123456789abcdef-delete", "orders", 0, "delete"),
        ("orders-3.0123456789abcdef0123456789abcdef-future", "orders", 3, "future"),
        ("orders-3.0123456789abcdef0123456789abcdef-stray", "orders", 3, "stray"),
    ],
)
def test_folder_names_are_parsed(name, topic, partition, kind):
    parsed = parse_dir_name(name)
    assert parsed.partition == TopicPartition(topic, partition) and parsed.suffix == kind


@pytest.mark.parametrize(
    "name",
    [
        "orders",
        "orders-",
        "-0",
        "orders-x",
        "or ders-0",
        "orders-00",
        "orders-4294967296",
        "orders-99999999999",
        "orders-4294967296.0123456789abcdef0123456789abcdef-delete",
        "orders-2147483648.0123456789abcdef0123456789abcdef-future",
        "..-0.0123456789abcdef0123456789abcdef-stray",
    ],
)
def test_other_folder_names_belong_to_no_partition(name):
    assert parse_dir_name(name) is None


def test_the_name_of_a_deleted_folder_fits_into_255_bytes():
    name = marked_name(TopicPartition("x" * 249, 7), "delete")
    assert len(name) == 255 and parse_dir_name(name).suffix == "delete"


@pytest.mark.parametrize("kind", ["delete", "stray"])
def test_a_partition_of_a_topic_with_a_long_name_can_be_deleted_and_marked_stray(managers, kind):
    manager = managers.start("one")
    partition = TopicPartition("x" * 249, 0)
    manager.get_or_create(partition, topic_id=uuid.uuid4())
    if kind == "delete":
        manager.delete(partition)
    else:
        manager.get_or_create(partition, topic_id=uuid.uuid4())
    [name] = [name for name in os.listdir(managers.root / "one") if name.endswith(f"-{kind}")]
    assert len(name) == 255 and name.startswith("x" * 200)


@pytest.mark.parametrize("length", [214, 230, 249])
def test_a_topic_with_a_name_too_long_for_a_copy_cannot_be_moved(managers, length):
    manager = managers.start("one", "two")
    partition = TopicPartition("x" * length, 0)
    log = manager.get_or_create(partition)
    manager.get_or_create(B)
    append(log, records(b"k"))
    with pytest.raises(KafkaError) as raised:
        manager.move(partition, managers.root / "two")
    assert raised.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION  # as in Kafka 3.9.1
    assert manager.online_dirs == manager.dirs and not managers.failed
    assert manager.get(partition) is log and manager.get(B) is not None


def test_the_longest_topic_that_can_be_moved_is_moved(managers):
    manager = managers.start("one", "two")
    partition = TopicPartition("x" * 213, 0)
    append(manager.get_or_create(partition), records(b"k"))
    manager.move(partition, managers.root / "two")
    finish_move(manager)
    assert manager.get(partition).dir == managers.root / "two" / str(partition)


# --- creating and loading


def test_new_partitions_are_placed_in_the_directory_with_the_fewest(managers):
    manager = managers.start("one", "two")
    for n in range(6):
        manager.get_or_create(TopicPartition("t", n))
    assert [len([d for d in os.listdir(managers.root / name) if d.startswith("t-")]) for name in ("one", "two")] == [
        3,
        3,
    ]


def test_folders_created_in_advance_are_spread_and_used_by_their_logs(managers):
    manager = managers.start("one", "two")
    topic_id = uuid.uuid4()
    create_folders = manager.place_new([(partition, topic_id, True) for partition in (A, B, C)])
    assert create_folders is not None
    create_folders()
    assert manager.place_new([(A, topic_id, True)]) is None, "its directory is already chosen"
    log_dirs = {
        partition: manager.dir_of(manager.get_or_create(partition, topic_id=topic_id)) for partition in (A, B, C)
    }
    assert sorted(log_dir.path.name for log_dir in log_dirs.values()) in (["one", "one", "two"], ["one", "two", "two"])
    assert all(manager.get(partition).topic_id == topic_id for partition in (A, B, C))
    assert sum(1 for log_dir in ("one", "two") for _ in (managers.root / log_dir).glob("?-0")) == 3


def test_created_folders_are_on_disk_with_their_topic_id(managers, monkeypatch):
    """After a crash of the machine a folder may be missing, but no topic id is incomplete."""
    manager = managers.start()
    partitions = [TopicPartition("t", n) for n in range(40)]
    create_folders = manager.place_new([(partition, uuid.uuid4(), True) for partition in partitions])
    assert create_folders is not None
    events: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(fd: int) -> None:
        events.append(f"fsync {os.readlink(f'/proc/self/fd/{fd}')}")
        real_fsync(fd)

    def replace(source: str, target: str) -> None:
        events.append(f"rename {target}")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    create_folders()
    root = manager.dirs[0].path
    for partition in partitions:
        folder = f"{root}/{partition}"
        metadata = f"{folder}/partition.metadata"
        steps = [f"fsync {metadata}.tmp", f"rename {metadata}", f"fsync {folder}", f"fsync {root}"]
        order = [events.index(step) for step in steps]
        assert order == sorted(order)


def test_the_partitions_of_the_directories_are_not_counted_for_each_created_log(managers, monkeypatch):
    manager = managers.start("one", "two")
    partitions = [TopicPartition("t", n) for n in range(20)]
    counts = []
    real = manager._placement.counts
    monkeypatch.setattr(manager._placement, "counts", lambda *args: (counts.append(1), real(*args))[1])
    create_folders = manager.place_new([(partition, uuid.uuid4(), True) for partition in partitions])
    assert create_folders is not None
    create_folders()
    for partition in partitions:
        manager.get_or_create(partition)
    assert len(counts) == 1


def test_a_reserved_folder_in_a_failed_directory_is_not_created_elsewhere(managers):
    manager = managers.start("one", "two")
    log = manager.get_or_create(A)
    failing_dir = manager.dir_of(log)
    manager.get_or_create(B)
    create_folders = manager.place_new([(C, uuid.uuid4(), True)])
    assert create_folders is not None
    create_folders()
    placed_in = next(name for name in ("one", "two") if (managers.root / name / "c-0").exists())
    if failing_dir.path.name != placed_in:
        log = manager.get(B)
    assert manager.report_failure(log, OSError(errno.EIO, "broken"))
    with pytest.raises(KafkaError) as raised:
        manager.get_or_create(C)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(list(managers.root.glob("*/c-0"))) == 1


@pytest.mark.parametrize("in_advance", [True, False])
def test_a_missing_directory_has_failed_and_is_not_recreated(managers, in_advance):
    manager = managers.start("one", "two")
    path = manager.dir_of(manager.get_or_create(A)).path
    manager.get_or_create(B)
    path.rename(path.with_name("away"))
    topic_id = uuid.uuid4()
    if in_advance:
        create_folders = manager.place_new([(C, topic_id, True)])
        assert create_folders is not None
        with pytest.raises(FileNotFoundError):
            create_folders()
    with pytest.raises(KafkaError) as raised:
        manager.get_or_create(C, topic_id=topic_id)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert managers.failed == [(path.name, [A])]
    assert not path.exists()
    assert manager.get_or_create(C, topic_id=topic_id).dir.parent != path


def test_an_existing_partition_gets_no_new_folder_while_a_directory_is_offline(managers):
    manager = managers.start("one", "two")
    log = manager.get_or_create(A)
    assert manager.report_failure(log, OSError(errno.EIO, "broken"))
    assert manager.place_new([(B, uuid.uuid4(), False)]) is None
    assert manager.place_new([(B, uuid.uuid4(), True)]) is not None


def test_a_log_is_created_once_and_keeps_its_topic_id(managers):
    manager = managers.start()
    topic_id = uuid.uuid4()
    log = manager.get_or_create(A, CONFIG, topic_id)
    assert manager.get_or_create(A) is log is manager.get(A)
    assert manager.get(B) is None
    manager.shutdown()
    assert managers.start().get(A).topic_id == topic_id


def test_a_log_of_an_earlier_topic_of_that_name_is_marked_stray(managers):
    """A broker was down while its replica was moved elsewhere and the topic deleted."""
    manager = managers.start()
    old_id, new_id = uuid.uuid4(), uuid.uuid4()
    append(manager.get_or_create(A, topic_id=old_id), records(b"old"))
    manager.shutdown()
    manager = managers.start()
    with pytest.raises(KafkaError) as raised:
        manager.get_or_create(A, topic_id=new_id, is_new=False)
    assert raised.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert [key for _, key, _ in contents(manager.get(A))] == [b"old"]
    log = manager.get_or_create(A, topic_id=new_id, is_new=True)
    assert (log.topic_id, log.end_offset) == (new_id, 0)
    append(log, records(b"new"))
    managers.crash(manager)
    manager = managers.start()
    assert [key for _, key, _ in contents(manager.get(A))] == [b"new"]
    # The records are not lost: an operator can inspect the folder.
    [stray_folder] = manager.ignored_folders
    assert parse_dir_name(stray_folder.name)[:2] == (A, "stray")


def test_all_records_are_read_after_a_clean_shutdown(managers):
    manager = managers.start("one", "two")
    for n in range(8):
        log = manager.get_or_create(TopicPartition("t", n))
        append(log, records(b"k%d" % n) * (n + 1))
    manager.get(TopicPartition("t", 3)).delete_records_before(2)
    manager.shutdown()
    for name in ("one", "two"):
        names = set(os.listdir(managers.root / name))
        assert {
            ".kafka_cleanshutdown",
            ".lock",
            "recovery-point-offset-checkpoint",
            "log-start-offset-checkpoint",
            "replication-offset-checkpoint",
            "cleaner-offset-checkpoint",
        } <= names

    restarted = managers.start("one", "two")
    assert not (managers.root / "one" / ".kafka_cleanshutdown").exists()
    assert len(restarted) == 8
    for n in range(8):
        log = restarted.get(TopicPartition("t", n))
        assert log.end_offset == n + 1 == log.high_watermark == log.flushed_offset
    assert restarted.get(TopicPartition("t", 3)).start_offset == 2


def test_all_records_are_read_after_a_crash(managers):
    manager = managers.start("one", "two")
    for n in range(4):
        append(manager.get_or_create(TopicPartition("t", n)), records(b"k") * (n + 1))
    managers.crash(manager)
    restarted = managers.start("one", "two")
    assert [restarted.get(TopicPartition("t", n)).end_offset for n in range(4)] == [1, 2, 3, 4]


def test_a_crash_during_the_start_requires_recovery(managers):
    manager = managers.start()
    append(manager.get_or_create(A), records(b"k"))
    manager.shutdown()
    opened = []
    real = Log.open

    def spy(*args, **options):
        opened.append(options["clean_shutdown"])
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "open", spy)
        managers.crash(managers.start())
        managers.start()
    assert opened == [True, False]


def test_a_log_that_was_flushed_is_recovered_only_past_its_recovery_point(managers):
    manager = managers.start()
    log = manager.get_or_create(A)
    append(log, records(b"a", b"b"))
    log.flush()
    run_now(job(manager, "checkpoint-recovery-points"))
    assert (managers.root / "one" / "recovery-point-offset-checkpoint").read_text() == "0\n1\na 0 2\n"


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
def test_a_corrupt_checkpoint_logs_a_warning_and_loses_no_data(managers, caplog, name):
    manager = managers.start()
    append(manager.get_or_create(A), records(b"a", b"b"))
    manager.shutdown()
    (managers.root / "one" / name).write_text("garbage")
    restarted = managers.start()
    assert restarted.get(A).end_offset == 2
    assert name in caplog.text


def test_a_corrupt_recovery_point_checkpoint_means_full_recovery(managers):
    manager = managers.start()
    append(manager.get_or_create(A), records(b"a", b"b"))
    append(manager.get(A), records(b"c"))
    manager.shutdown()
    (managers.root / "one" / "recovery-point-offset-checkpoint").write_text("0\nx\n")
    log_file = managers.root / "one" / "a-0" / f"{0:020}.log"
    data = bytearray(log_file.read_bytes())
    data[-1] ^= 1
    log_file.write_bytes(data)
    assert managers.start().get(A).end_offset == 2


def test_folders_that_are_no_partitions_are_reported_and_ignored(managers, caplog):
    (managers.root / "one" / "backup").mkdir(parents=True)
    (managers.root / "one" / "backup" / "file").write_text("x")
    (managers.root / "one" / "a-0.0123456789abcdef0123456789abcdef-stray").mkdir()
    (managers.root / "one" / "__cluster_metadata-0").mkdir()
    (managers.root / "one" / "lost+found").mkdir()
    manager = managers.start()
    assert len(manager) == 0
    assert {path.name for path in manager.ignored_folders} == {
        "backup",
        "a-0.0123456789abcdef0123456789abcdef-stray",
        "__cluster_metadata-0",
    }
    assert "backup" in caplog.text and (managers.root / "one" / "backup" / "file").exists()


def test_a_partition_with_two_logs_gives_a_clear_error(managers):
    for name in ("one", "two"):
        (managers.root / name / "a-0").mkdir(parents=True)
    with pytest.raises(LogDirError, match="a-0 has two logs"):
        managers.start("one", "two")


def test_progress_is_reported_while_logs_are_opened(managers, monkeypatch):
    manager = managers.start()
    for n in range(4):
        manager.get_or_create(TopicPartition("t", n))
    manager.shutdown()
    gate = threading.Event()
    real = Log.open

    def slow(path, *args, **options):
        if path.name == "t-3":
            gate.wait(10)
        return real(path, *args, **options)

    monkeypatch.setattr(Log, "open", slow)
    reports = []

    def progress(done, total, names):
        reports.append((done, total, names))
        gate.set()

    restarted = managers.start(load=False)
    restarted.load(progress)
    assert reports[0] == (3, 4, ["t-3"]) and len(restarted) == 4


def test_a_cancelled_start_opens_no_other_logs(managers, monkeypatch):
    manager = managers.start()
    for n in range(20):
        manager.get_or_create(TopicPartition("t", n))
    manager.shutdown()
    opened = []
    cancelled = threading.Event()
    real = Log.open

    def slow(path, *args, **options):
        opened.append(path.name)
        cancelled.wait(10)
        time.sleep(0.01)
        return real(path, *args, **options)

    def cancel(done, total, names):
        cancelled.set()
        raise LogDirError("cancelled")

    monkeypatch.setattr(Log, "open", slow)
    restarted = managers.start(load=False)
    with pytest.raises(LogDirError, match="cancelled"):
        restarted.load(cancel)
    assert len(opened) < 20


def test_a_log_that_cannot_be_opened_does_not_affect_others(managers, monkeypatch):
    manager = managers.start()
    manager.get_or_create(A)
    manager.get_or_create(B)
    manager.shutdown()
    real = Log.open

    def broken(path, *args, **options):
        if path.name == "a-0":
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "nonsense in the files")
        return real(path, *args, **options)

    monkeypatch.setattr(Log, "open", broken)
    restarted = managers.start()
    assert restarted.get(B) is not None and restarted.get(A) is None and restarted.is_offline(A)
    with pytest.raises(KafkaError, match="nonsense"):
        restarted.get_or_create(A)
    restarted.delete(A)
    monkeypatch.undo()
    assert restarted.get_or_create(A).end_offset == 0
    run_now(job(restarted, "delete-files"))
    assert sorted(name for name in os.listdir(managers.root / "one") if "-0" in name) == ["a-0", "b-0"]


# --- meta.properties


def test_a_directory_locked_by_another_broker_gives_a_clear_error(managers):
    manager = managers.start("two")
    with pytest.raises(LogDirError, match="two"):
        managers.start("one", "two")
    other = managers.start("one")
    assert len(other) == 0 and len(manager) == 0


def test_directories_store_their_broker_and_cluster_id(managers):
    manager = managers.start("one", "two")
    assert manager.check_ids(1, None) == (1, None)
    manager.write_ids(1, "cluster")
    manager.shutdown()
    restarted = managers.start("one", "two")
    assert restarted.check_ids(None, None) == (1, "cluster")
    with pytest.raises(LogDirError, match=r"broker\.id"):
        restarted.check_ids(2, "cluster")


# --- deleting


def test_a_deleted_partition_is_renamed_at_once_and_removed_after_the_delay(managers):
    manager = managers.start()
    append(manager.get_or_create(A), records(b"k"))
    manager.delete(A)
    assert manager.get(A) is None
    deleted_folders = [parse_dir_name(name) for name in os.listdir(managers.root / "one") if name.endswith("-delete")]
    assert [(p.partition, len(p.unique_id)) for p in deleted_folders] == [(A, 32)]
    deletion = job(manager, "delete-files")
    assert run_now(deletion) == 0
    new_log = manager.get_or_create(A)
    append(new_log, records(b"new"))
    managers.clock.advance(1000)
    run_now(deletion)
    assert not [name for name in os.listdir(managers.root / "one") if name.endswith("-delete")]
    assert [key for _, key, _ in contents(manager.get(A))] == [b"new"]


def test_a_response_in_flight_completes_after_the_partition_is_deleted(managers):
    manager = managers.start()
    log = manager.get_or_create(A)
    append(log, records(b"k"))
    piece = log.read(0, 1000, limit=1, min_one_batch=True).slice
    manager.delete(A)
    assert len(piece.read()) == piece.size


def test_pending_deletions_are_completed_at_the_next_start(managers):
    manager = managers.start()
    manager.get_or_create(A)
    manager.delete(A)
    managers.crash(manager)
    restarted = managers.start()
    assert len(restarted) == 0
    run_now(job(restarted, "delete-files"))
    assert not [name for name in os.listdir(managers.root / "one") if "delete" in name]


def test_files_of_deleted_segments_are_removed_after_the_delay(managers):
    manager = managers.start()
    log = manager.get_or_create(A)
    append(log, records(b"k"))
    log.roll()
    append(log, records(b"k"))
    log.delete_records_before(1)
    run_now(job(manager, "retention"))
    assert len(log.segments) == 1

    def deleted() -> list[str]:
        return [name for name in os.listdir(log.dir) if name.endswith(".deleted")]

    assert deleted()
    run_now(job(manager, "delete-files"))
    assert deleted()
    managers.clock.advance(1000)
    run_now(job(manager, "delete-files"))
    assert not deleted()


# --- periodic work


def test_retention_removes_old_segments_of_all_logs(managers):
    managers.config = replace(CONFIG, retention_ms=5000)
    manager = managers.start()
    for partition in (A, B):
        append(manager.get_or_create(partition), records(b"k"))
        manager.get(partition).roll()
    managers.clock.advance(100)
    for partition in (A, B):
        append(manager.get(partition), records(b"k"))
    managers.clock.advance(4950)
    run_now(job(manager, "retention"))
    assert manager.get(A).start_offset == 1 and manager.get(B).start_offset == 1


def test_work_on_many_logs_is_done_in_slices(managers, monkeypatch):
    manager = managers.start()
    for n in range(30):
        manager.get_or_create(TopicPartition("t", n))
    visited = []
    monkeypatch.setattr("kavka.storage.maintenance.MAX_SLICE_S", 0.0)
    monkeypatch.setattr(Log, "delete_old_segments", lambda log, now: visited.append(log.topic_partition.partition))
    rounds = run_now(job(manager, "retention"))
    assert sorted(visited) == list(range(30)) and rounds > 10


def test_logs_with_flush_ms_are_flushed_by_time(managers):
    managers.config = replace(CONFIG, flush_ms=3000)
    manager = managers.start()
    log = manager.get_or_create(A)
    append(log, records(b"k"))
    flush = job(manager, "flush")
    assert run_now(flush) == 0 and log.flushed_offset == 0
    managers.clock.advance(3000)
    assert run_now(flush) == 1 and log.flushed_offset == 1
    manager.update_config("a", CONFIG)
    append(log, records(b"k"))
    managers.clock.advance(3000)
    assert run_now(flush) == 0 and log.flushed_offset == 1


def test_a_rolled_segment_is_flushed_soon(managers):
    manager = managers.start()
    log = manager.get_or_create(A)
    append(log, records(b"k"))
    log.roll()
    append(log, records(b"k"))
    run_now(job(manager, "flush"))
    assert log.flushed_offset == 1


def test_only_changed_checkpoints_are_written(managers, monkeypatch):
    manager = managers.start("one", "two")
    log = manager.get_or_create(A)
    manager.get_or_create(B)
    high_watermarks = job(manager, "checkpoint-high-watermarks")
    append(log, records(b"k"))
    assert run_now(high_watermarks) == 1
    assert (managers.root / "one" / "replication-offset-checkpoint").read_text() == "0\n1\na 0 1\n"
    assert run_now(high_watermarks) == 0


def test_start_offsets_are_checkpointed_only_past_the_first_base_offset(managers):
    manager = managers.start()
    append(manager.get_or_create(A), records(b"k", b"l"))
    append(manager.get_or_create(B), records(b"k", b"l"))
    manager.get(A).delete_records_before(1)
    run_now(job(manager, "checkpoint-start-offsets"))
    assert (managers.root / "one" / "log-start-offset-checkpoint").read_text() == "0\n1\na 0 1\n"
    managers.crash(manager)
    restarted = managers.start()
    assert restarted.get(A).start_offset == 1 and restarted.get(B).start_offset == 0


def test_inactive_producers_expire(managers):
    settings = StorageSettings(producer_id_expiration_ms=60_000)
    manager = managers.start(settings=settings)
    log = manager.get_or_create(A)
    append(log, records(b"k"), producer_id=1, producer_epoch=0, base_sequence=0)
    run_now(job(manager, "expire-producers"))
    assert len(list(log.producers())) == 1
    managers.clock.advance(60_000)
    run_now(job(manager, "expire-producers"))
    assert len(list(log.producers())) == 0


def test_settings_are_read_by_their_names_in_the_broker_configuration():
    settings = StorageSettings.from_values(
        {
            "num.recovery.threads.per.data.dir": 4,
            "log.cleaner.threads": 2,
            "log.cleaner.dedupe.buffer.size": 1000,
            "log.flush.scheduler.interval.ms": None,
        }
    )
    assert settings.recovery_threads_per_data_dir == 4
    assert settings.cleaner == CleanerSettings(threads=2, dedupe_buffer_size=1000)
    assert settings.flush_scheduler_interval_ms == 2**63 - 1
