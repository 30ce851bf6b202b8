from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition
from kavka.pipeline.streams.own_topics import Purge
from kavka.pipeline.streams.progress import done


def write(checkpoint: Path, batch: int, *sources: str, committed: bool = True) -> None:
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *sources]))
    if committed:
        (checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def test_nothing_is_done_before_the_first_batch_is_committed(tmp_path):
    assert done(tmp_path / "checkpoint") == {}
    write(tmp_path, 0, '{"a": {"0": 5}}', committed=False)
    assert done(tmp_path) == {}


def test_done_is_where_the_last_committed_batch_ended_in_all_sources(tmp_path):
    write(tmp_path, 9, '{"a": {"0": 5}, "$initial": {"a": {"0": 2}}}', '{"b": {"0": 1}}')
    write(tmp_path, 10, '{"a": {"0": 7, "1": 3}}', "-", '{"b": {"0": 4}}')
    write(tmp_path, 11, '{"a": {"0": 9, "1": 9}}', "-", '{"b": {"0": 9}}', committed=False)
    (tmp_path / "commits" / ".11.crc").touch()
    assert done(tmp_path) == {TopicPartition("a", 0): 7, TopicPartition("a", 1): 3, TopicPartition("b", 0): 4}


class Deleting:
    """In place of an admin: the offsets of its calls."""

    def __init__(self) -> None:
        self.deleted: list[Mapping[TopicPartition, int]] = []
        self.fails = False

    def delete_records(self, offsets: Mapping[TopicPartition, int], *, timeout: float) -> None:
        self.deleted.append(offsets)
        if self.fails:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "it has moved")


def purge(admin: Deleting, checkpoint: Path) -> Purge:
    made: Any = lambda: nullcontext(admin)  # noqa: E731
    return Purge(made, {"app-own"}, checkpoint, 30.0)


def test_of_the_applications_own_topics_what_the_checkpoint_has_done_is_deleted_once(tmp_path):
    admin = Deleting()
    purging = purge(admin, tmp_path)
    purging.once()
    write(tmp_path, 0, '{"app-own": {"0": 0, "1": 3}, "users": {"0": 8}}')
    write(tmp_path, 1, '{"app-own": {"0": 5, "1": 9}, "users": {"0": 9}}', committed=False)
    purging.once()
    purging.once()
    assert admin.deleted == [{TopicPartition("app-own", 1): 3}]
    write(tmp_path, 1, '{"app-own": {"0": 5, "1": 3}, "users": {"0": 9}}')
    purging.once()
    assert admin.deleted[1:] == [{TopicPartition("app-own", 0): 5}]


def test_a_failed_deletion_is_tried_again(tmp_path):
    admin = Deleting()
    purging = purge(admin, tmp_path)
    write(tmp_path, 0, '{"app-own": {"0": 2}}')
    admin.fails = True
    purging.once()
    admin.fails = False
    purging.once()
    purging.once()
    assert admin.deleted == [{TopicPartition("app-own", 0): 2}] * 2


def test_a_checkpoint_that_is_taken_away_meanwhile_ends_nothing(tmp_path):
    admin = Deleting()
    write(tmp_path, 0, '{"app-own": {"0": 2}}')
    (tmp_path / "offsets" / "0").unlink()
    purge(admin, tmp_path).once()
    assert admin.deleted == []
