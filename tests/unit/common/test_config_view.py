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


def one(entries):
    assert len(entries) == 1
    return entries[0]


def topic(configs: BrokerConfigs, name: str, **overrides: str):
    return one(describe_topic(configs, {k.replace("_", "."): v for k, v in overrides.items()}, [name]))


def test_a_default_is_shown_with_the_brokers_default_behind_it():
    entry = topic(BrokerConfigs({}), "segment.bytes")
    assert (entry.value, entry.source) == ("1073741824", ConfigSource.DEFAULT)
    assert entry.synonyms == (SynonymEntry("log.segment.bytes", "1073741824", ConfigSource.DEFAULT),)
    assert entry.type == ConfigType.INT
    assert not entry.read_only
    assert not entry.is_sensitive
    assert entry.documentation


def test_the_chain_of_a_topics_setting_goes_from_its_own_down_to_the_built_in():
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


def test_a_retention_in_hours_has_its_effect_though_kafka_shows_no_synonym_for_it():
    entry = topic(BrokerConfigs({"log.retention.hours": "1"}), "retention.ms")
    assert (entry.value, entry.source, entry.synonyms) == ("3600000", ConfigSource.DEFAULT, ())


def test_the_finest_unit_of_a_retention_wins():
    given = {"log.retention.hours": "1", "log.retention.minutes": "2"}
    assert BrokerConfigs(given).topic_values({})["retention.ms"] == 120_000
    configs = BrokerConfigs({**given, "log.retention.ms": "3"})
    assert configs.topic_values({})["retention.ms"] == 3
    entry = topic(configs, "retention.ms")
    assert [s.name for s in entry.synonyms] == [
        "log.retention.ms",
        "log.retention.minutes",
        "log.retention.hours",
        "log.retention.hours",
    ]


def test_a_retention_without_end_is_minus_one_in_any_unit():
    for unit in ("ms", "minutes", "hours"):
        assert BrokerConfigs({f"log.retention.{unit}": "-1"}).topic_values({})["retention.ms"] == -1


def test_the_deprecated_difference_of_timestamps_stands_for_both_directions():
    configs = BrokerConfigs({})
    values = configs.topic_values({"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "7"})
    assert values["message.timestamp.before.max.ms"] == 5
    assert values["message.timestamp.after.max.ms"] == 7
    of_broker = BrokerConfigs({"log.message.timestamp.difference.max.ms": "5"})
    assert of_broker.topic_values({})["message.timestamp.after.max.ms"] == 5
    assert of_broker.topic_values({"message.timestamp.after.max.ms": "9"})["message.timestamp.after.max.ms"] == 9


def test_settings_of_a_topic_are_checked_against_what_the_broker_gives_it():
    configs = BrokerConfigs({"log.cleaner.max.compaction.lag.ms": "10"})
    configs.check_topic({"min.compaction.lag.ms": "10"})
    with pytest.raises(ConfigError, match=r"^min\.compaction\.lag\.ms: "):
        configs.check_topic({"min.compaction.lag.ms": "11"})
    with pytest.raises(ConfigError, match=r"^nonsense: "):
        configs.check_topic({"nonsense": "1"})


def test_a_broker_is_described_with_all_its_settings_and_where_each_comes_from():
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


def test_passwords_are_kept_back_wherever_they_would_show():
    configs = BrokerConfigs({"ssl.keystore.password": "hunter2"})
    entry = one(describe_broker(configs, ["ssl.keystore.password"]))
    assert entry.is_sensitive
    assert "hunter2" not in repr(entry)
    assert entry.source is ConfigSource.STATIC_BROKER


def test_one_listeners_own_setting_is_followed_by_the_general_one():
    configs = BrokerConfigs({"listener.name.a.max.connections": "5", "max.connections": "7"})
    entry = one(describe_broker(configs, ["listener.name.a.max.connections"]))
    assert entry.value == "5"
    assert [s.value for s in entry.synonyms] == ["5", "7", "2147483647"]
    assert one(describe_broker(configs, ["max.connections"])).value == "7"


def test_the_broker_without_a_name_shows_only_what_is_set_for_all():
    configs = BrokerConfigs(
        {"max.connections": "1"}, dynamic_default={"max.connections": "2"}, dynamic_broker={"max.connections": "3"}
    )
    entry = one(describe_broker_defaults(configs))
    assert (entry.name, entry.value, entry.source) == ("max.connections", "2", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert [s.value for s in entry.synonyms] == ["2"]
    assert describe_broker_defaults(BrokerConfigs({"max.connections": "1"})) == []


def test_dynamic_layers_are_replaced_without_touching_the_old_state():
    before = BrokerConfigs({"max.connections": "1"})
    after = before.with_dynamic(default={"max.connections": "2"})
    assert before.values["max.connections"] == 1
    assert after.values["max.connections"] == 2
    assert after.with_dynamic(default={}).values["max.connections"] == 1


@pytest.mark.parametrize(
    ("changes", "per_broker", "words"),
    [
        ({"broker.id": "5"}, True, "while the broker runs"),
        ({"listeners": "PLAINTEXT://:1"}, True, "while the broker runs"),
        ({"ssl.keystore.location": "/keys"}, False, "only for one"),
        ({"max.connections": "many"}, False, "whole number"),
    ],
)
def test_what_cannot_change_while_running_is_refused(changes, per_broker, words):
    with pytest.raises(ConfigError, match=words):
        check_dynamic(changes, per_broker=per_broker)


def test_what_can_change_while_running_is_taken():
    check_dynamic({"max.connections": "5", "unknown.plugin": "x"}, per_broker=False)
    check_dynamic({"ssl.keystore.location": "/keys"}, per_broker=True)


def test_a_single_nodes_defaults_are_shown_as_defaults():
    configs = BrokerConfigs({}, defaults={"offsets.topic.replication.factor": 1})
    entry = one(describe_broker(configs, ["offsets.topic.replication.factor"]))
    assert (entry.value, entry.source) == ("1", ConfigSource.DEFAULT)
    assert entry.synonyms[0].value == "1"


def test_a_groups_own_setting_lies_over_the_brokers():
    configs = BrokerConfigs({"group.consumer.session.timeout.ms": "46000"})
    entry = one(describe_group(configs, {"consumer.session.timeout.ms": "50000"}, ["consumer.session.timeout.ms"]))
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
        ({"consumer.session.timeout.ms": "99999999999"}, "32 bits"),
        ({"consumer.session.timeout.ms": ""}, "whole number"),
        ({"nonsense": "1"}, "nonsense: there is no such group config"),
        ({"share.session.timeout.ms": "50000"}, "share groups"),
        ({"streams.num.standby.replicas": "1"}, "streams groups"),
    ],
)
def test_what_a_group_may_not_have_is_refused_with_what_is_allowed(changes, words):
    with pytest.raises(ConfigError, match=words):
        BrokerConfigs({}).check_group(changes)


def test_a_groups_session_is_longer_than_its_interval_of_heartbeats():
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


def test_what_a_group_was_given_under_wider_bounds_counts_as_the_bound():
    own = {"consumer.session.timeout.ms": "2000", "consumer.heartbeat.interval.ms": "20000", "unknown": "x"}
    assert BrokerConfigs({}).group_values(own) == {
        "consumer.session.timeout.ms": 45000,
        "consumer.heartbeat.interval.ms": 15000,
        "consumer.assignment.interval.ms": 1000,
    }
