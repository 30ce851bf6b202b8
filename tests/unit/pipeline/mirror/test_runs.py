"""The mapping of offsets between source and target."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kavka.pipeline.mirror.runs import MAX_RUNS, Run, Translation, join_runs, thin_runs


def test_adjacent_runs_are_joined() -> None:
    assert join_runs([Run(0, 5, 3), Run(3, 8, 2), Run(6, 10, 1), Run(7, 12, 1), Run(8, 13, 0)]) == [
        Run(0, 5, 5),
        Run(6, 10, 1),
        Run(7, 12, 1),
    ]


def test_thinning_keeps_the_last_run() -> None:
    runs = [Run(number * 2, number, 1) for number in range(1000)]
    remaining = thin_runs(runs, 100)
    assert len(remaining) <= 100 and remaining[-1] == runs[-1]
    assert thin_runs(runs[:5], 100) == runs[:5]


def test_offsets_are_translated() -> None:
    translation = Translation()
    assert translation.downstream(3) is None
    translation.add(Run(10, 0, 5))
    translation.add(Run(20, 7, 5))
    assert [translation.downstream(at) for at in (9, 10, 12, 15, 18, 20, 24, 25, 99)] == [
        None,
        0,
        2,
        5,
        5,
        7,
        11,
        12,
        12,
    ]


def test_the_last_write_of_repeated_records_wins() -> None:
    translation = Translation()
    translation.add(Run(0, 0, 100))
    translation.add(Run(60, 100, 50))
    assert [translation.downstream(at) for at in (59, 60, 100, 110)] == [59, 100, 140, 150]


def test_a_recreated_source_invalidates_earlier_runs() -> None:
    translation = Translation()
    translation.add(Run(500, 500, 100))
    translation.add(Run(0, 600, 10))
    assert [translation.downstream(at) for at in (0, 10, 550)] == [600, 610, 610]


def test_the_number_of_runs_is_bounded() -> None:
    translation = Translation()
    for number in range(MAX_RUNS + 10):
        translation.add(Run(number * 3, number * 2, 1))
    assert len(translation._runs) <= MAX_RUNS
    assert translation.downstream((MAX_RUNS + 9) * 3) == (MAX_RUNS + 9) * 2


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=30),
    st.integers(1, 40),
)
@settings(deadline=None)
def test_translation_never_skips_a_record(gaps: list[tuple[int, int, int]], limit: int) -> None:
    """There are gaps in both clusters, and runs are thinned. A group that has read all records
    before an offset still gets all following records."""
    downstream_offsets: dict[int, int] = {}
    runs = []
    upstream = downstream = 0
    for upstream_gap, downstream_gap, count in gaps:
        upstream, downstream = upstream + upstream_gap, downstream + downstream_gap
        runs.append(Run(upstream, downstream, count))
        downstream_offsets.update({upstream + index: downstream + index for index in range(count)})
        upstream, downstream = upstream + count, downstream + count
    translation = Translation()
    for run in thin_runs(join_runs(runs), limit):
        translation.add(run)
    for offset in range(upstream + 1):
        translated = translation.downstream(offset)
        unread = [target for source, target in downstream_offsets.items() if source >= offset]
        if translated is not None and unread:
            assert translated <= min(unread)
        if limit >= len(gaps) and offset in downstream_offsets:
            assert translated == downstream_offsets[offset]
