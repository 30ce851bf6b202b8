from __future__ import annotations

import pytest

from kavka.common.config import ConfigError, ConfigType
from kavka.common.config_view import (
    BrokerConfigs,
    ConfigSource,
    SynonymEntry,
    check_dynamic,
    describe_broker,
    describe_broker_defaults,
    describe_group,
    describe_topic,
)


def single(entries):
    assert len(entries) == 1
    return entries[0]


def topic(configs: BrokerConfigs, name: str, **overrides: str):
    return single(describe_topic(configs, {k.replace("_", "."): v for k, v in overrides.items()}, [name]))


def test_default_has_broker_default_as_synonym():
    entry = topic(BrokerConfigs({}), "segment.bytes")
    assert (entry.value, entry.source) == ("1073741824", ConfigSource.DEFAULT)
    assert entry.synonyms == (SynonymEntry("log.segment.bytes", "1073741824", ConfigSource.DEFAULT),)
    assert entry.type == ConfigType.INT
    assert not entry.read_only
    assert not entry.is_sensitive
    assert entry.documentation


def test_synonyms_of_topic_setting_are_ordered_by_precedence():
    configs = BrokerConfigs(
        {"log.segment.bytes": "3000"},
        dynamic_default={"log.segment.bytes": "2000"},
        dynamic_broker={"log.segment.bytes": "1000"},
    )
    entry = topic(configs, "segment.bytes", segment_bytes="500")
    assert (entry.value, entry.source) == ("500", ConfigSource.TOPIC)
    assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
        ("segment.bytes", "500", ConfigSource.TOPIC),
        ("log.segment.bytes", "1000", ConfigSource.DYNAMIC_BROKER),
        ("log.segment.bytes", "2000", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("log.segment.bytes", "3000", ConfigSource.STATIC_BROKER),
        ("log.segment.bytes", "1073741824", ConfigSource.DEFAULT),
    ]
    assert topic(configs, "segment.bytes").value == "1000"
    assert topic(configs, "segment.bytes").source is ConfigSource.DYNAMIC_BROKER


def test_retention_hours_take_effect_without_synonym():
    entry = topic(BrokerConfigs({"log.retention.hours": "1"}), "retention.ms")
    assert (entry.value, entry.source, entry.synonyms) == ("3600000", ConfigSource.DEFAULT, ())


def test_finest_unit_of_retention_wins():
    retention = {"log.retention.hours": "1", "log.retention.minutes": "2"}
    assert BrokerConfigs(retention).topic_values({})["retention.ms"] == 120_000
    configs = BrokerConfigs({**retention, "log.retention.ms": "3"})
    assert configs.topic_values({})["retention.ms"] == 3
    entry = topic(configs, "retention.ms")
    assert [s.name for s in entry.synonyms] == [
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
        "log.retention.hours",
    ]


def test_unlimited_retention_is_minus_one_in_any_unit():
    for unit in ("ms", "minutes", "hours"):
        assert BrokerConfigs({f"log.retention.{unit}": "-1"}).topic_values({})["retention.ms"] == -1


