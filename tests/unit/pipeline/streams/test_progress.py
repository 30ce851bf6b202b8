from __future__ import annotations

from pathlib import Path

from kavka.common.types import TopicPartition
from kavka.pipeline.streams.progress import done


def write(checkpoint: Path, batch: int, *sources: str, committed: bool = True) -> None:
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(['v1', '{"batchWatermarkMs":0}', *sources]))
    if committed:
        (checkpoint / "commits" / str(batch)).write_text("v1\n{}")


def test_nothing_is_done_before_the_first_batch_is_committed(tmp_path):
    assert done(tmp_path / "checkpoint") == {}
    write(tmp_path, 0, '{"a": {"0": 5}}', committed=False)
    assert done(tmp_path) == {}


def test_what_is_done_is_where_the_last_committed_batch_ended_in_all_sources(tmp_path):
    write(tmp_path, 9, '{"a": {"0": 5}, "$initial": {"a": {"0": 2}}}', '{"b": {"0": 1}}')
    write(tmp_path, 10, '{"a": {"0": 7, "1": 3}}', "-", '{"b": {"0": 4}}')
    write(tmp_path, 11, '{"a": {"0": 9, "1": 9}}', "-", '{"b": {"0": 9}}', committed=False)
    (tmp_path / "commits" / ".11.crc").touch()
    assert done(tmp_path) == {TopicPartition("a", 0): 7, TopicPartition("a", 1): 3, TopicPartition("b", 0): 4}
