"""Fetch sessions without a broker: requests, incremental responses, eviction."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

from kavka.api.fetch_reads import PartitionRead
from kavka.api.fetch_session import FetchSessionCache
from kavka.common.errors import ErrorCode, KafkaError

ZERO = UUID(int=0)


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def partition(index: int, offset: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        partition=index,
        fetch_offset=offset,
        partition_max_bytes=1000,
        current_leader_epoch=-1,
        last_fetched_epoch=-1,
        log_start_offset=-1,
    )


def request(session_id=0, epoch=0, topics=(), forgotten=()) -> SimpleNamespace:
    return SimpleNamespace(
        session_id=session_id,
        session_epoch=epoch,
        topics=[SimpleNamespace(topic=name, topic_id=ZERO, partitions=parts) for name, parts in topics],
        forgotten_topics_data=[
            SimpleNamespace(topic=name, topic_id=ZERO, partitions=parts) for name, parts in forgotten
        ],
    )


def data(high_watermark=0, error=0, size=0) -> PartitionRead:
    read = PartitionRead(None, high_watermark, high_watermark, 0)
    read.size, read.error_code = size, error
    return read


def make_cache(slots=2, time=None) -> FetchSessionCache:
    return FetchSessionCache(slots, 120.0, time or Time())


def open_(cache: FetchSessionCache, fetch: SimpleNamespace):
    return cache.open(fetch, False, lambda _id: None)


def test_an_incremental_request_reads_all_partitions_of_the_session_with_the_changes_applied():
    cache = make_cache()
    first = open_(cache, request(topics=[("t", [partition(0), partition(1)])]))
    second = open_(cache, request(first.session_id, 1, topics=[("t", [partition(1, offset=7)])]))
    assert second.incremental
    assert [(p.index, p.fetch_offset) for p in second.partitions] == [(0, 0), (1, 7)]
    third = open_(cache, request(first.session_id, 2, forgotten=[("t", [0])]))
    assert [p.index for p in third.partitions] == [1]


def test_an_incremental_response_has_only_changed_partitions():
    cache = make_cache()
    first = open_(cache, request(topics=[("t", [partition(0), partition(1)])]))
    results = [(p, data()) for p in first.partitions]
    assert len(first.select(results)) == 2
    second = open_(cache, request(first.session_id, 1))
    results = [(second.partitions[0], data()), (second.partitions[1], data(high_watermark=5))]
    assert [p.index for p, _ in second.select(results)] == [1]


def test_the_first_response_after_an_error_has_the_partition():
    cache = make_cache()
    first = open_(cache, request(topics=[("t", [partition(0)])]))
    first.select([(first.partitions[0], data())])
    second = open_(cache, request(first.session_id, 1))
    assert second.select([(second.partitions[0], data(error=6))])
    third = open_(cache, request(first.session_id, 2))
    assert third.select([(third.partitions[0], data())])


def test_a_partition_with_records_moves_to_the_end_of_the_order():
    cache = make_cache()
    first = open_(cache, request(topics=[("t", [partition(0), partition(1)])]))
    first.select([(p, data(size=10 if p.index == 0 else 0)) for p in first.partitions])
    second = open_(cache, request(first.session_id, 1))
    assert [p.index for p in second.partitions] == [1, 0]


@pytest.mark.parametrize(
    ("session_id", "epoch", "code"),
    [(None, 5, ErrorCode.INVALID_FETCH_SESSION_EPOCH), (12345, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)],
)
def test_a_wrong_epoch_or_an_unknown_session_is_refused(session_id, epoch, code):
    cache = make_cache()
    first = open_(cache, request(topics=[("t", [partition(0)])]))
    requested_id = first.session_id if session_id is None else (session_id if session_id != first.session_id else 1)
    with pytest.raises(KafkaError) as refused:
        open_(cache, request(requested_id, epoch))
    assert refused.value.code == code


def test_a_full_cache_evicts_only_an_idle_session():
    time = Time()
    cache = make_cache(slots=1, time=time)
    first = open_(cache, request(topics=[("t", [partition(0)])]))
    assert first.session_id
    assert open_(cache, request(topics=[("t", [partition(0)])])).session_id == 0
    time.now = 121.0
    assert open_(cache, request(topics=[("t", [partition(0)])])).session_id
    assert len(cache) == 1


def test_the_final_epoch_closes_the_session():
    cache = make_cache()
    first = open_(cache, request(topics=[("t", [partition(0)])]))
    assert open_(cache, request(first.session_id, -1)).session_id == 0
    assert len(cache) == 0


def test_a_session_without_partitions_ends():
    cache = make_cache()
    first = open_(cache, request(topics=[("t", [partition(0)])]))
    assert open_(cache, request(first.session_id, 1, forgotten=[("t", [0])])).session_id == 0
    assert len(cache) == 0


def open_for(cache: FetchSessionCache, replica_id: int, size: int = 1):
    fetch = request(topics=[("t", [partition(index) for index in range(size)])])
    return cache.open(fetch, False, lambda _id: None, replica_id)


def use(cache: FetchSessionCache, context, replica_id: int = -1) -> bool:
    """Send an incremental fetch. Returns False if the session was evicted."""
    if context.session.id not in cache._sessions:
        return False
    cache.open(request(context.session_id, context.session.epoch), False, lambda _id: None, replica_id)
    return True


def test_consumers_do_not_evict_the_sessions_of_followers():
    time = Time()
    cache = make_cache(slots=1000, time=time)
    consumers = [open_for(cache, -1, 50) for _ in range(1000)]
    followers = [open_for(cache, broker) for broker in (1, 2)]
    assert all(context.session_id for context in followers), "a follower evicts a consumer's session"
    for minute in range(1, 5):
        time.now = minute * 60.0
        assert all(use(cache, context, broker) for broker, context in enumerate(followers, 1))
        for context in consumers:
            if not use(cache, context):
                open_for(cache, -1, 51)
    assert len(cache) == 1000


def test_a_follower_evicts_the_consumer_with_the_fewest_partitions():
    cache = make_cache(slots=2)
    large, small = open_for(cache, -1, 3), open_for(cache, -1, 2)
    follower = open_for(cache, 1)
    assert follower.session_id
    assert use(cache, large) and not use(cache, small)
    assert open_for(cache, 2).session_id
    assert open_for(cache, 3, 100).session_id == 0, "followers' sessions are protected while they are new"
    assert use(cache, follower, 1)


def test_a_larger_session_evicts_an_aged_session_of_its_kind():
    time = Time()
    cache = make_cache(slots=2, time=time)
    follower, consumer = open_for(cache, 1, 2), open_for(cache, -1, 2)
    for now in (60.0, 121.0):
        time.now = now
        assert use(cache, follower, 1) and use(cache, consumer)
    assert open_for(cache, -1, 2).session_id == 0, "a session of the same size evicts no session"
    assert open_for(cache, -1, 3).session_id
    assert not use(cache, consumer)
    assert open_for(cache, -1, 500).session_id == 0, "neither a new session nor a follower's session is evicted"
    assert use(cache, follower, 1)


def test_a_session_that_grows_is_ranked_by_its_new_size():
    cache = make_cache(slots=2)
    first, second = open_for(cache, -1, 1), open_for(cache, -1, 2)
    more = request(first.session_id, 1, topics=[("t", [partition(7), partition(8)])])
    open_(cache, more)
    assert open_for(cache, 1).session_id
    assert use(cache, first) and not use(cache, second)


def test_no_slots_means_no_sessions():
    assert open_for(make_cache(slots=0), 1).session_id == 0
