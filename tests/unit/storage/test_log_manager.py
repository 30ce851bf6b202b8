from __future__ import annotations

import errno
import os
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.records.compression import GZIP
from kavka.storage.cleaner import CleanerSettings
from kavka.storage.jobs import Job
from kavka.storage.log import Log
from kavka.storage.log_config import LogConfig
from kavka.storage.log_dir import LogDirError
from kavka.storage.log_manager import LogManager
from kavka.storage.partition_dir import marked_name, parse_dir_name
from kavka.storage.settings import StorageSettings
from tests.support.jobs import run_now
from tests.support.logs import FakeClock, append, build, contents

A, B, C = TopicPartition("a", 0), TopicPartition("b", 0), TopicPartition("c", 0)
CONFIG = LogConfig(file_delete_delay_ms=1000)


class Managers:
    """Creates managers on the same directories one after another, and closes all of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        self.config = CONFIG
        self.failed: list[tuple[str, list[TopicPartition]]] = []
        self.moved: list[tuple[TopicPartition, Log]] = []
        self._made: list[LogManager] = []

    def start(self, *dirs: str, settings: StorageSettings | None = None, load: bool = True) -> LogManager:
        manager = LogManager(
            [self.root / name for name in dirs or ("one",)],
            lambda topic: self.config,
            settings,
            self.clock,
            on_dir_failure=lambda d, partitions: self.failed.append((d.path.name, sorted(partitions))),
            on_moved=lambda partition, log: self.moved.append((partition, log)),
        )
        manager.open_dirs()
        self._made.append(manager)
        if load:
            manager.load()
        return manager

    def crash(self, manager: LogManager) -> None:
        manager.abandon()

    def close(self) -> None:
        for manager in self._made:
            manager.abandon()


@pytest.fixture
def managers(tmp_path):
    managers = Managers(tmp_path)
    yield managers
    managers.close()


def job(manager: LogManager, name: str) -> Job:
    return next(each for each in manager.jobs() if each.name == name)


def records(*keys: bytes) -> list[tuple[bytes | None, bytes | None]]:
    return [(key, b"v") for key in keys]


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
    assert parsed.partition == TopicPartition(topic, partition) and parsed.kind == kind


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
    assert len(name) == 255 and parse_dir_name(name).kind == "delete"


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
    make = manager.place_new([(each, topic_id, True) for each in (A, B, C)])
    assert make is not None
    make()
    assert manager.place_new([(A, topic_id, True)]) is None, "it has its place"
    homes = {each: manager.dir_of(manager.get_or_create(each, topic_id=topic_id)) for each in (A, B, C)}
    assert sorted(home.path.name for home in homes.values()) in (["one", "one", "two"], ["one", "two", "two"])
    assert all(manager.get(each).topic_id == topic_id for each in (A, B, C))
    assert sum(1 for home in ("one", "two") for _ in (managers.root / home).glob("?-0")) == 3


def test_a_reserved_folder_in_a_failed_directory_is_not_created_elsewhere(managers):
    manager = managers.start("one", "two")
    held = manager.get_or_create(A)
    failing = manager.dir_of(held)
    manager.get_or_create(B)
    make = manager.place_new([(C, uuid.uuid4(), True)])
    assert make is not None
    make()
    placed_in = next(home for home in ("one", "two") if (managers.root / home / "c-0").exists())
    if failing.path.name != placed_in:
        held = manager.get(B)
    assert manager.report_failure(held, OSError(errno.EIO, "gone"))
    with pytest.raises(KafkaError) as refused:
        manager.get_or_create(C)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert len(list(managers.root.glob("*/c-0"))) == 1


@pytest.mark.parametrize("beforehand", [True, False])
def test_a_missing_directory_has_failed_and_is_not_recreated(managers, beforehand):
    manager = managers.start("one", "two")
    home = manager.dir_of(manager.get_or_create(A)).path
    manager.get_or_create(B)
    home.rename(home.with_name("away"))
    topic_id = uuid.uuid4()
    if beforehand:
        make = manager.place_new([(C, topic_id, True)])
        assert make is not None
        with pytest.raises(FileNotFoundError):
            make()
    with pytest.raises(KafkaError) as refused:
        manager.get_or_create(C, topic_id=topic_id)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert managers.failed == [(home.name, [A])]
    assert not home.exists()
    assert manager.get_or_create(C, topic_id=topic_id).dir.parent != home


def test_an_existing_partition_gets_no_new_folder_while_a_directory_is_offline(managers):
    manager = managers.start("one", "two")
    held = manager.get_or_create(A)
    assert manager.report_failure(held, OSError(errno.EIO, "gone"))
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
    old, new = uuid.uuid4(), uuid.uuid4()
    append(manager.get_or_create(A, topic_id=old), records(b"old"))
    manager.shutdown()
    manager = managers.start()
    with pytest.raises(KafkaError) as refused:
        manager.get_or_create(A, topic_id=new, is_new=False)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert [key for _, key, _ in contents(manager.get(A))] == [b"old"]
    log = manager.get_or_create(A, topic_id=new, is_new=True)
    assert (log.topic_id, log.end_offset) == (new, 0)
    append(log, records(b"new"))
    managers.crash(manager)
    manager = managers.start()
    assert [key for _, key, _ in contents(manager.get(A))] == [b"new"]
    # Its records are not lost: an operator can inspect the folder.
    [stranger] = manager.ignored_folders
    assert parse_dir_name(stranger.name)[:2] == (A, "stray")


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

    again = managers.start("one", "two")
    assert not (managers.root / "one" / ".kafka_cleanshutdown").exists()
    assert len(again) == 8
    for n in range(8):
        log = again.get(TopicPartition("t", n))
        assert log.end_offset == n + 1 == log.high_watermark == log.flushed_offset
    assert again.get(TopicPartition("t", 3)).start_offset == 2


def test_all_records_are_read_after_a_crash(managers):
    manager = managers.start("one", "two")
    for n in range(4):
        append(manager.get_or_create(TopicPartition("t", n)), records(b"k") * (n + 1))
    managers.crash(manager)
    again = managers.start("one", "two")
    assert [again.get(TopicPartition("t", n)).end_offset for n in range(4)] == [1, 2, 3, 4]


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
    again = managers.start()
    assert again.get(A).end_offset == 2
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

    again = managers.start(load=False)
    again.load(progress)
    assert reports[0] == (3, 4, ["t-3"]) and len(again) == 4


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
    again = managers.start()
    assert again.get(B) is not None and again.get(A) is None and again.is_offline(A)
    with pytest.raises(KafkaError, match="nonsense"):
        again.get_or_create(A)
    again.delete(A)
    monkeypatch.undo()
    assert again.get_or_create(A).end_offset == 0
    run_now(job(again, "delete-files"))
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
    assert manager.claim(1, None) == (1, None)
    manager.mark(1, "cluster")
    manager.shutdown()
    again = managers.start("one", "two")
    assert again.claim(None, None) == (1, "cluster")
    with pytest.raises(LogDirError, match=r"broker\.id"):
        again.claim(2, "cluster")


# --- deleting


def test_a_deleted_partition_is_renamed_at_once_and_removed_after_the_delay(managers):
    manager = managers.start()
    append(manager.get_or_create(A), records(b"k"))
    manager.delete(A)
    assert manager.get(A) is None
    left = [parse_dir_name(name) for name in os.listdir(managers.root / "one") if name.endswith("-delete")]
    assert [(p.partition, len(p.unique)) for p in left] == [(A, 32)]
    deletion = job(manager, "delete-files")
    assert run_now(deletion) == 0
    fresh = manager.get_or_create(A)
    append(fresh, records(b"new"))
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
    again = managers.start()
    assert len(again) == 0
    run_now(job(again, "delete-files"))
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
    seen = []
    monkeypatch.setattr("kavka.storage.maintenance.SLICE_S", 0.0)
    monkeypatch.setattr(Log, "delete_old_segments", lambda log, now: seen.append(log.topic_partition.partition))
    rounds = run_now(job(manager, "retention"))
    assert sorted(seen) == list(range(30)) and rounds > 10


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
    again = managers.start()
    assert again.get(A).start_offset == 1 and again.get(B).start_offset == 0


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


# --- cleaning


COMPACTED = replace(CONFIG, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.1)


def dirty(log: Log, *, rounds: int = 2) -> None:
    for _ in range(rounds):
        append(log, records(b"a", b"b", b"a"))
    log.roll()
    append(log, records(b"z"))


def test_compacted_logs_are_cleaned_one_after_another_and_checkpointed(managers):
    managers.config = COMPACTED
    manager = managers.start()
    for partition in (A, B):
        dirty(manager.get_or_create(partition))
    run_now(job(manager, "cleaner"))
    for partition in (A, B):
        assert [offset for offset, *_ in contents(manager.get(partition))] == [4, 5, 6]
    text = (managers.root / "one" / "cleaner-offset-checkpoint").read_text()
    assert text == "0\n2\na 0 6\nb 0 6\n"
    managers.crash(manager)
    again = managers.start()
    assert again.cleaner.clean_offsets == {A: 6, B: 6}
    assert run_now(job(again, "cleaner")) == 0


def test_an_uncleanable_log_does_not_stop_the_cleaning_of_others(managers, caplog):
    managers.config = COMPACTED
    manager = managers.start()
    for partition in (A, B, C):
        dirty(manager.get_or_create(partition), rounds=3 if partition is A else 2)
    with open(manager.get(A).segments[0].file.path, "r+b") as file:
        file.seek(65)
        file.write(b"\xff\xff\xff")
    run_now(job(manager, "cleaner"))
    assert set(manager.cleaner.uncleanable) == {A}
    assert manager.cleaner.clean_offsets == {B: 6, C: 6}
    assert "a-0 cannot be compacted" in caplog.text
    assert manager.get(A) is not None and not managers.failed


@pytest.mark.parametrize("magic", [1, 2])
def test_a_log_with_a_batch_above_the_decompression_limit_is_uncleanable(managers, caplog, monkeypatch, magic):
    monkeypatch.setattr("kavka.storage.compaction.unpacked_limit", lambda batch: 1000)
    managers.config = COMPACTED
    manager = managers.start()
    log = manager.get_or_create(A)
    append(log, records(b"a", b"b"))
    log.append_as_follower(build([(b"a", bytes(1001))], magic=magic, codec=GZIP, base_offset=2))
    log.set_high_watermark(log.end_offset)
    dirty(log)
    dirty(manager.get_or_create(B))
    before = contents(log)
    run_now(job(manager, "cleaner"))
    assert set(manager.cleaner.uncleanable) == {A}
    assert manager.cleaner.clean_offsets == {B: 6}
    assert contents(log) == before
    message = "a-0 cannot be compacted until the next start: the batch at offset 2: "
    assert f"{message}compressed records unpack to more than 1000 bytes" in caplog.text
    assert not managers.failed


def test_logs_with_both_policies_are_cleaned_and_expire(managers):
    managers.config = replace(COMPACTED, cleanup_policy=("compact", "delete"), retention_ms=5000)
    manager = managers.start()
    log = manager.get_or_create(A)
    dirty(log)
    run_now(job(manager, "cleaner"))
    assert [offset for offset, *_ in contents(log)] == [4, 5, 6]
    managers.clock.advance(6000)
    append(log, records(b"new"))
    run_now(job(manager, "retention"))
    assert log.start_offset == 6


def test_retention_skips_a_log_that_is_being_cleaned(managers):
    managers.config = replace(COMPACTED, cleanup_policy=("compact", "delete"), retention_ms=5000)
    manager = managers.start()
    log = manager.get_or_create(A)
    dirty(log)
    cleaner = job(manager, "cleaner")
    assert cleaner.prepare()
    managers.clock.advance(6000)
    run_now(job(manager, "retention"))
    assert log.start_offset == 0
    cleaner.run()
    cleaner.finish(None)
    run_now(cleaner)
    run_now(job(manager, "retention"))
    assert log.start_offset == 7


def test_truncation_lowers_the_clean_offset(managers):
    managers.config = COMPACTED
    manager = managers.start()
    log = manager.get_or_create(A)
    dirty(log)
    run_now(job(manager, "cleaner"))
    manager.truncate_to(A, 5)
    assert manager.cleaner.clean_offsets == {A: 5}
    manager.truncate_fully_and_start_at(A, 100)
    assert manager.cleaner.clean_offsets == {} and log.end_offset == 100


def test_checkpoints_are_lowered_by_a_truncation(managers):
    manager = managers.start()
    log = manager.get_or_create(A)
    for _ in range(10):
        append(log, records(b"k"))
    log.set_high_watermark(10)
    log.flush()
    names = ("checkpoint-recovery-points", "checkpoint-high-watermarks")
    for name in names:
        run_now(job(manager, name))
    home = manager.dir_of(log)
    assert (home.recovery_points.read(), home.high_watermarks.read()) == ({A: 10}, {A: 10})
    # A checkpoint with older offsets is being written when the log is truncated.
    append(log, records(b"k"))
    log.flush()
    writing = job(manager, names[0])
    assert writing.prepare()
    manager.truncate_to(A, 4)
    assert (home.recovery_points.read(), home.high_watermarks.read()) == ({A: 4}, {A: 4})
    append(log, records(b"k"))
    writing.run()
    assert writing.finish(None)
    assert writing.prepare()
    writing.run()
    assert not writing.finish(None)
    assert home.recovery_points.read() == {A: 4}
    # A truncation past all checkpoints writes nothing.
    before = home.recovery_points.path.stat().st_mtime_ns
    manager.truncate_to(A, 4)
    assert home.recovery_points.path.stat().st_mtime_ns == before


def test_checkpoints_of_a_deleted_log_do_not_apply_to_the_next_log_of_that_name(managers):
    manager = managers.start()
    old = manager.get_or_create(A, topic_id=uuid.uuid4())
    append(old, records(b"a", b"b", b"c", b"d", b"e"))
    old.set_high_watermark(5)
    old.delete_records_before(4)
    old.flush()
    for name in ("checkpoint-recovery-points", "checkpoint-start-offsets", "checkpoint-high-watermarks"):
        run_now(job(manager, name))
    manager.delete(A)
    new = manager.get_or_create(A, topic_id=uuid.uuid4())
    append(new, records(b"x", b"y"))
    managers.crash(manager)
    log = managers.start().get(A)
    assert (log.start_offset, log.end_offset, log.high_watermark) == (0, 2, 0)
    assert [key for _, key, _ in contents(log)] == [b"x", b"y"]
    assert log.flushed_offset == 0


def test_a_partition_deleted_during_its_cleaning_is_removed(managers):
    managers.config = COMPACTED
    manager = managers.start()
    dirty(manager.get_or_create(A))
    cleaner = job(manager, "cleaner")
    assert cleaner.prepare()
    cleaner.run()
    manager.delete(A)
    cleaner.finish(None)
    assert run_now(cleaner) == 0 and manager.cleaner.current is None and not manager.cleaner.uncleanable


def test_a_failed_swap_takes_the_directory_offline_and_the_next_start_completes_it(managers, monkeypatch):
    managers.config = COMPACTED
    manager = managers.start("one", "two")
    dirty(manager.get_or_create(A))
    dirty(manager.get_or_create(B))
    real = os.rename
    renames = []

    def rename(source, target, **options):
        if "/one/" in os.fspath(source):
            renames.append(source)
            if len(renames) > 5:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target, **options)

    monkeypatch.setattr(os, "rename", rename)
    run_now(job(manager, "cleaner"))
    monkeypatch.undo()
    assert managers.failed == [("one", [A])]
    assert manager.cleaner.clean_offsets == {B: 6}
    managers.crash(manager)
    again = managers.start("one", "two")
    assert [offset for offset, *_ in contents(again.get(A))] == [4, 5, 6]


def test_the_cleaner_respects_its_rate(managers):
    managers.config = COMPACTED
    settings = StorageSettings(cleaner=CleanerSettings(io_max_bytes_per_second=4000.0))
    manager = managers.start(settings=settings)
    dirty(manager.get_or_create(A))
    size = manager.get(A).segments[0].size
    started = time.monotonic()
    run_now(job(manager, "cleaner"))
    cleaned = manager.get(A).segments[0].size
    # Read twice and written once, but for the last few bytes.
    assert time.monotonic() - started > (2 * size + cleaned) / 4000 * 0.9


def test_a_partition_deleted_during_a_flush_fails_no_directory(managers):
    managers.config = replace(CONFIG, flush_ms=0)
    manager = managers.start("one", "two")
    append(manager.get_or_create(A), records(b"k"))
    flush = job(manager, "flush")
    assert flush.prepare()
    manager.delete(A)
    error = None
    try:
        flush.run()
    except OSError as failure:
        error = failure
    flush.finish(error)
    assert not managers.failed and manager.online_dirs == manager.dirs


def test_a_stopped_cleaner_leaves_the_log_unchanged(managers):
    managers.config = COMPACTED
    settings = StorageSettings(cleaner=CleanerSettings(io_max_bytes_per_second=100.0))
    manager = managers.start(settings=settings)
    log = manager.get_or_create(A)
    dirty(log)
    cleaner = job(manager, "cleaner")
    assert cleaner.prepare()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            cleaner.run()
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    manager.stop_jobs()
    worker.join(2)
    assert not worker.is_alive() and errors
    assert not cleaner.finish(errors[0])
    assert [offset for offset, *_ in contents(log)] == list(range(7))
    assert not cleaner.prepare()


# --- directory failures


def break_dir(monkeypatch, name: str, code: int = errno.EIO) -> None:
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        if f"/{name}/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)


def test_a_failed_directory_takes_only_its_own_partitions_offline(managers, monkeypatch):
    managers.config = replace(CONFIG, flush_ms=0)
    manager = managers.start("one", "two")
    for partition in (A, B, C):
        append(manager.get_or_create(partition), records(b"k"))
    break_dir(monkeypatch, "one")
    run_now(job(manager, "flush"))
    assert managers.failed == [("one", [A, C])]
    assert manager.get(A) is None and manager.is_offline(A)
    assert manager.get(B).end_offset == 1 and not manager.is_offline(B)
    append(manager.get(B), records(b"k"))
    run_now(job(manager, "flush"))
    assert manager.get(B).flushed_offset == 2
    with pytest.raises(KafkaError) as caught:
        manager.get_or_create(A)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError):
        manager.get_or_create(TopicPartition("unknown", 0), is_new=False)
    fresh = manager.get_or_create(TopicPartition("new", 0))
    assert fresh.dir.parent.name == "two"
    for each in manager.jobs():
        run_now(each)
    assert [(info.online, len(info.replicas)) for info in manager.describe()] == [(False, 0), (True, 2)]
    manager.shutdown()
    assert (managers.root / "two" / ".kafka_cleanshutdown").exists()
    assert not (managers.root / "one" / ".kafka_cleanshutdown").exists()


def test_a_flush_on_a_full_disk_fails_the_directory(managers, monkeypatch):
    managers.config = replace(CONFIG, flush_ms=0)
    manager = managers.start("one", "two")
    append(manager.get_or_create(A), records(b"k"))
    break_dir(monkeypatch, "one", errno.ENOSPC)
    run_now(job(manager, "flush"))
    assert managers.failed == [("one", [A])]


def test_the_cause_of_an_append_error_decides_on_a_directory_failure(managers):
    manager = managers.start("one", "two")
    log = manager.get_or_create(A)

    def wrapped(code: int) -> KafkaError:
        error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        error.__cause__ = OSError(code, os.strerror(code))
        return error

    assert not manager.report_failure(log, wrapped(errno.ENOSPC))
    assert not manager.report_failure(log, KafkaError(ErrorCode.CORRUPT_MESSAGE))
    assert manager.get(A) is log
    assert manager.report_failure(log, wrapped(errno.EIO))
    assert manager.get(A) is None and managers.failed == [("one", [A])]
    assert manager.report_failure(log, wrapped(errno.EIO)) and len(managers.failed) == 1


def test_a_missing_file_at_an_old_path_of_the_log_is_no_directory_failure(managers):
    manager = managers.start("one", "two")
    log = manager.get_or_create(A)
    elsewhere = FileNotFoundError(errno.ENOENT, "No such file or directory", str(managers.root / "two" / "a-0"))
    assert manager.report_failure(log, elsewhere) and not managers.failed
    here = FileNotFoundError(errno.ENOENT, "No such file or directory", str(log.dir / "x.log"))
    assert manager.report_failure(log, here) and managers.failed == [("one", [A])]


def test_an_unusable_directory_at_the_start_is_offline_and_others_are_used(managers):
    (managers.root / "one").write_text("a file, not a folder")
    manager = managers.start("one", "two")
    assert [d.path.name for d in manager.online_dirs] == ["two"]
    assert manager.get_or_create(A).dir.parent.name == "two"


def test_no_usable_directory_gives_a_clear_error(managers):
    (managers.root / "one").write_text("a file, not a folder")
    with pytest.raises(LogDirError, match="one"):
        managers.start("one")


def test_a_directory_that_fails_while_it_is_loaded_does_not_affect_others(managers, monkeypatch):
    manager = managers.start("one", "two")
    manager.get_or_create(A)
    manager.get_or_create(B)
    manager.shutdown()
    real = Log.open

    def failing(path, *args, **options):
        if path.parent.name == "one":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *args, **options)

    monkeypatch.setattr(Log, "open", failing)
    again = managers.start("one", "two")
    assert again.is_offline(A) and again.get(B) is not None
    assert [d.path.name for d in again.online_dirs] == ["two"]


# --- moves


def finish_move(manager: LogManager) -> None:
    for _ in range(50):
        if not run_now(job(manager, "move-logs")):
            return
    raise AssertionError("the move does not come to its end")


def test_a_partition_is_created_in_the_requested_directory(managers):
    manager = managers.start("one", "two")
    manager.move(A, managers.root / "two")
    assert manager.get_or_create(A).dir.parent.name == "two"


def test_a_partition_moves_while_it_is_written_to(managers):
    managers.config = replace(CONFIG, segment_bytes=3000)
    manager = managers.start("one", "two")
    log = manager.get_or_create(A, None, uuid.uuid4())
    for n in range(30):
        append(log, [(b"%d" % n, b"x" * 200)], epoch=n // 10)
    log.delete_records_before(3)
    manager.move(A, managers.root / "two")
    assert [len(info.replicas) for info in manager.describe()] == [1, 1]
    assert manager.describe()[1].replicas[0].is_future and manager.describe()[1].replicas[0].offset_lag == 30
    mover = job(manager, "move-logs")
    while mover.prepare():
        append(manager.get(A), [(b"more", b"x" * 200)], epoch=3)
        mover.run()
        append(manager.get(A), [(b"more", b"x" * 200)], epoch=3)
        if not mover.finish(None):
            break
    moved = manager.get(A)
    assert moved is not log and moved.dir == managers.root / "two" / "a-0"
    assert managers.moved == [(A, moved)]
    assert [o for o, *_ in contents(moved)][-1] == log.end_offset - 1 == moved.end_offset - 1
    assert (moved.start_offset, moved.high_watermark, moved.topic_id) == (3, log.high_watermark, log.topic_id)
    assert moved.end_offset_for_epoch(1) == log.end_offset_for_epoch(1)
    append(moved, records(b"after"))
    managers.clock.advance(1000)
    run_now(job(manager, "delete-files"))
    assert not [name for name in os.listdir(managers.root / "one") if name.startswith("a-")]
    manager.shutdown()
    assert managers.start("one", "two").get(A).end_offset == moved.end_offset


def test_a_log_that_starts_in_the_middle_of_a_batch_moves(managers):
    manager = managers.start("one", "two")
    log = manager.get_or_create(A)
    append(log, records(b"a", b"b", b"c", b"d"))
    log.delete_records_before(2)
    manager.move(A, managers.root / "two")
    finish_move(manager)
    assert manager.get(A).dir.parent.name == "two"
    assert (manager.get(A).start_offset, manager.get(A).end_offset) == (2, 4)


def test_an_empty_log_with_a_start_offset_moves(managers):
    manager = managers.start("one", "two")
    manager.get_or_create(A)
    manager.truncate_fully_and_start_at(A, 77)
    manager.move(A, managers.root / "two")
    finish_move(manager)
    assert manager.get(A).dir.parent.name == "two"
    assert (manager.get(A).start_offset, manager.get(A).end_offset) == (77, 77)


def test_a_truncation_during_a_move_reaches_the_copy(managers):
    manager = managers.start("one", "two")
    log = manager.get_or_create(A)
    for n in range(10):
        append(log, [(b"%d" % n, b"old")])
    manager.move(A, managers.root / "two")
    mover = job(manager, "move-logs")
    assert mover.prepare()
    mover.run()
    manager.truncate_to(A, 5)
    append(log, [(b"5", b"new")])
    mover.finish(None)
    finish_move(manager)
    assert manager.get(A).dir.parent.name == "two"
    assert [value for *_, value in contents(manager.get(A))] == [b"old"] * 5 + [b"new"]


def test_checkpoints_of_a_copy_are_lowered_after_a_truncation(managers):
    manager = managers.start("one", "two")
    log = manager.get_or_create(A)
    for n in range(10):
        append(log, [(b"%d" % n, b"old")])
    manager.move(A, managers.root / "two")
    mover = job(manager, "move-logs")
    assert mover.prepare()
    mover.run()
    target = manager.dir_at(managers.root / "two")
    run_now(job(manager, "checkpoint-recovery-points"))
    assert target.recovery_points.read() == {A: 10}
    manager.truncate_to(A, 5)
    mover.finish(None)
    assert mover.prepare()
    assert target.recovery_points.read() == {A: 5}
    mover.finish(None)


def test_a_move_continues_after_a_restart(managers):
    manager = managers.start("one", "two")
    append(manager.get_or_create(A), records(b"a", b"b"))
    manager.move(A, managers.root / "two")
    mover = job(manager, "move-logs")
    assert mover.prepare()
    mover.run()
    managers.crash(manager)
    again = managers.start("one", "two")
    assert again.get(A).dir.parent.name == "one" and again.future(A) is not None
    finish_move(again)
    assert again.get(A).dir.parent.name == "two" and again.get(A).end_offset == 2


@pytest.mark.parametrize("step", [0, 1])
def test_a_crash_between_the_renames_of_a_move_loses_nothing(managers, monkeypatch, step):
    manager = managers.start("one", "two")
    append(manager.get_or_create(A), records(b"a", b"b"))
    manager.move(A, managers.root / "two")
    real = Log.rename_dir
    renames = []

    def crash(log, name):
        if len(renames) == step:
            raise KeyboardInterrupt
        renames.append(name)
        return real(log, name)

    monkeypatch.setattr(Log, "rename_dir", crash)
    with pytest.raises(KeyboardInterrupt):
        finish_move(manager)
    monkeypatch.undo()
    managers.crash(manager)
    again = managers.start("one", "two")
    finish_move(again)
    assert again.get(A).dir.parent.name == "two" and again.get(A).end_offset == 2
    run_now(job(again, "delete-files"))
    managers.clock.advance(1000)
    run_now(job(again, "delete-files"))
    assert not [name for name in os.listdir(managers.root / "one") if name.startswith("a-")]


def test_a_move_can_be_cancelled(managers):
    manager = managers.start("one", "two", "three")
    append(manager.get_or_create(A), records(b"a"))
    home = manager.get(A).dir.parent
    manager.move(A, managers.root / "two")
    manager.move(A, managers.root / "three")
    manager.move(A, home)
    run_now(job(manager, "move-logs"))
    run_now(job(manager, "delete-files"))
    assert manager.get(A).dir.parent == home and manager.future(A) is None
    for folder in ("two", "three"):
        assert not [name for name in os.listdir(managers.root / folder) if name.startswith("a-")]


def test_a_log_is_not_cleaned_during_a_move(managers):
    managers.config = COMPACTED
    manager = managers.start("one", "two")
    dirty(manager.get_or_create(A))
    manager.move(A, managers.root / "two")
    assert run_now(job(manager, "cleaner")) == 0
    finish_move(manager)
    manager.get(A).roll()
    append(manager.get(A), records(b"y"))
    assert run_now(job(manager, "cleaner")) > 0
    assert [offset for offset, *_ in contents(manager.get(A))] == [4, 5, 6, 7]


def test_a_failed_target_directory_cancels_the_move(managers, monkeypatch):
    manager = managers.start("one", "two")
    log = manager.get_or_create(A)
    append(log, records(b"a"))
    manager.move(A, managers.root / "two")
    break_dir(monkeypatch, "two")
    run_now(job(manager, "move-logs"))
    assert managers.failed == [("two", [])]
    assert manager.get(A) is log and manager.future(A) is None
    run_now(job(manager, "move-logs"))
    append(log, records(b"b"))


def test_a_move_to_an_unknown_directory_is_rejected(managers):
    manager = managers.start("one", "two")
    with pytest.raises(KafkaError) as caught:
        manager.move(A, managers.root / "elsewhere")
    assert caught.value.code is ErrorCode.LOG_DIR_NOT_FOUND
