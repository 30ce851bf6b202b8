"""Interactive queries of a running application, and input topics that are created later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kavka import Admin, NewTopic
from kavka.common.types import TopicPartition
from kavka.streams import (
    HostInfo,
    InvalidStateStoreException,
    KafkaStreams,
    Materialized,
    QueryableStoreTypes,
    SessionWindows,
    StoreQueryParameters,
    Stores,
    StreamsBuilder,
    StreamThreadExceptionResponse,
    TimeWindows,
    Topology,
)
from tests.integration.test_streams_spark import config, fill
from tests.support.our_consumer import read_all
from tests.support.processes import wait_until
from tests.support.targets import Target

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

TYPES = QueryableStoreTypes


@pytest.fixture
def admin(target: Target) -> Iterator[Admin]:
    with Admin(bootstrap_servers=target.bootstrap_servers) as admin:
        yield admin


def with_stores_of_all_kinds(topic: str) -> Topology:
    builder = StreamsBuilder()
    by_key = builder.stream(re.compile(re.escape(topic) + "-in-[0-9]")).group_by_key()
    by_key.count(Materialized.as_("counts"))
    by_key.windowed_by(TimeWindows.of_size_and_grace(1000, 5000)).count(Materialized.as_("windows"))
    by_key.windowed_by(SessionWindows.of_inactivity_gap_and_grace(500, 5000)).count(Materialized.as_("sessions"))
    history = Stores.persistent_versioned_key_value_store("history", 60_000)
    builder.table(f"{topic}-table", None, Materialized.as_(history))
    by_value = builder.table(f"{topic}-values").group_by(lambda key, value: (value, key))
    by_value.count(Materialized.as_("by-value"))
    builder.global_table(f"{topic}-everywhere", None, Materialized.as_("everywhere"))
    return builder.build()


def test_stores_are_queried_while_the_application_runs(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    """One test of many steps, because a start of an application takes seconds."""
    admin.create_topics(
        [
            NewTopic(f"{topic}-in-1", 2),
            *(NewTopic(f"{topic}-{suffix}", 1) for suffix in ("table", "values", "everywhere")),
        ]
    )
    fill(target, f"{topic}-in-1", [(key, b"x", at) for key in (b"a", b"b", b"ab") for at in (100, 300, 1500)])
    versions = [(b"k", b"old", 100), (b"k", b"new", 200), (b"gone", b"x", 100), (b"gone", None, 200)]
    fill(target, f"{topic}-table", versions)
    fill(target, f"{topic}-values", [(b"1", b"x", 100), (b"2", b"x", 100), (b"3", b"y", 100)])
    fill(target, f"{topic}-everywhere", [(b"k", b"v", 100)])
    extra_settings = {"metadata_max_age_ms": 1000, "application_server": "here:7070"}
    settings = config(target, f"app-{topic}", tmp_path, **extra_settings)
    streams = KafkaStreams(with_stores_of_all_kinds(topic), settings, spark)

    def query_store(name: str, kind: Any) -> Any:
        return streams.store(StoreQueryParameters.from_name_and_type(name, kind))

    with pytest.raises(InvalidStateStoreException, match="CREATED, not RUNNING"):
        query_store("counts", TYPES.key_value_store())
    with streams:
        streams.process_all_available()
        counts = query_store("counts", TYPES.key_value_store())
        wait_until(lambda: counts.get("a") == 3, timeout=120, what="the first counts", interval=0.5)
        assert counts.get("nobody") is None
        assert list(counts.range("a", "ab")) == [("a", 3), ("ab", 3)]
        assert list(counts.reverse_range("ab", None)) == [("b", 3), ("ab", 3)]
        assert list(counts.prefix_scan("a")) == [("a", 3), ("ab", 3)]
        assert counts.approximate_num_entries() == 3
        assert list(counts.all()) == [("a", 3), ("ab", 3), ("b", 3)]
        assert list(counts.reverse_all()) == [("b", 3), ("ab", 3), ("a", 3)]
        assert query_store("counts", TYPES.timestamped_key_value_store()).get("a") == (3, 1500)

        windows = query_store("windows", TYPES.window_store())
        assert (windows.fetch("a", 0), windows.fetch("a", 1000), windows.fetch("a", 7000)) == (2, 1, None)
        assert list(windows.fetch("a", 0, 2000)) == [(0, 2), (1000, 1)]
        assert list(windows.backward_fetch("a", 0, 2000)) == [(1000, 1), (0, 2)]
        assert [(key.key, key.window.start, n) for key, n in windows.fetch_range("a", "ab", 1000, 2000)] == [
            ("a", 1000, 1),
            ("ab", 1000, 1),
        ]
        assert len(list(windows.all())) == 6
        assert next(windows.backward_fetch_all(0, 500))[0].key == "b"

        sessions = query_store("sessions", TYPES.session_store())
        assert [(key.window.start, key.window.end, n) for key, n in sessions.fetch("ab")] == [
            (100, 300, 2),
            (1500, 1500, 1),
        ]
        assert sessions.fetch_session("a", 100, 300) == 2
        assert [n for _, n in sessions.find_sessions("a", 1000, 2000)] == [1]
        assert len(list(sessions.fetch_range("a", "ab"))) == 4

        history = query_store("history", TYPES.versioned_key_value_store())
        assert history.get("k") == ("new", 200, None)
        assert history.get("k", 150) == ("old", 100, 200)
        assert history.get("gone") is None
        assert query_store("everywhere", TYPES.key_value_store()).get("k") == "v"

        check_metadata(streams, topic)
        with pytest.raises(InvalidStateStoreException, match="no such store"):
            query_store("nothing", TYPES.key_value_store())
        with pytest.raises(InvalidStateStoreException, match="does not accept the actual store type window"):
            query_store("windows", TYPES.key_value_store())

        admin.create_topics([NewTopic(f"{topic}-in-2", 3)])
        fill(target, f"{topic}-in-2", [(b"late", b"x", 2000)])
        wait_until(lambda: counts.get("late") == 1, timeout=240, what="the topic that was created later", interval=1)
        assert streams.state() == "RUNNING"
        assert counts.get("a") == 3
    with pytest.raises(InvalidStateStoreException, match="NOT_RUNNING, not RUNNING"):
        counts.get("a")
    stale_counts = StoreQueryParameters.from_name_and_type("counts", TYPES.key_value_store()).enable_stale_stores()
    assert streams.store(stale_counts).get("a") == 3

    # The restarted application rebuilds the state. The first run left records in the repartition
    # topic of by-value.
    restarted = KafkaStreams(with_stores_of_all_kinds(topic), settings, spark)
    restarted.clean_up()
    with restarted:
        restarted.process_all_available()
        by_value = restarted.store(StoreQueryParameters.from_name_and_type("by-value", TYPES.key_value_store()))
        wait_until(lambda: dict(by_value.all()) == {"x": 2, "y": 1}, timeout=240, what="the rebuilt counts", interval=1)


def test_an_application_continues_after_a_handled_error_and_after_a_pause(
    spark: Any, target: Target, admin: Admin, topic: str, tmp_path: Path
) -> None:
    output = f"{topic}-out"
    admin.create_topics([NewTopic(topic, 1), NewTopic(output, 1)])
    broken = tmp_path / "broken"
    broken.touch()
    path = str(broken)

    def fragile(value: str) -> str:
        if Path(path).exists():
            raise ValueError("it is broken")
        return value.upper()

    handled: list[str] = []

    def handler(error: BaseException) -> str:
        handled.append(str(error))
        broken.unlink()
        return StreamThreadExceptionResponse.REPLACE_THREAD

    builder = StreamsBuilder()
    builder.stream(topic).map_values(fragile).to(output)
    streams = KafkaStreams(builder.build(), config(target, f"app-{topic}", tmp_path / "state"), spark)
    streams.set_uncaught_exception_handler(handler)

    def written() -> list[bytes]:
        assert streams.exception() is None
        # At least once: an interrupted micro-batch is written again.
        return list(dict.fromkeys(record.value for record in read_all(target, output)))

    with streams:
        fill(target, topic, [(b"k", b"one", 1000)])
        wait_until(lambda: written() == [b"ONE"], timeout=240, what="the record that failed at first", interval=0.5)
        assert len(handled) == 1
        assert "it is broken" in handled[0]
        wait_until(lambda: streams.state() == "RUNNING", timeout=60, what="RUNNING again")
        streams.pause()
        assert streams.is_paused()
        assert streams.query is not None
        assert not streams.query.isActive
        fill(target, topic, [(b"k", b"two", 2000)])
        streams.resume()
        wait_until(lambda: written() == [b"ONE", b"TWO"], timeout=240, what="the record of the pause", interval=0.5)
        assert not streams.is_paused()
    assert streams.state() == "NOT_RUNNING"


def check_metadata(streams: KafkaStreams, topic: str) -> None:
    (client,) = streams.metadata_for_all_streams_clients()
    assert client.host_info == HostInfo("here", 7070)
    assert {"counts", "windows", "sessions", "history", "everywhere", "by-value"} < client.state_store_names
    assert {TopicPartition(f"{topic}-in-1", 0), TopicPartition(f"{topic}-table", 0)} <= client.topic_partitions
    assert streams.streams_metadata_for_store("nothing") == []
    partition = streams.query_metadata_for_key("counts", "a").partition
    for queried in (0, 1):
        parameters = StoreQueryParameters.from_name_and_type("counts", TYPES.key_value_store()).with_partition(queried)
        assert streams.store(parameters).get("a") == (3 if queried == partition else None)
    (thread,) = streams.metadata_for_local_threads()
    assert [task.task_id for task in thread.active_tasks] == ["0_0", "0_1", "1_0", "2_0", "3_0"]
