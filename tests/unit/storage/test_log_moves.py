"""Moves of logs between data directories."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.storage.log import Log
from tests.support.jobs import run_now
from tests.support.logs import append, contents
from tests.unit.storage.managers import (
    COMPACTED,
    CONFIG,
    A,
    break_dir,
    finish_move,
    job,
    make_dirty,
    records,
)


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
    restarted = managers.start("one", "two")
    assert restarted.get(A).dir.parent.name == "one" and restarted.future(A) is not None
    finish_move(restarted)
    assert restarted.get(A).dir.parent.name == "two" and restarted.get(A).end_offset == 2


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
    restarted = managers.start("one", "two")
    finish_move(restarted)
    assert restarted.get(A).dir.parent.name == "two" and restarted.get(A).end_offset == 2
    run_now(job(restarted, "delete-files"))
    managers.clock.advance(1000)
    run_now(job(restarted, "delete-files"))
    assert not [name for name in os.listdir(managers.root / "one") if name.startswith("a-")]


def test_a_move_can_be_cancelled(managers):
    manager = managers.start("one", "two", "three")
    append(manager.get_or_create(A), records(b"a"))
    source = manager.get(A).dir.parent
    manager.move(A, managers.root / "two")
    manager.move(A, managers.root / "three")
    manager.move(A, source)
    run_now(job(manager, "move-logs"))
    run_now(job(manager, "delete-files"))
    assert manager.get(A).dir.parent == source and manager.future(A) is None
    for folder in ("two", "three"):
        assert not [name for name in os.listdir(managers.root / folder) if name.startswith("a-")]


def test_a_log_is_not_cleaned_during_a_move(managers):
    managers.config = COMPACTED
    manager = managers.start("one", "two")
    make_dirty(manager.get_or_create(A))
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
