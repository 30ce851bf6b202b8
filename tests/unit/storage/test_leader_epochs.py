"""Leader epochs: the offsets at which each epoch begins and ends."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kavka.storage.checkpoint import CheckpointError, decode_epochs
from kavka.storage.leader_epochs import LeaderEpochs


@pytest.fixture
def epochs(tmp_path: Path) -> LeaderEpochs:
    return LeaderEpochs(str(tmp_path / "leader-epoch-checkpoint"), [(2, 10), (3, 20), (5, 40)])


def test_the_file_has_a_version_a_count_and_a_line_for_each_epoch(epochs: LeaderEpochs) -> None:
    epochs.assign(7, 55)
    epochs.save()
    assert Path(epochs.path).read_text() == "0\n4\n2 10\n3 20\n5 40\n7 55\n"
    assert LeaderEpochs.load(epochs.path).entries == [(2, 10), (3, 20), (5, 40), (7, 55)]


def test_a_missing_file_has_no_epochs(tmp_path: Path) -> None:
    assert LeaderEpochs.load(str(tmp_path / "leader-epoch-checkpoint")).latest == -1


MALFORMED = [
    b"",
    bytes(20),
    b"\xff\xfe\x00",
    "０\n０\n".encode(),
    b"1\n0\n",
    b"0\n2\n1 1\n",
    b"0\n1\nx 1\n",
    b"0\n",
    b"0\n1\n-1 5\n",
    b"0\n1\n1 -1\n",
    b"0\n1\n1 1 1\n",
    b"0\n1\n1 9223372036854775808\n",
    b"0\n1\n2147483648 1\n",
    b"0\n1\n1_0 1\n",
]


@pytest.mark.parametrize("data", MALFORMED)
def test_an_empty_or_malformed_file_is_an_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="leader-epoch-checkpoint"):
        LeaderEpochs.load(str(path))


@given(st.binary(max_size=100))
def test_any_bytes_give_epochs_or_a_checkpoint_error(data: bytes) -> None:
    with contextlib.suppress(CheckpointError):
        decode_epochs(data, "x")


def test_the_file_is_on_disk_before_it_is_renamed(epochs: LeaderEpochs, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, _real=real, _name=name: (calls.append(_name), _real(*a)))
    epochs.assign(7, 55)
    epochs.save()
    assert calls == ["fsync", "replace", "fsync"]


def test_an_older_state_never_replaces_a_newer_one(epochs: LeaderEpochs) -> None:
    epochs.assign(7, 55)
    older_snapshot = epochs.snapshot()
    epochs.truncate_from_end(20)
    epochs.save()
    epochs.write(older_snapshot)
    assert Path(epochs.path).read_text() == "0\n1\n2 10\n"
    assert not epochs.dirty


def test_a_change_during_a_write_is_written_later(epochs: LeaderEpochs) -> None:
    epochs.assign(7, 55)
    snapshot = epochs.snapshot()
    epochs.assign(8, 60)
    epochs.write(snapshot)
    assert epochs.dirty


@pytest.mark.parametrize(
    ("stored", "batches", "expected"),
    [
        # (epoch, base offset, last offset)
        ([(0, 0), (1, 100)], [(0, 0, 49), (1, 50, 150)], [(0, 0), (1, 50)]),
        ([(0, 0), (1, 50), (2, 80)], [(1, 50, 79), (1, 80, 99)], [(0, 0), (1, 50)]),
        ([(2, 0), (3, 40)], [(2, 30, 45), (2, 46, 50), (4, 51, 60)], [(2, 0), (4, 51)]),
        ([(3, 50), (4, 80)], [(2, 0, 9), (2, 10, 99)], [(2, 0)]),
        (
            [(0, 0), (1, 50)],
            [(1, 60, 70), (1, 71, 80)],
            [(0, 0), (1, 50)],
        ),  # epoch 1 is compacted at its start
        ([(0, 0)], [(-1, 5, 5), (0, 6, 6)], [(0, 0)]),
        ([], [(4, 10, 20), (4, 21, 30), (6, 31, 31)], [(4, 10), (6, 31)]),
    ],
)
def test_batches_correct_the_epochs_that_a_crash_left(stored: list, batches: list, expected: list) -> None:
    epochs = LeaderEpochs("x", stored)
    for batch in batches:
        epochs.recover_batch(*batch)
    assert epochs.entries == expected


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, (-1, -1)),
        (5, (5, 100)),  # the latest epoch ends with the log
        (6, (-1, -1)),  # an unknown epoch
        (3, (3, 40)),
        (4, (3, 40)),  # the largest epoch below it
        (2, (2, 20)),
        (1, (1, 10)),  # older than all entries: ends at the start of the first entry
        (0, (0, 10)),
    ],
)
def test_the_end_of_an_epoch_is_the_start_of_the_next_one(
    epochs: LeaderEpochs, epoch: int, expected: tuple[int, int]
) -> None:
    assert epochs.end_offset_for(epoch, 100) == expected


def test_an_empty_log_has_no_epochs(tmp_path: Path) -> None:
    assert LeaderEpochs(str(tmp_path / "x")).end_offset_for(0, 10) == (-1, -1)


def test_an_epoch_is_assigned_once(epochs: LeaderEpochs) -> None:
    assert not epochs.assign(5, 60)
    assert epochs.entries[-1] == (5, 40)
    assert epochs.assign(5, 35)
    assert epochs.entries[-1] == (5, 35)


def test_entries_that_contradict_a_new_one_are_removed(epochs: LeaderEpochs) -> None:
    assert epochs.assign(6, 15)
    assert epochs.entries == [(2, 10), (6, 15)]
    assert epochs.assign(1, 30)
    assert epochs.entries == [(1, 30)]


def test_truncation_from_the_end_removes_epochs_that_begin_there_or_later(epochs: LeaderEpochs) -> None:
    epochs.truncate_from_end(40)
    assert epochs.entries == [(2, 10), (3, 20)]
    assert epochs.latest == 3
    epochs.truncate_from_end(100)
    assert epochs.latest == 3


def test_truncation_from_the_start_moves_the_epoch_of_the_start_offset(epochs: LeaderEpochs) -> None:
    epochs.truncate_from_start(25)
    assert epochs.entries == [(3, 25), (5, 40)]
    epochs.truncate_from_start(40)
    assert epochs.entries == [(5, 40)]
    epochs.truncate_from_start(5)
    assert epochs.entries == [(5, 40)]


def test_the_epoch_of_an_offset_is_the_last_epoch_that_begins_at_or_before_it(epochs: LeaderEpochs) -> None:
    assert [epochs.epoch_for(o) for o in (9, 10, 19, 20, 39, 40, 1000)] == [-1, 2, 2, 3, 3, 5, 5]


def test_only_changes_are_written(epochs: LeaderEpochs) -> None:
    epochs.save()
    assert not Path(epochs.path).exists()
    epochs.assign(9, 90)
    epochs.save()
    modified_ns = Path(epochs.path).stat().st_mtime_ns
    epochs.save()
    assert Path(epochs.path).stat().st_mtime_ns == modified_ns
