"""The runtime with a simple state machine: a table of words. Each record is one entry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kavka.common.errors import ErrorCode, KafkaError
from kavka.coordinator.operations import NOTHING, Journal, Outcome, Timers
from kavka.coordinator.runtime import Runtime
from kavka.coordinator.shard_host import ShardHost
from kavka.records.batch import batches
from kavka.records.reader import batch_records
from kavka.storage.log_append import AppendOrigin
from tests.unit.coordinator.fakes import FakeClock, FakeLog, FakeLoop, FakePartition

TOPIC = "__words"
Entry = tuple[str, str | None]


class WordShard:
    def __init__(self, timers: Timers) -> None:
        self.timers = timers
        self.journal = Journal()
        self.words: dict[str, str] = {}
        self.pending: dict[int, dict[str, str]] = {}
        self.unloaded: ErrorCode | None = None
        self.loaded = 0
        self.after_loading: list[KafkaError | None] = []

    def encode(self, record: Entry) -> tuple[bytes, bytes | None]:
        return record[0].encode(), None if record[1] is None else record[1].encode()

    def decode(self, key: bytes, value: bytes | None) -> Entry | None:
        return None if key == b"unknown kind" else (key.decode(), None if value is None else value.decode())

    def replay(self, record: Entry, producer_id: int = -1) -> None:
        key, value = record
        if producer_id >= 0:
            self.journal.put(self.pending, producer_id, self.pending.get(producer_id, {}) | {key: value})
        elif value is None:
            self.journal.drop(self.words, key)
        else:
            self.journal.put(self.words, key, value)

    def replay_end_of_transaction(self, producer_id: int, commit: bool) -> None:
        for key, value in self.pending.get(producer_id, {}).items():
            if commit:
                self.journal.put(self.words, key, value)
        self.journal.drop(self.pending, producer_id)

    def on_loaded(self) -> Iterator[Outcome]:
        self.loaded += 1
        yield Outcome(on_append=self.after_loading.append)

    def on_unloaded(self, code: ErrorCode) -> Iterator[None]:
        self.unloaded = code
        yield

    def say(self, key: str, value: str | None) -> Outcome:
        return Outcome(((key, value),), f"{key} said")


class Bench:
    def __init__(self, log: FakeLog | None = None, **options: Any) -> None:
        self.clock = FakeClock()
        self.loop = FakeLoop(self.clock)
        self.jobs: list[tuple[Callable[[], Any], Callable[[BaseException | None], None]]] = []
        self.runtime: Runtime[WordShard] = Runtime(
            TOPIC,
            WordShard,
            loop=self.loop,  # type: ignore[arg-type]
            clock=self.clock,
            run_in_worker=lambda function, done: self.jobs.append((function, done)),
            **options,
        )
        self.partition = FakePartition(3, TOPIC, log)
        self.runtime.on_leadership(self.partition, True)  # type: ignore[arg-type]

    def work(self) -> None:
        """Run the jobs of the worker threads."""
        while self.jobs:
            function, done = self.jobs.pop(0)
            try:
                function()
            except Exception as error:
                done(error)
            else:
                done(None)

    @property
    def host(self) -> ShardHost[WordShard]:
        return self.runtime.host(3)

    @property
    def words(self) -> dict[str, str]:
        return self.host.shard.words

    def say(self, key: str, value: str | None = "x") -> asyncio.Future[Any]:
        result = self.host.submit(self.host.shard.say(key, value))
        assert isinstance(result, asyncio.Future)
        return result

    def log_records(self) -> list[list[tuple[bytes | None, bytes | None]]]:
        assert self.partition.log is not None
        return [
            [(record.key, record.value) for record in batch_records(batch)]
            for _, _, data in self.partition.log.batches
            for batch in batches(data)
        ]


def code_of(future: asyncio.Future[Any]) -> ErrorCode:
    error = future.exception()
    assert isinstance(error, KafkaError)
    return error.code


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_response_is_sent_when_the_change_is_written(bench: Bench) -> None:
    future = bench.say("a", "1")
    assert not future.done()
    assert bench.words == {"a": "1"}
    bench.loop.run_ready()
    assert future.result() == "a said"
    assert bench.log_records() == [[(b"a", b"1")]]


def test_operations_of_one_loop_turn_share_a_batch(bench: Bench) -> None:
    futures = [bench.say(key) for key in "abc"]
    bench.loop.run_ready()
    assert [len(batch) for batch in bench.log_records()] == [3]
    assert all(future.done() for future in futures)


def test_records_are_appended_with_the_coordinator_origin(bench: Bench) -> None:
    bench.say("a")
    bench.loop.run_ready()
    assert bench.partition.origins == [AppendOrigin.COORDINATOR]


def test_an_operation_without_records_completes_at_once(bench: Bench) -> None:
    assert bench.host.submit(Outcome(response="nothing to write")) == "nothing to write"


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_a_failed_write_is_undone(bench: Bench, failure: ErrorCode, expected: ErrorCode) -> None:
    bench.say("first", "1")
    bench.say("second", "1")
    bench.loop.run_ready()
    bench.partition.failure = KafkaError(failure)
    futures = [bench.say("first", "2"), bench.say("second", None), bench.say("third")]
    bench.loop.run_ready()
    assert [code_of(future) for future in futures] == [expected] * 3
    assert bench.words == {"first": "1", "second": "1"}
    bench.partition.failure = None
    bench.say("fourth")
    bench.loop.run_ready()
    assert bench.words == {"first": "1", "second": "1", "fourth": "x"}


def test_a_disk_failure_is_reported(bench: Bench) -> None:
    reported: list[BaseException] = []
    bench.partition.on_storage_failure = lambda partition, error: reported.append(error)
    bench.partition.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    bench.say("a").add_done_callback(lambda future: future.exception())
    bench.loop.run_ready()
    assert len(reported) == 1


def test_the_append_callback_gets_the_error(bench: Bench) -> None:
    errors: list[KafkaError | None] = []
    bench.host.submit(Outcome((("a", "1"),), on_append=errors.append))
    bench.loop.run_ready()
    bench.partition.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    failed = bench.host.submit(Outcome((("a", "2"),), on_append=errors.append))
    bench.loop.run_ready()
    assert errors[0] is None
    assert errors[1] is not None
    assert errors[1].code is ErrorCode.NOT_COORDINATOR
    assert code_of(failed) is ErrorCode.NOT_COORDINATOR


def test_records_without_replay_are_only_written(bench: Bench) -> None:
    bench.host.submit(Outcome((("a", "1"),), replay=False))
    bench.loop.run_ready()
    assert bench.words == {}
    assert bench.log_records() == [[(b"a", b"1")]]


# ---- the high watermark


def test_responses_wait_for_the_high_watermark(bench: Bench) -> None:
    bench.partition.hold_high_watermark = True
    first = bench.say("a")
    bench.loop.run_ready()
    second = bench.say("b")
    bench.loop.run_ready()
    assert not first.done()
    assert bench.partition.log is not None
    bench.partition.log.high_watermark = 1
    bench.partition.advance()
    assert first.done()
    assert not second.done()
    bench.partition.hold_high_watermark = False
    bench.partition.advance()
    assert second.done()
    assert bench.partition.pending_appends == set()


def test_a_read_waits_for_the_state_to_be_committed(bench: Bench) -> None:
    def query(shard: WordShard) -> str | None:
        return shard.words.get("a")

    assert bench.host.read(query) is None
    bench.partition.hold_high_watermark = True
    bench.say("a", "1")
    before_the_write = bench.host.read(query)
    bench.loop.run_ready()
    after_the_write = bench.host.read(query)
    assert not before_the_write.done()
    assert not after_the_write.done()
    bench.partition.hold_high_watermark = False
    bench.partition.advance()
    assert (before_the_write.result(), after_the_write.result()) == ("1", "1")
    assert bench.host.read(query) == "1"


def test_a_commit_timeout_fails_the_caller_but_keeps_the_records(bench: Bench) -> None:
    bench.partition.hold_high_watermark = True
    first = bench.say("a")
    bench.loop.run_ready()
    bench.loop.advance(3_000)
    second = bench.say("b")
    bench.loop.run_ready()
    bench.loop.advance(2_000)
    assert code_of(first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not second.done()
    bench.loop.advance(3_000)
    assert code_of(second) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.partition.hold_high_watermark = False
    bench.partition.advance()
    assert bench.words == {"a": "x", "b": "x"}
    third = bench.say("c")
    bench.loop.run_ready()
    assert third.done()


def test_a_read_completes_after_all_other_callers_timed_out(bench: Bench) -> None:
    bench.partition.hold_high_watermark = True
    first = bench.say("a", "1")
    bench.loop.run_ready()
    bench.loop.advance(5_000)
    assert code_of(first) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    late = bench.host.read(lambda shard: shard.words.get("a"))
    bench.loop.advance(4_000)
    assert not late.done()
    bench.loop.advance(2_000)
    assert code_of(late) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    again = bench.host.read(lambda shard: shard.words.get("a"))
    bench.partition.hold_high_watermark = False
    bench.partition.advance()
    assert again.result() == "1"


# ---- sizes


def test_records_that_exceed_a_batch_are_written_in_several_batches() -> None:
    bench = Bench(FakeLog(max_message_bytes=400))
    futures = [bench.say(str(number), "v" * 100) for number in range(7)]
    bench.loop.run_ready()
    assert all(future.done() for future in futures)
    assert len(bench.log_records()) > 2
    assert all(len(data) <= 400 for _, _, data in bench.partition.log.batches)  # type: ignore[union-attr]


def test_an_operation_that_exceeds_a_batch_is_refused() -> None:
    bench = Bench(FakeLog(max_message_bytes=400))
    fits = bench.say("a", "1")
    too_large = bench.say("b", "v" * 400)
    bench.loop.run_ready()
    assert fits.result() == "a said"
    assert code_of(too_large) is ErrorCode.MESSAGE_TOO_LARGE
    assert bench.words == {"a": "1"}


@pytest.mark.parametrize("has_open_batch", [False, True])
def test_direct_changes_of_a_too_large_operation_are_undone(has_open_batch: bool) -> None:
    bench = Bench(FakeLog(max_message_bytes=400))
    if has_open_batch:
        bench.say("a", "1" * 100)
    shard = bench.host.shard
    shard.journal.put(shard.words, "b", "1")
    too_large = bench.host.submit(Outcome((("b", "v" * 400),), "said", replay=False))
    bench.loop.run_ready()
    assert code_of(too_large) is ErrorCode.MESSAGE_TOO_LARGE
    assert set(bench.words) == ({"a"} if has_open_batch else set())


def test_an_operation_fails_if_the_write_of_its_base_state_fails() -> None:
    bench = Bench(FakeLog(max_message_bytes=400))
    first = bench.say("a", "v" * 200)
    bench.partition.failure = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    second = bench.say("b", "v" * 200)
    bench.partition.failure = None
    bench.loop.run_ready()
    assert code_of(first) is code_of(second) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (bench.words, bench.log_records()) == ({}, [])


def test_non_atomic_records_are_written_in_several_batches() -> None:
    bench = Bench(FakeLog(max_message_bytes=400))
    errors: list[KafkaError | None] = []
    for number in range(20):
        bench.say(str(number), "1")
        bench.loop.run_ready()
    tombstones = [(str(number), None) for number in range(20)]
    future = bench.host.submit(Outcome(tombstones, "deleted", errors.append, atomic=False))
    bench.loop.run_ready()
    assert (future.result(), errors, bench.words) == ("deleted", [None], {})
    assert all(len(data) <= 400 for _, _, data in bench.partition.log.batches)  # type: ignore[union-attr]


def test_the_error_of_any_batch_is_reported() -> None:
    bench = Bench(FakeLog(max_message_bytes=400))
    errors: list[KafkaError | None] = []
    records = [("a", "1"), ("b", "v" * 400), ("c", "1")]
    future = bench.host.submit(Outcome(records, "said", errors.append, atomic=False))
    bench.loop.run_ready()
    assert code_of(future) is ErrorCode.MESSAGE_TOO_LARGE
    assert [error is not None for error in errors] == [True]


# ---- loading and unloading


def log_with(*entries: Entry) -> FakeLog:
    bench = Bench()
    for entry in entries:
        bench.say(*entry)
        bench.loop.run_ready()
    assert bench.partition.log is not None
    return bench.partition.log


def test_a_new_leader_loads_the_log_first() -> None:
    log = log_with(("a", "1"), ("b", "1"), ("a", "2"), ("b", None))
    bench = Bench(log)
    with pytest.raises(KafkaError) as error:
        bench.runtime.host(3)
    assert error.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert bench.runtime.is_loading
    bench.work()
    assert bench.words == {"a": "2"}
    assert bench.host.shard.loaded == 1
    assert not bench.runtime.is_loading


def test_a_new_leader_does_not_act_on_uncommitted_records() -> None:
    """The previous leader failed before the ISR had the record, so the next leader may not have
    it."""
    log = log_with(("a", "1"), ("a", "2"))
    log.high_watermark = 1
    bench = Bench(log)
    bench.partition.hold_high_watermark = True
    bench.work()
    words = bench.host.read(lambda shard: shard.words["a"])
    assert not words.done()
    assert bench.host.shard.after_loading == []
    said = bench.say("b")
    bench.loop.run_ready()
    log.high_watermark = 2
    bench.partition.advance()
    assert words.result() == "2"
    assert bench.host.shard.after_loading == [None]
    assert not said.done()
    bench.partition.hold_high_watermark = False
    bench.partition.advance()
    assert said.done()


def bench_with_uncommitted_record() -> Bench:
    """Return a new leader that has loaded a record that the followers do not have yet."""
    log = log_with(("a", "1"))
    log.high_watermark = 0
    bench = Bench(log)
    bench.partition.hold_high_watermark = True
    bench.work()
    return bench


def test_reads_of_loaded_records_time_out_like_writes() -> None:
    bench = bench_with_uncommitted_record()
    words = bench.host.read(lambda shard: shard.words["a"])
    bench.loop.advance(5_000)
    assert code_of(words) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    [error] = bench.host.shard.after_loading
    assert error is not None
    # A retry gets a new deadline.
    again = bench.host.read(lambda shard: shard.words["a"])
    bench.loop.advance(4_000)
    assert not again.done()
    bench.loop.advance(1_000)
    assert code_of(again) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.partition.hold_high_watermark = False
    bench.partition.advance()
    assert bench.host.read(lambda shard: shard.words["a"]) == "1"


def test_the_last_in_sync_replica_serves_its_records() -> None:
    """No other replica can become leader without a copy of the records. No further record is
    committed while the ISR is below min.insync.replicas."""
    bench = bench_with_uncommitted_record()
    words = bench.host.read(lambda shard: shard.words["a"])
    said = bench.say("b")
    bench.loop.run_ready()
    assert not words.done()
    bench.partition.maximal_isr = frozenset((1,))
    bench.partition.advance()
    assert words.result() == "1"
    assert bench.host.shard.after_loading == [None]
    assert not said.done()


def test_a_long_log_is_loaded_in_chunks() -> None:
    log = log_with(*((str(number), "v" * 50) for number in range(40)))
    bench = Bench(log, load_bytes=500)
    rounds = 0
    while bench.jobs:
        rounds += 1
        function, done = bench.jobs.pop(0)
        function()
        done(None)
    assert rounds > 5
    assert len(bench.words) == 40


def test_records_of_unknown_types_are_skipped() -> None:
    bench = Bench(log_with(("unknown kind", "1"), ("a", "1")))
    bench.work()
    assert bench.words == {"a": "1"}


def test_a_corrupt_log_has_no_coordinator(bench: Bench) -> None:
    log = log_with(("a", "1"))
    first_offset, next_offset, data = log.batches[0]
    log.batches[0] = (first_offset, next_offset, data[:-1] + b"?")
    broken = Bench(log)
    broken.work()
    with pytest.raises(KafkaError) as error:
        broken.runtime.host(3)
    assert error.value.code is ErrorCode.NOT_COORDINATOR


class FaultyLog(FakeLog):
    """A log whose reads fail. Each number in `failures` is the count of successful reads before the
    next failure."""

    def __init__(self, log: FakeLog, failures: list[int]) -> None:
        super().__init__()
        self.batches, self.end_offset, self.high_watermark = log.batches, log.end_offset, log.high_watermark
        self.failures = failures
        self.reads = 0

    def read(self, offset: int, max_bytes: int, *, limit: int, min_one_batch: bool) -> Any:
        if self.failures and self.reads == self.failures[0]:
            self.reads = 0
            del self.failures[0]
            raise OSError(5, "Input/output error")
        self.reads += 1
        return super().read(offset, max_bytes, limit=limit, min_one_batch=min_one_batch)


def state_code(bench: Bench) -> ErrorCode:
    try:
        bench.runtime.host(3)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_a_failed_load_is_retried_until_it_succeeds() -> None:
    entries = [(str(number), "v" * 50) for number in range(10)]
    bench = Bench(FaultyLog(log_with(*entries), failures=[0, 3, 1]), load_bytes=200)
    bench.work()
    delays = []
    while state_code(bench) is not ErrorCode.NONE:
        assert state_code(bench) is ErrorCode.NOT_COORDINATOR
        delay = 0
        while not bench.runtime.is_loading:
            bench.loop.advance(50)
            delay += 50
        assert state_code(bench) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        delays.append(delay)
        bench.work()
    assert delays == [100, 200, 400]
    assert bench.words == dict(entries)
    assert bench.host.shard.loaded == 1
    assert len(bench.host.shard.after_loading) == 1


def test_load_retries_back_off_to_half_a_minute_and_end_with_the_leadership() -> None:
    bench = Bench(FaultyLog(log_with(("a", "1")), failures=[0] * 10_000))
    bench.loop.advance(3_600_000)
    assert isinstance(bench.partition.log, FaultyLog)
    attempts = 10_000 - len(bench.partition.log.failures)
    assert 120 <= attempts < 135
    bench.runtime.on_leadership(bench.partition, False)  # type: ignore[arg-type]
    bench.loop.advance(3_600_000)
    assert 10_000 - len(bench.partition.log.failures) == attempts
    bench.runtime.on_leadership(bench.partition, True)  # type: ignore[arg-type]
    assert 10_000 - len(bench.partition.log.failures) == attempts + 1, "a new leadership loads at once"


def test_a_partition_on_an_offline_disk_is_loaded_when_the_disk_is_online_again() -> None:
    bench = Bench(FaultyLog(log_with(("a", "1")), failures=[0]))
    log, bench.partition.log = bench.partition.log, None
    bench.loop.advance(10_000)
    assert state_code(bench) is ErrorCode.NOT_COORDINATOR
    bench.partition.log = log
    bench.loop.advance(30_000)
    bench.work()
    assert bench.words == {"a": "1"}


def test_a_partition_with_another_leader_has_no_coordinator_here(bench: Bench) -> None:
    with pytest.raises(KafkaError) as error:
        bench.runtime.host(0)
    assert error.value.code is ErrorCode.NOT_COORDINATOR


def test_partitions_of_other_topics_are_ignored(bench: Bench) -> None:
    bench.runtime.on_leadership(FakePartition(0, "orders"), True)  # type: ignore[arg-type]
    with pytest.raises(KafkaError):
        bench.runtime.host(0)


def test_pending_callers_fail_when_the_leadership_ends(bench: Bench) -> None:
    bench.partition.hold_high_watermark = True
    uncommitted = bench.say("a")
    bench.loop.run_ready()
    unwritten = bench.say("b")
    host = bench.host
    bench.partition.resign()
    bench.runtime.on_leadership(bench.partition, False)  # type: ignore[arg-type]
    assert code_of(uncommitted) is ErrorCode.NOT_COORDINATOR
    assert code_of(unwritten) is ErrorCode.NOT_COORDINATOR
    assert host.shard.unloaded is ErrorCode.NOT_COORDINATOR
    bench.loop.run_ready()
    assert len(bench.log_records()) == 1


def test_a_newer_epoch_of_the_same_leader_keeps_the_state(bench: Bench) -> None:
    bench.say("a")
    bench.loop.run_ready()
    host = bench.host
    bench.partition.leader_epoch = 2
    bench.runtime.on_leadership(bench.partition, True)  # type: ignore[arg-type]
    assert bench.host is host


def test_a_leader_that_returns_loads_the_log_again(bench: Bench) -> None:
    bench.say("a")
    bench.loop.run_ready()
    bench.runtime.on_leadership(bench.partition, False)  # type: ignore[arg-type]
    bench.runtime.on_leadership(bench.partition, True)  # type: ignore[arg-type]
    bench.work()
    assert bench.words == {"a": "x"}


def test_a_load_is_cancelled_when_the_leadership_ends() -> None:
    bench = Bench(log_with(("a", "1")))
    bench.runtime.on_leadership(bench.partition, False)  # type: ignore[arg-type]
    bench.work()
    with pytest.raises(KafkaError) as error:
        bench.runtime.host(3)
    assert error.value.code is ErrorCode.NOT_COORDINATOR


def test_closing_writes_the_open_batches(bench: Bench) -> None:
    future = bench.say("a")
    bench.runtime.close()
    assert future.result() == "a said"
    with pytest.raises(KafkaError):
        bench.runtime.host(3)


# ---- timers


def test_the_outcome_of_a_timer_is_written(bench: Bench) -> None:
    bench.host.timers.schedule("key", 100, lambda: Outcome((("late", "1"),)))
    bench.loop.advance(99)
    assert bench.words == {}
    bench.loop.advance(1)
    assert bench.words == {"late": "1"}
    assert bench.log_records() == [[(b"late", b"1")]]


def test_a_timer_replaces_an_earlier_timer_with_its_key_and_can_be_cancelled(bench: Bench) -> None:
    fired: list[str] = []

    def fire(name: str) -> Outcome:
        fired.append(name)
        return NOTHING

    timers = bench.host.timers
    timers.schedule("key", 100, lambda: fire("old"))
    timers.schedule("key", 200, lambda: fire("new"))
    timers.schedule("other", 50, lambda: fire("cancelled"))
    timers.cancel("other")
    timers.cancel("never scheduled")
    bench.loop.advance(1_000)
    assert fired == ["new"]


def test_no_timer_fires_after_its_shard_is_unloaded(bench: Bench) -> None:
    fired: list[int] = []
    bench.host.timers.schedule("key", 100, lambda: fired.append(1) or NOTHING)  # type: ignore[func-returns-value]
    bench.runtime.on_leadership(bench.partition, False)  # type: ignore[arg-type]
    bench.loop.advance(1_000)
    assert fired == []


def test_a_failing_timer_does_not_affect_other_timers(bench: Bench) -> None:
    def broken() -> Outcome:
        raise ValueError("broken")

    bench.host.timers.schedule("a", 1, broken)
    bench.host.timers.schedule("b", 2, lambda: Outcome((("late", "1"),)))
    bench.loop.advance(5)
    assert bench.words == {"late": "1"}


# ---- transactions


def test_transactional_records_are_pending_until_the_marker_even_after_a_restart(bench: Bench) -> None:
    bench.say("before")
    future = bench.host.append_in_transaction((("a", "1"), ("b", "2")), "done", 7, 0)
    assert future.result() == "done"
    assert bench.words == {"before": "x"}
    again = Bench(bench.partition.log)
    again.work()
    assert again.words == {"before": "x"}
    assert again.host.shard.pending == {7: {"a": "1", "b": "2"}}
    assert again.host.end_transaction(7, 0, 3, True).done()
    assert again.words == {"before": "x", "a": "1", "b": "2"}
    third = Bench(again.partition.log)
    third.work()
    assert third.words == again.words
    assert third.host.shard.pending == {}


def test_records_of_an_aborted_transaction_are_discarded(bench: Bench) -> None:
    bench.host.append_in_transaction((("a", "1"),), None, 7, 0)
    bench.host.end_transaction(7, 0, 3, False)
    assert bench.words == {}
    again = Bench(bench.partition.log)
    again.work()
    assert again.words == {}


def test_a_transaction_that_cannot_be_written_is_not_pending(bench: Bench) -> None:
    bench.partition.failure = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    future = bench.host.append_in_transaction((("a", "1"),), None, 7, 0)
    assert code_of(future) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert bench.host.shard.pending == {}
