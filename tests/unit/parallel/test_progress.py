"""The offset to commit while records finish in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kavka.parallel.progress import Progress


def test_no_offset_is_committed_before_a_record_was_read() -> None:
    assert Progress().to_commit() is None


def test_first_unfinished_record_limits_the_offset() -> None:
    progress = Progress()
    tickets = [progress.begin(offset) for offset in (5, 6, 9)]
    tickets[1].done = True
    assert progress.offset == 5
    tickets[0].done = True
    assert progress.offset == 9
    tickets[2].done = True
    assert progress.offset == 10


def test_position_after_the_last_record_is_committed_when_all_are_done() -> None:
    progress = Progress()
    ticket = progress.begin(3)
    progress.advance(7)
    assert progress.offset == 3
    ticket.done = True
    assert progress.offset == 7


def test_committed_offset_is_not_committed_again() -> None:
    progress = Progress()
    progress.begin(0).done = True
    assert progress.to_commit() == 1
    progress.mark_committed(1)
    assert progress.to_commit() is None


def test_record_is_running_from_start_to_done() -> None:
    progress = Progress()
    ticket = progress.begin(0)
    assert not progress.is_running
    ticket.started = True
    assert progress.is_running
    ticket.done = True
    assert not progress.is_running


def test_close_allows_only_records_before_a_started_record() -> None:
    progress = Progress()
    tickets = [progress.begin(offset) for offset in range(5)]
    tickets[0].started = tickets[0].done = True
    tickets[2].started = True
    progress.close()
    assert progress.limit == 2 and not progress.is_drained
    tickets[2].done = True
    assert not progress.is_drained
    tickets[1].started = tickets[1].done = True
    assert progress.is_drained and progress.offset == 3
    empty = Progress()
    empty.begin(7)
    empty.close()
    assert empty.is_drained and empty.limit == -1


@given(st.lists(st.integers(1, 3), min_size=1, max_size=30), st.data())
def test_offset_never_exceeds_an_unfinished_record(gaps, data) -> None:
    progress = Progress()
    offsets = [sum(gaps[:i]) for i in range(len(gaps))]
    tickets = {offset: progress.begin(offset) for offset in offsets}
    unfinished = set(offsets)
    for offset in data.draw(st.permutations(offsets)):
        tickets[offset].done = True
        unfinished.discard(offset)
        assert progress.offset == (min(unfinished) if unfinished else offsets[-1] + 1)
