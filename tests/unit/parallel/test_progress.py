"""What may be committed while records are finished in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kavka.parallel.progress import Progress


def test_nothing_read_is_nothing_to_commit() -> None:
    assert Progress().to_commit() is None


def test_the_first_that_is_not_done_is_the_limit() -> None:
    progress = Progress()
    tickets = [progress.begin(offset) for offset in (5, 6, 9)]
    tickets[1].done = True
    assert progress.offset == 5
    tickets[0].done = True
    assert progress.offset == 9
    tickets[2].done = True
    assert progress.offset == 10


def test_what_follows_the_last_record_is_passed_when_all_are_done() -> None:
    progress = Progress()
    ticket = progress.begin(3)
    progress.passed(7)
    assert progress.offset == 3
    ticket.done = True
    assert progress.offset == 7


def test_only_news_is_committed() -> None:
    progress = Progress()
    progress.begin(0).done = True
    assert progress.to_commit() == 1
    progress.committed(1)
    assert progress.to_commit() is None


def test_running_is_begun_and_not_done() -> None:
    progress = Progress()
    ticket = progress.begin(0)
    assert not progress.running
    ticket.begun = True
    assert progress.running
    ticket.done = True
    assert not progress.running


def test_closing_lets_gaps_be_filled_and_nothing_more_begin() -> None:
    progress = Progress()
    tickets = [progress.begin(offset) for offset in range(5)]
    tickets[0].begun = tickets[0].done = True
    tickets[2].begun = True
    progress.close()
    assert progress.limit == 2 and not progress.settled
    tickets[2].done = True
    assert not progress.settled
    tickets[1].begun = tickets[1].done = True
    assert progress.settled and progress.offset == 3
    empty = Progress()
    empty.begin(7)
    empty.close()
    assert empty.settled and empty.limit == -1


@given(st.lists(st.integers(1, 3), min_size=1, max_size=30), st.data())
def test_never_beyond_what_is_not_done(gaps, data) -> None:
    progress = Progress()
    offsets = [sum(gaps[:i]) for i in range(len(gaps))]
    tickets = {offset: progress.begin(offset) for offset in offsets}
    open_ones = set(offsets)
    for offset in data.draw(st.permutations(offsets)):
        tickets[offset].done = True
        open_ones.discard(offset)
        assert progress.offset == (min(open_ones) if open_ones else offsets[-1] + 1)
