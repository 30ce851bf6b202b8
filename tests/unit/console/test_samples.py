"""Rates, alerts, history and rows that the console derives from samples."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from kavka.client.admin.types import ConfigEntry, ConfigSource
from kavka.client.metadata import Node
from kavka.common.config import ConfigType
from kavka.common.metrics import Registry
from kavka.common.topic_config import TOPIC_CONFIGS
from kavka.common.types import TopicPartition
from kavka.console import store as store_module
from kavka.console.alerts import Alerts
from kavka.console.cluster import ClusterHandle
from kavka.console.entries import plain_text, settings
from kavka.console.jsons import plain
from kavka.console.pages.brokers import broker_rows
from kavka.console.rules import Kind, Rule, violations_of
from kavka.console.settings import ClusterSettings, SettingsError
from kavka.console.state import Group, LogDir, Partition, Sample, Topic
from kavka.console.store import Store

ORDERS = uuid4()


def sample(
    *,
    at: float = 1000.0,
    ends: tuple[int, ...] = (10, 10),
    leaders: tuple[int, ...] = (0, 1),
    isr: tuple[int, ...] = (0, 1),
    brokers: tuple[int, ...] = (0, 1),
    id: UUID = ORDERS,
    used: float = 0.5,
    groups: dict[str, Group] | None = None,
    seen: frozenset[int] = frozenset(),
) -> Sample:
    partitions = tuple(
        Partition("orders", number, leader, 0, (0, 1), isr, 0, end, end * 100)
        for number, (end, leader) in enumerate(zip(ends, leaders, strict=True))
    )
    dirs = {b: (LogDir("/data", "", 2, 100, 1000, round(1000 * (1 - used))),) for b in brokers}
    return Sample(
        at, 0.01, "id", 0, {b: Node(b, "host", 1) for b in brokers}, {"orders": Topic("orders", id, False, partitions)},
        dirs, (), groups or {}, at if groups is not None else 0.0, seen,
    )  # fmt: skip


def group(name: str, lag: int | None, offset: int = 0) -> Group:
    tp = TopicPartition("orders", 0)
    return Group(name, "consumer", "Stable", "classic", 0, {tp: offset}, None if lag is None else {tp: lag})


@pytest.fixture
def store(tmp_path):
    opened = Store(tmp_path / "data")
    opened.open()
    yield opened
    opened.close()


def handle(store: Store) -> ClusterHandle:
    return ClusterHandle(ClusterSettings("one", {"bootstrap.servers": "localhost:1"}), store)


SENT = Registry().counter("sent", "", ("outcome",))


# --- rates


def test_rates_are_differences_per_second(store):
    cluster = handle(store)
    cluster._record_rates(sample(at=10.0, ends=(10, 10)), sample(at=12.0, ends=(30, 10)))
    assert (cluster.rates[-1].messages_in, cluster.rates[-1].bytes_in) == (10.0, 1000.0)
    assert cluster.topic_rates == {"orders": (10.0, 1000.0)}


def test_all_messages_of_new_topics_and_partitions_are_counted(store):
    cluster = handle(store)
    cluster._record_rates(sample(at=10.0, ends=(10, 10)), sample(at=12.0, ends=(4, 4), id=uuid4()))
    assert cluster.rates[-1].messages_in == 4.0
    cluster._record_rates(sample(at=10.0, ends=(10,), leaders=(0,)), sample(at=12.0, ends=(10, 6)))
    assert cluster.rates[-1].messages_in == 3.0


def test_shrinking_logs_and_leader_changes_are_not_counted(store):
    cluster = handle(store)
    cluster._record_rates(sample(at=10.0, ends=(10, 10)), sample(at=12.0, ends=(5, 30), leaders=(0, 0)))
    assert (cluster.rates[-1].messages_in, cluster.rates[-1].bytes_in) == (10.0, 0.0)


def test_outgoing_rates_are_derived_from_committed_offsets(store):
    cluster = handle(store)
    previous = sample(at=10.0, groups={"g": group("g", 5, offset=1)})
    cluster._record_out_rates(previous, {"g": group("g", 0, offset=5), "new": group("new", 0, offset=9)}, 12.0)
    cluster._record_rates(previous, sample(at=12.0))
    assert (cluster.rates[-1].messages_out, cluster.rates[-1].bytes_out) == (2.0, 200.0)
    cluster._record_out_rates(previous, {"g": group("g", 5, offset=0)}, 12.0)
    assert cluster._out_rates == (0.0, 0.0), "an offset that was reset is not counted"


# --- rules


def test_rules_find_violations():
    healthy = sample(groups={"g": group("g", 10)})
    for rule in (
        Rule(1, Kind.LAG, "*", 10), Rule(1, Kind.OFFLINE), Rule(1, Kind.UNDER_REPLICATED), Rule(1, Kind.MISSING),
        Rule(1, Kind.DISK, "*", 50), Rule(1, Kind.UNREACHABLE),
    ):  # fmt: skip
        assert violations_of(rule, healthy, "") == {}, rule
    unhealthy = sample(
        groups={"a": group("a", 11), "b": group("b", 99), "c": group("c", None)},
        leaders=(-1, 1), isr=(0,), brokers=(0,), used=0.91, seen=frozenset({0, 7}),
    )  # fmt: skip
    assert violations_of(Rule(1, Kind.LAG, "*", 10), unhealthy, "").keys() == {"a", "b"}
    assert violations_of(Rule(1, Kind.LAG, "b*", 10), unhealthy, "").keys() == {"b"}
    assert violations_of(Rule(1, Kind.OFFLINE), unhealthy, "") == {
        "partitions": "1 partition without a leader, for example orders-0"
    }
    assert violations_of(Rule(1, Kind.UNDER_REPLICATED, threshold=2), unhealthy, "") == {}
    assert "2 under-replicated partitions" in violations_of(Rule(1, Kind.UNDER_REPLICATED), unhealthy, "")["partitions"]
    assert violations_of(Rule(1, Kind.MISSING), unhealthy, "").keys() == {"1", "7"}
    assert "91% full" in violations_of(Rule(1, Kind.DISK, "*", 85), unhealthy, "")["0 /data"]
    assert violations_of(Rule(1, Kind.UNREACHABLE), None, "refused") == {"cluster": "no broker responds: refused"}


def test_unreachable_cluster_has_unknown_findings():
    assert violations_of(Rule(1, Kind.OFFLINE), sample(), "refused") is None
    assert violations_of(Rule(1, Kind.OFFLINE), None, "") is None
    assert violations_of(Rule(1, Kind.LAG), sample(), "") is None, "the groups were not sampled yet"


def test_alert_is_pending_raised_and_ended_and_survives_restart(store):
    async def body() -> None:
        cluster = handle(store)
        alerts = Alerts(cluster, SENT)
        await alerts.load()
        assert len(alerts.rules) == 5, "a new cluster has default rules"
        for number in list(alerts.rules):
            await alerts.remove(number)
        rule = await alerts.put(Rule(0, Kind.OFFLINE, for_s=3600.0))
        cluster.sample = sample(leaders=(-1, 1))
        await alerts.evaluate()
        assert cluster.alerts == (), "the alert is pending"
        await alerts.put(Rule(rule.id, Kind.OFFLINE))
        assert [alert.text for alert in cluster.alerts] == ["1 partition without a leader, for example orders-0"]
        cluster.error = "refused"
        await alerts.evaluate()
        assert len(cluster.alerts) == 1, "an alert does not end while the cluster is unreachable"
        restarted = Alerts(handle(store), SENT)
        await restarted.load()
        assert [alert.subject for alert in restarted.cluster.alerts] == ["partitions"]
        assert list(restarted.rules) == [rule.id], "deleted rules are not created again"
        restarted.cluster.sample = sample()
        await restarted.evaluate()
        assert restarted.cluster.alerts == ()
        (event,) = await restarted.events(10)
        assert event.ended is not None
        await alerts.close()
        await restarted.close()

    asyncio.run(body())


def test_changed_sample_keeps_what_was_computed_from_its_topics():
    computed = sample(leaders=(-1, 0)).compute()
    changed = computed.with_changes(groups_at=5.0)
    assert changed.groups_at == 5.0 and changed.topics is computed.topics
    assert changed.partitions is computed.partitions and len(changed.offline) == 1
    assert len(sample().offline) == 0


# --- the store


def test_history_is_thinned_and_expires(store):
    async def body() -> None:
        now = time.time()
        for age in (0, 60, 120):
            await store.add_history("one", now - age, {"lag/g": float(age)})
        thinned = int(now - store_module.FULL_RETENTION_S - 3600)
        thinned -= thinned % store_module.THINNED_INTERVAL_S
        for delay in range(0, 1200, 60):
            await store.add_history("one", thinned + delay, {"lag/g": 1.0})
        await store.add_history("one", now - store_module.THINNED_RETENTION_S - 60, {"lag/g": 1.0})
        await store.prune(now)
        times = [at for at, _ in await store.history("one", "lag/g", 0)]
        assert len([at for at in times if at >= now - 300]) == 3
        assert [at for at in times if at < now - 300] == [thinned, thinned + 600]

    asyncio.run(body())


def test_directory_is_locked_by_one_console(store, tmp_path):
    with pytest.raises(SettingsError, match="another console uses the directory"):
        Store(tmp_path / "data").open()


def test_invalid_database_is_reported(tmp_path):
    (tmp_path / "console.db").write_bytes(b"not a database" * 100)
    with pytest.raises(SettingsError, match=r"console.db: "):
        Store(tmp_path).open()


# --- rows and values


def test_missing_broker_is_listed():
    rows = {row.id: row for row in broker_rows(sample(brokers=(0,), isr=(0,), leaders=(0, 0)))}
    assert (rows[1].up, rows[1].replicas, rows[1].leaders) == (False, 2, 0)
    assert (rows[0].leaders, rows[0].preferred, rows[0].in_sync, rows[0].leader_skew) == (2, 2, 2, 0.0)


def test_settings_have_help_and_choices_and_secrets_are_hidden():
    entries = [
        ConfigEntry("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC_CONFIG, False, False, (), ConfigType.LONG),
        ConfigEntry("cleanup.policy", "delete", ConfigSource.DEFAULT_CONFIG, False, False, (), ConfigType.LIST),
        ConfigEntry(
            "of.apache", None, ConfigSource.DEFAULT_CONFIG, False, True, (), None, "Some <b>text</b> &lt;here&gt;"
        ),
        ConfigEntry("password", "x", ConfigSource.DEFAULT_CONFIG, True, False, (), ConfigType.PASSWORD),
    ]
    by_name = {s.name: s for s in settings(entries, TOPIC_CONFIGS, ConfigSource.DYNAMIC_TOPIC_CONFIG)}
    assert (by_name["retention.ms"].own, by_name["retention.ms"].allowed) == (True, "at least -1")
    assert by_name["cleanup.policy"].choices == ["compact", "delete", "compact,delete"]
    assert (by_name["of.apache"].help, by_name["of.apache"].editable) == ("Some text <here>", False)
    assert by_name["password"].value is None
    assert plain_text("<script>alert(1)</script>x") == "alert(1)x"


def test_values_are_converted_to_json():
    value = {Kind.LAG: (Node(1, "h", 2), {3}, float("nan"), ORDERS, b"\x01"), "x": Rule(1, Kind.DISK)}
    assert plain(value) == {
        "lag": [{"id": 1, "host": "h", "port": 2, "rack": None}, [3], None, str(ORDERS), "01"],
        "x": {
            "id": 1, "kind": "disk", "subject": "*", "threshold": 0.0, "for_s": 0.0, "webhook": "", "enabled": True,
            "format": "json", "silenced_until": 0.0,
        },
    }  # fmt: skip
    with pytest.raises(TypeError, match="cannot be converted to JSON"):
        plain(Path())
