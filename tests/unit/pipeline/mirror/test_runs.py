"""Which offset of the target is which of the source."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.pipeline.mirror.runs import MOST_RUNS, Run, Translation, joined, thinned


def test_runs_that_follow_one_another_are_one() -> None:
    assert joined([Run(0, 5, 3), Run(3, 8, 2), Run(6, 10, 1), Run(7, 12, 1), Run(8, 13, 0)]) == [
        Run(0, 5, 5),
        Run(6, 10, 1),
        Run(7, 12, 1),
    ]


def test_of_too_many_runs_the_last_stays() -> None:
    runs = [Run(number * 2, number, 1) for number in range(1000)]
    left = thinned(runs, 100)
    assert len(left) <= 100 and left[-1] == runs[-1]
    assert thinned(runs[:5], 100) == runs[:5]


def test_a_group_goes_on_where_it_stopped() -> None:
    known = Translation()
    assert known.downstream(3) is None
    known.add(Run(10, 0, 5))
    known.add(Run(20, 7, 5))
    assert [known.downstream(at) for at in (9, 10, 12, 15, 18, 20, 24, 25, 99)] == [None, 0, 2, 5, 5, 7, 11, 12, 12]


def test_what_was_written_again_counts_where_it_was_written_last() -> None:
    known = Translation()
    known.add(Run(0, 0, 100))
    known.add(Run(60, 100, 50))
    assert [known.downstream(at) for at in (59, 60, 100, 110)] == [59, 100, 140, 150]


def test_a_source_that_was_made_anew_forgets_what_was() -> None:
    known = Translation()
    known.add(Run(500, 500, 100))
    known.add(Run(0, 600, 10))
    assert [known.downstream(at) for at in (0, 10, 550)] == [600, 610, 610]


def test_many_runs_take_a_bounded_place() -> None:
    known = Translation()
    for number in range(MOST_RUNS + 10):
        known.add(Run(number * 3, number * 2, 1))
    assert len(known._runs) <= MOST_RUNS
    assert known.downstream((MOST_RUNS + 9) * 3) == (MOST_RUNS + 9) * 2


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=30),
    st.integers(1, 40),
)
@settings(deadline=None)
def test_nothing_is_ever_left_out(parts: list[tuple[int, int, int]], most: int) -> None:
    """Gaps in either cluster, runs thinned: a group that has read all before an offset gets all from it on."""
    where: dict[int, int] = {}
    runs = []
    up = down = 0
    for gap_up, gap_down, count in parts:
        up, down = up + gap_up, down + gap_down
        runs.append(Run(up, down, count))
        where.update({up + index: down + index for index in range(count)})
        up, down = up + count, down + count
    known = Translation()
    for run in thinned(joined(runs), most):
        known.add(run)
    for offset in range(up + 1):
        found = known.downstream(offset)
        unread = [target for source, target in where.items() if source >= offset]
        if found is not None and unread:
            assert found <= min(unread)
        if most >= len(parts) and offset in where:
            assert found == where[offset]