def test_deprecated_timestamp_difference_applies_to_both_directions():
    configs = BrokerConfigs({})
    values = configs.topic_values({"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "7"})
    assert values["message.timestamp.before.max.ms"] == 5
    assert values["message.timestamp.after.max.ms"] == 7
    broker_configs = BrokerConfigs({"log.message.timestamp.difference.max.ms": "5"})
    assert broker_configs.topic_values({})["message.timestamp.after.max.ms"] == 5
    assert broker_configs.topic_values({"message.timestamp.after.max.ms": "9"})["message.timestamp.after.max.ms"] == 9


def test_topic_settings_are_checked_against_broker_settings():
    configs = BrokerConfigs({"log.cleaner.max.compaction.lag.ms": "10"})
    configs.check_topic({"min.compaction.lag.ms": "10"})
    with pytest.raises(ConfigError, match=r"^min\.compaction\.lag\.ms: "):
        configs.check_topic({"min.compaction.lag.ms": "11"})
    with pytest.raises(ConfigError, match=r"^nonsense: "):
        configs.check_topic({"nonsense": "1"})


def test_describe_broker_returns_all_settings_with_source():
    configs = BrokerConfigs(
        {"num.partitions": "3", "my.plugin.setting": "secret?"}, dynamic_broker={"max.connections": "9"}
    )
    entries = {entry.name: entry for entry in describe_broker(configs)}
    assert len(entries) > 250
    assert (entries["num.partitions"].value, entries["num.partitions"].source) == ("3", ConfigSource.STATIC_BROKER)
    assert entries["num.partitions"].read_only
    assert (entries["max.connections"].value, entries["max.connections"].source) == ("9", ConfigSource.DYNAMIC_BROKER)
    assert not entries["max.connections"].read_only
    assert entries["log.retention.ms"].value is None
    assert entries["my.plugin.setting"].value is None
    assert entries["my.plugin.setting"].is_sensitive
    assert entries["my.plugin.setting"].type == 0
    assert "log.initial.task.delay.ms" not in entries


def test_passwords_are_hidden():
    configs = BrokerConfigs({"ssl.keystore.password": "hunter2"})
    entry = single(describe_broker(configs, ["ssl.keystore.password"]))
    assert entry.is_sensitive
    assert "hunter2" not in repr(entry)
    assert entry.source is ConfigSource.STATIC_BROKER


def test_listener_setting_has_general_setting_as_synonym():
    configs = BrokerConfigs({"listener.name.a.max.connections": "5", "max.connections": "7"})
    entry = single(describe_broker(configs, ["listener.name.a.max.connections"]))
    assert entry.value == "5"
    assert [s.value for s in entry.synonyms] == ["5", "7", "2147483647"]
    assert single(describe_broker(configs, ["max.connections"])).value == "7"


def test_broker_defaults_contain_only_settings_of_all_brokers():
    configs = BrokerConfigs(
        {"max.connections": "1"}, dynamic_default={"max.connections": "2"}, dynamic_broker={"max.connections": "3"}
    )
    entry = single(describe_broker_defaults(configs))
    assert (entry.name, entry.value, entry.source) == ("max.connections", "2", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert [s.value for s in entry.synonyms] == ["2"]
    assert describe_broker_defaults(BrokerConfigs({"max.connections": "1"})) == []


def test_replacing_dynamic_layers_returns_a_new_snapshot():
    configs = BrokerConfigs({"max.connections": "1"})
    updated = configs.with_dynamic(default={"max.connections": "2"})
    assert configs.values["max.connections"] == 1
    assert updated.values["max.connections"] == 2
    assert updated.with_dynamic(default={}).values["max.connections"] == 1


@pytest.mark.parametrize(
    ("changes", "per_broker", "words"),
    [
        ({"broker.id": "5"}, True, "at run time"),
        ({"listeners": "PLAINTEXT://:1"}, True, "at run time"),
        ({"ssl.keystore.location": "/keys"}, False, "only per broker"),
        ({"max.connections": "many"}, False, "integer"),
    ],
)
def test_read_only_settings_cannot_change_at_run_time(changes, per_broker, words):
    with pytest.raises(ConfigError, match=words):
        check_dynamic(changes, per_broker=per_broker)


def test_dynamic_settings_can_change_at_run_time():
    check_dynamic({"max.connections": "5", "unknown.plugin": "x"}, per_broker=False)
    check_dynamic({"ssl.keystore.location": "/keys"}, per_broker=True)


def test_single_node_defaults_are_described_as_defaults():
    configs = BrokerConfigs({}, defaults={"offsets.topic.replication.factor": 1})
    entry = single(describe_broker(configs, ["offsets.topic.replication.factor"]))
    assert (entry.value, entry.source) == ("1", ConfigSource.DEFAULT)
    assert entry.synonyms[0].value == "1"


def test_group_setting_overrides_broker_setting():
    configs = BrokerConfigs({"group.consumer.session.timeout.ms": "46000"})
    entry = single(describe_group(configs, {"consumer.session.timeout.ms": "50000"}, ["consumer.session.timeout.ms"]))
    assert (entry.value, entry.source, entry.type, entry.read_only) == ("50000", 8, ConfigType.INT, False)
    assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
        ("consumer.session.timeout.ms", "50000", ConfigSource.GROUP),
        ("group.consumer.session.timeout.ms", "46000", ConfigSource.STATIC_BROKER),
        ("group.consumer.session.timeout.ms", "45000", ConfigSource.DEFAULT),
    ]
    assert {e.name: e.value for e in describe_group(configs, {})} == {
        "consumer.session.timeout.ms": "46000",
        "consumer.heartbeat.interval.ms": "5000",
        "consumer.assignment.interval.ms": "1000",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"consumer.session.timeout.ms": "44999"}, r"at least 45000 \(group.consumer.min.session.timeout.ms\)"),
        ({"consumer.session.timeout.ms": "60001"}, r"at most 60000 \(group.consumer.max.session.timeout.ms\)"),
        ({"consumer.heartbeat.interval.ms": "4999"}, r"at least 5000 \(group.consumer.min.heartbeat.interval.ms\)"),
        ({"consumer.heartbeat.interval.ms": "15001"}, r"at most 15000 \(group.consumer.max.heartbeat.interval.ms\)"),
        ({"consumer.assignment.interval.ms": "15001"}, r"at most 15000"),
        ({"consumer.assignment.interval.ms": "-1"}, "at least 0"),
        ({"consumer.session.timeout.ms": "0"}, "at least 1"),
        ({"consumer.session.timeout.ms": "99999999999"}, "32-bit"),
        ({"consumer.session.timeout.ms": ""}, "integer"),
        ({"nonsense": "1"}, "nonsense: there is no such group config"),
        ({"share.session.timeout.ms": "50000"}, "share groups"),
        ({"streams.num.standby.replicas": "1"}, "streams groups"),
    ],
)
def test_invalid_group_settings_are_rejected_with_allowed_values(changes, words):
    with pytest.raises(ConfigError, match=words):
        BrokerConfigs({}).check_group(changes)


def test_group_session_timeout_exceeds_heartbeat_interval():
    configs = BrokerConfigs(
        {"group.consumer.min.session.timeout.ms": "1000", "group.consumer.min.heartbeat.interval.ms": "1000"}
    )
    configs.check_group({"consumer.session.timeout.ms": "5001"})
    for changes in (
        {"consumer.session.timeout.ms": "5000"},
        {"consumer.session.timeout.ms": "2000", "consumer.heartbeat.interval.ms": "2000"},
    ):
        with pytest.raises(ConfigError, match=r"session.timeout.ms: .*more than consumer.heartbeat.interval.ms"):
            configs.check_group(changes)
    configs.check_group({"consumer.session.timeout.ms": "2000", "consumer.heartbeat.interval.ms": "1000"})


def test_group_setting_outside_changed_bounds_is_clamped():
    overrides = {"consumer.session.timeout.ms": "2000", "consumer.heartbeat.interval.ms": "20000", "unknown": "x"}
    assert BrokerConfigs({}).group_values(overrides) == {
        "consumer.session.timeout.ms": 45000,
        "consumer.heartbeat.interval.ms": 15000,
        "consumer.assignment.interval.ms": 1000,
    }
