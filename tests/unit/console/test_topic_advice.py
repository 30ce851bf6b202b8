"""The advice for a new topic."""

from __future__ import annotations

from kavka.console.pages.topic_advice import advise


def test_partitions_follow_the_load_and_the_consumers():
    assert advise(10, 3, 1, 1, 3, None).partitions == 4
    assert advise(10, 3, 12, 1, 3, None).partitions == 12
    assert advise(0, 3, 1, 1, 3, None).partitions == 1


def test_replicas_follow_the_live_brokers():
    large = advise(1, 1, 1, 1, 5, None)
    assert (large.replication, large.min_insync_replicas, large.warnings) == (3, 2, [])
    small = advise(1, 1, 1, 1, 1, None)
    assert (small.replication, small.min_insync_replicas, len(small.warnings)) == (1, 1, 1)


def test_the_retention_must_fit_on_the_disks():
    advice = advise(1, 1, 1, 2, 3, 10**10)
    assert (advice.retention_ms, advice.size) == (7_200_000, 3 * 7200 * 10**6)
    assert len(advice.warnings) == 1
    assert advise(1, 1, 1, 2, 3, 10**12).warnings == []
