"""Fetch on real logs: size limits, waits in the purgatory, and disk errors."""

from __future__ import annotations

import asyncio

import pytest

from kavka.api import fetch as fetch_module
from kavka.api import fetch_reads
from kavka.common.types import TopicPartition
from kavka.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kavka.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from kavka.replication.partition import Partition
from kavka.security.quotas import ClientQuotas, ConnectionQuota, QuotaEntity
from kavka.security.rates import Window
from kavka.storage.page_cache import warm
from tests.unit.api.records_world import RecordsWorld, codes, content, fetched, in_records_world, sizes

OUT_OF_RANGE, UNKNOWN_TOPIC, STORAGE_ERROR, FENCED_EPOCH = 1, 3, 56, 74


# ---- size limits


def test_the_first_batch_is_complete_whatever_the_limits(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("t")
        size = world.append("t", size=1000)
        assert sizes(world.fetch(("t", 0, 0), max_bytes=100)) == [size]
        assert sizes(world.fetch(("t", 0, 0), partition_max_bytes=100)) == [size]

    in_records_world(tmp_path, body)


def test_a_batch_that_does_not_fit_is_left_out(tmp_path):
    async def body(world: RecordsWorld) -> None:
        for topic in ("a", "b", "c"):
            await world.create(topic)
        large = world.append("a", size=1000)
        world.append("b", size=1000)
        small = world.append("c", size=10)
        response = world.fetch(("a", 0, 0), ("b", 0, 0), ("c", 0, 0), max_bytes=large + small)
        assert sizes(response) == [large, 0, small]
        assert fetched(response)[1].high_watermark == 1
        assert codes(response) == [0, 0, 0]

    in_records_world(tmp_path, body)


def test_partitions_share_the_limit_of_the_response_in_their_order(tmp_path):
    async def body(world: RecordsWorld) -> None:
        for topic in ("a", "b"):
            await world.create(topic)
            for _ in range(10):
                size = world.append(topic, size=1000)
        assert sizes(world.fetch(("a", 0, 0), ("b", 0, 0), max_bytes=3 * size, partition_max_bytes=2 * size)) == [
            2 * size,
            size,
        ]

    in_records_world(tmp_path, body)


def test_the_brokers_limit_overrides_the_requested_one(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("t")
        for _ in range(10):
            size = world.append("t", size=500)
        assert sizes(world.fetch(("t", 0, 0))) == [min(10 * size, 1024)]
        # A fetch does not wait for more bytes than the response can have.
        assert sizes(world.fetch(("t", 0, 0), min_bytes=50_000, max_wait_ms=60_000)) == [1024]

    in_records_world(tmp_path, body, **{"fetch.max.bytes": "1024"})


# ---- waiting


def test_a_fetch_waits_for_its_bytes_over_all_its_partitions(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("a")
        await world.create("b")
        size = world.append("a", size=100)
        waiting = world.fetch(("a", 0, 0), ("b", 0, 0), min_bytes=3 * size, max_wait_ms=60_000)
        world.append("b", size=100)
        await asyncio.sleep(0)
        assert not waiting.done()
        world.append("a", size=100)
        assert sizes(await waiting) == [2 * size, size]
        assert not world.pending_requests()

    in_records_world(tmp_path, body)


def test_an_append_counts_the_bytes_of_its_partition_only(tmp_path, monkeypatch):
    async def body(world: RecordsWorld) -> None:
        names = [f"t{n}" for n in range(20)]
        for name in names:
            await world.create(name)
        size = world.append("t0")
        waiting = world.fetch(*((name, 0, 0) for name in names), min_bytes=4 * size, max_wait_ms=60_000)
        counted: list[TopicPartition] = []
        readable_bytes = Partition.readable_bytes
        monkeypatch.setattr(
            Partition,
            "readable_bytes",
            lambda self, *args: counted.append(self.topic_partition) or readable_bytes(self, *args),
        )
        for name in ("t3", "t7", "t3"):
            assert not waiting.done()
            world.append(name)
        assert counted == [("t3", 0), ("t7", 0), ("t3", 0)]
        assert [n for n in sizes(await waiting) if n] == [size, 2 * size, size]
        assert not world.pending_requests()

    in_records_world(tmp_path, body)


def test_a_fetch_of_many_partitions_is_divided_over_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(fetch_module, "MAX_PARTITIONS_PER_TURN", 3)

    async def body(world: RecordsWorld) -> None:
        names = [f"t{n}" for n in range(10)]
        for name in names:
            await world.create(name)
        entries = [(name, 0, 0) for name in names]
        size = world.append("t1")
        world.append("t8")
        # The first batch is sent whatever its size; the limit applies to all parts together.
        assert sizes(await (await world.fetch(*entries, max_bytes=1))) == [0, size, *[0] * 8]
        assert sizes(await (await world.fetch(*entries, max_bytes=2 * size))) == [0, size, *[0] * 6, size, 0]

        # The record is appended after its partition was read, and before the fetch waits.
        entries = [(name, 0, int(name in ("t1", "t8"))) for name in names]
        fetching = asyncio.ensure_future(world.fetch(*entries, min_bytes=1, max_wait_ms=60_000))
        await asyncio.sleep(0)
        world.append("t0")
        assert sizes(await asyncio.wait_for(await fetching, 30)) == [size, *[0] * 9]
        waiting = await world.fetch(*entries, min_bytes=2 * size, max_wait_ms=60_000)
        assert not waiting.done()
        world.append("t9")
        assert sizes(await asyncio.wait_for(waiting, 30)) == [size, *[0] * 8, size]
        assert not world.pending_requests()

    in_records_world(tmp_path, body)


def test_a_fetch_that_times_out_returns_the_available_records(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("t")
        size = world.append("t")
        response = await world.fetch(("t", 0, 0), min_bytes=10_000, max_wait_ms=20)
        assert sizes(response) == [size]
        assert not world.pending_requests()

    in_records_world(tmp_path, body)


def test_bytes_in_the_next_segment_count_for_min_bytes(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t", segment_bytes=2000)
        for _ in range(4):
            size = world.append("t", size=900)
        assert len(partition.log.segments) == 2
        assert sizes(world.fetch(("t", 0, 1), min_bytes=2 * size, max_wait_ms=60_000)) == [size]

    in_records_world(tmp_path, body)


def test_read_committed_waits_until_the_transaction_ends(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        partition.log.producer_states.admitted_producer_id = 7
        transactional = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        reading = world.fetch(("t", 0, 0), max_wait_ms=60_000, committed=True)
        plain = world.fetch(("t", 0, 0), max_wait_ms=60_000)
        size = world.append("t", **transactional)
        assert sizes(await plain) == [size]
        assert not reading.done()
        world.end_transaction("t", 7)
        [data] = fetched(await reading)
        assert len(data.records) > size
        assert (data.last_stable_offset, data.high_watermark, data.aborted_transactions) == (2, 2, [])

    in_records_world(tmp_path, body)


def test_deleting_records_completes_a_pending_fetch(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("t")
        world.append("t", count=3)
        waiting = world.fetch(("t", 0, 1), min_bytes=10_000, max_wait_ms=60_000)
        assert not waiting.done()
        requested = DeleteRecordsPartition(partition_index=0, offset=-1)
        deleted = world.send(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[requested])]), 1)
        assert deleted.topics[0].partitions[0].low_watermark == 3
        [data] = fetched(await waiting)
        assert data.error_code == OUT_OF_RANGE
        assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (-1, -1, -1)

    in_records_world(tmp_path, body)


def test_deleting_the_topic_completes_a_pending_fetch(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        await world.create("other")
        waiting = world.fetch(("other", 0, 0), ("t", 0, 0), max_wait_ms=60_000)
        await world.delete("t")
        assert codes(await waiting) == [0, UNKNOWN_TOPIC]
        assert not partition.pending_fetches
        assert not world.pending_requests()

    in_records_world(tmp_path, body)


def test_a_failed_disk_completes_a_pending_fetch(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        waiting = world.fetch(("t", 0, 0), max_wait_ms=60_000)
        world.log_manager.report_failure(partition.log, OSError(5, "Input/output error"))
        assert codes(await waiting) == [STORAGE_ERROR]
        assert codes(world.fetch(("t", 0, 0), max_wait_ms=60_000)) == [STORAGE_ERROR]

    in_records_world(tmp_path, body)


def test_a_new_leader_epoch_fences_a_pending_fetch(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("t", epoch=4)
        waiting = world.fetch(("t", 0, 0), max_wait_ms=60_000, epoch=4)
        await world.create("t", epoch=5)
        assert codes(await waiting) == [FENCED_EPOCH]

    in_records_world(tmp_path, body)


def test_a_cancelled_fetch_leaves_the_purgatory(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("a", partitions=3)
        waiting = world.fetch(("a", 0, 0), ("a", 1, 0), ("a", 2, 0), max_wait_ms=60_000)
        assert world.pending_requests() == 3
        waiting.cancel()
        await asyncio.sleep(0)
        assert not world.pending_requests()
        world.append("a")

    in_records_world(tmp_path, body)


def test_a_pending_fetch_that_fails_does_not_affect_others(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        broken = world.fetch(("t", 0, 0), max_wait_ms=60_000)
        [pending] = partition.pending_fetches
        pending._is_ready = pending._read = lambda: 1 // 0
        healthy = world.fetch(("t", 0, 0), max_wait_ms=60_000)
        size = world.append("t")
        assert sizes(await healthy) == [size]
        with pytest.raises(ZeroDivisionError):
            await broken

    in_records_world(tmp_path, body)


# ---- disks


def test_cold_data_is_read_by_a_worker_first(tmp_path, monkeypatch):
    warmed = []
    monkeypatch.setattr(fetch_reads, "is_resident", lambda piece: False)
    monkeypatch.setattr(fetch_module, "warm", warmed.append)

    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        size = world.append("t")
        for segment in partition.log.segments:
            segment.forget_recent()
        response = world.fetch(("t", 0, 0))
        assert isinstance(response, asyncio.Future)
        assert sizes(await response) == [size]
        assert [len(piece) for piece in warmed] == [size]

    in_records_world(tmp_path, body)


@pytest.mark.parametrize("where", ["is_resident", "warm"])
def test_a_read_error_fails_the_partition_and_its_directory(tmp_path, monkeypatch, where):
    def broken(piece):
        raise OSError(5, "Input/output error")

    async def body(world: RecordsWorld) -> None:
        partition = await world.create("a")
        await world.create("b")
        world.append("a")
        size = world.append("b")
        assert partition.log.dir.parent != world.partition("b").log.dir.parent
        for segment in partition.log.segments:
            segment.forget_recent()
        monkeypatch.setattr(fetch_reads, "is_resident", lambda piece: False)
        monkeypatch.setattr(fetch_reads if where == "is_resident" else fetch_module, where, broken)
        response = world.fetch(("a", 0, 0), ("b", 0, 0), max_wait_ms=60_000)
        response = await response if isinstance(response, asyncio.Future) else response
        assert codes(response) == [STORAGE_ERROR, 0]
        assert sizes(response) == [0, size]
        assert len(world.failed) == 1

    in_records_world(tmp_path, body, dirs=("one", "two"))


def test_a_log_truncated_during_a_cold_read_is_read_again(tmp_path, monkeypatch):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        world.append("t")
        log = partition.log
        for segment in log.segments:
            segment.forget_recent()
        warmed = []

        def truncated(piece):
            warmed.append(piece)
            if len(warmed) == 1:
                # In a real broker the event loop truncates the log before the worker reads it.
                world.log_manager.truncate_fully_and_start_at(log.topic_partition, 0)
                world.append("t")
            warm(piece)

        monkeypatch.setattr(fetch_reads, "is_resident", lambda piece: False)
        monkeypatch.setattr(fetch_module, "warm", truncated)
        response = await world.fetch(("t", 0, 0))
        assert codes(response) == [0]
        assert sizes(response) == [log.size]
        assert not world.failed

    in_records_world(tmp_path, body)


# ---- formats, sessions, metrics


@pytest.mark.parametrize(
    ("config", "version", "code"),
    [
        ({"compression_type": "zstd"}, 9, 76),
        ({"compression_type": "zstd"}, 10, 0),
        ({"message_downconversion_enable": False}, 3, 35),
        ({"message_downconversion_enable": False}, 4, 0),
    ],
)
def test_formats_that_an_old_client_cannot_read_are_refused(tmp_path, config, version, code):
    async def body(world: RecordsWorld) -> None:
        await world.create("t", **config)
        response = world.fetch(("t", 0, 0), version=version)
        assert codes(await response if isinstance(response, asyncio.Future) else response) == [code]

    in_records_world(tmp_path, body)


def test_an_unknown_session_is_refused_with_an_empty_response(tmp_path):
    async def body(world: RecordsWorld) -> None:
        response = world.send(FetchRequest(session_id=5, session_epoch=3), 12)
        assert (response.error_code, response.session_id, response.responses) == (70, 0, [])

    in_records_world(tmp_path, body)


def test_sent_records_are_counted_once(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        size = world.append("t", count=3)
        waiting = world.fetch(("t", 0, 0), min_bytes=size + 1, max_wait_ms=60_000)
        size += world.append("t", count=4)
        await waiting
        metrics = partition.metrics
        assert (metrics.bytes_out.value, metrics.messages_out.value) == (size, 7)
        assert (metrics.bytes_in.value, metrics.messages_in.value) == (size, 7)

    in_records_world(tmp_path, body)


def test_messages_of_a_partial_read_count_only_complete_batches(tmp_path):
    async def body(world: RecordsWorld) -> None:
        partition = await world.create("t")
        for _ in range(10):
            size = world.append("t", count=5, size=100)
        world.fetch(("t", 0, 7), partition_max_bytes=3 * size)
        assert partition.metrics.messages_out.value == 20 - 7
        world.fetch(("t", 0, 20), partition_max_bytes=3 * size + 1)
        assert partition.metrics.messages_out.value == 13 + 15

    in_records_world(tmp_path, body)


def test_records_are_read_as_they_were_appended(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("t")
        world.append("t", count=2, size=33)
        [data] = fetched(world.fetch(("t", 0, 0)))
        assert bytes(33) in content(data)

    in_records_world(tmp_path, body)


# ---- quotas


def use_quota(world: RecordsWorld, bound: float) -> None:
    """Bound the client to `bound` bytes per second, over two samples of a second."""
    quotas = ClientQuotas(Window(2, 1000))
    quotas.set(QuotaEntity(None, ""), {"consumer_byte_rate": bound})
    world.quota = ConnectionQuota()
    world.quota.resolve(quotas, "User:ANONYMOUS", "test", lambda: 0)


def test_a_throttled_fetch_is_empty_and_its_bytes_do_not_count(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("t")
        for _ in range(4):
            size = world.append("t", size=1000)
        use_quota(world, 3 * size)
        assert sizes(world.fetch(("t", 0, 0), max_bytes=2 * size)) == [2 * size]
        for _ in range(3):
            throttled = world.fetch(("t", 0, 2), max_bytes=2 * size)
            assert not throttled.responses
            assert throttled.error_code == 0
            # Four batches instead of three in a second.
            assert throttled.throttle_time_ms == 333
        world.now_ms = 3000
        response = world.fetch(("t", 0, 2), max_bytes=2 * size)
        assert sizes(response) == [2 * size]
        assert response.throttle_time_ms == 0

    in_records_world(tmp_path, body)


def test_a_response_has_at_most_the_bytes_of_the_quotas_window(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("t")
        for _ in range(10):
            size = world.append("t", size=1000)
        use_quota(world, 3 * size)
        response = world.fetch(("t", 0, 0))
        assert sizes(response) == [3 * size]
        assert response.throttle_time_ms == 0

    in_records_world(tmp_path, body)


def test_a_batch_beyond_the_quota_is_sent_after_a_quiet_time(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("t")
        size = world.append("t", size=1000)
        world.append("t", size=1000)
        use_quota(world, size / 2)
        response = world.fetch(("t", 0, 0))
        assert sizes(response) == [size]
        assert response.throttle_time_ms == 1000
        world.now_ms = 500
        assert not world.fetch(("t", 0, 1)).responses
        world.now_ms = 4000
        assert sizes(world.fetch(("t", 0, 1))) == [size]

    in_records_world(tmp_path, body)


def test_a_throttled_full_fetch_leaves_no_session(tmp_path):
    async def body(world: RecordsWorld) -> None:
        await world.create("t")
        for _ in range(2):
            size = world.append("t", size=1000)
        use_quota(world, size)

        def fetch(session_id: int, epoch: int, *offsets: int) -> FetchResponse:
            partitions = [FetchPartition(partition=0, fetch_offset=offset) for offset in offsets]
            for partition in partitions:
                partition.partition_max_bytes = 10_000
            topics = [FetchTopic(topic="t", partitions=partitions)] if partitions else []
            return world.send(
                FetchRequest(session_id=session_id, session_epoch=epoch, max_bytes=10_000, topics=topics), 12
            )

        first = fetch(0, 0, 0)
        assert sizes(first) == [size]
        assert first.session_id
        # An incremental fetch keeps its session.
        throttled = fetch(first.session_id, 1, 1)
        assert throttled.throttle_time_ms > 0
        assert throttled.session_id == first.session_id
        assert len(world.broker.fetch_sessions) == 1
        # A full fetch starts again without a session.
        throttled = fetch(first.session_id, 0, 1)
        assert throttled.throttle_time_ms > 0
        assert throttled.session_id == 0
        assert len(world.broker.fetch_sessions) == 0
        world.now_ms = 5000
        assert sizes(fetch(0, 0, 1)) == [size]

    in_records_world(tmp_path, body)
