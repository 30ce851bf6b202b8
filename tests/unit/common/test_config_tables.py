from __future__ import annotations

import pytest

from kavka.common.broker_config import BROKER_CONFIGS, SINGLE_NODE_DEFAULTS, base_name
from kavka.common.config import INT, LATER, LIST, LONG_MAX, ConfigError, Dynamic
from kavka.common.topic_config import TOPIC_CONFIGS


def test_every_row_of_both_tables_has_one_line_of_help():
    for row in (*BROKER_CONFIGS, *TOPIC_CONFIGS):
        assert row.help.endswith("."), row.name
        assert "\n" not in row.help


def test_every_default_survives_being_written_and_read():
    for row in (*BROKER_CONFIGS, *TOPIC_CONFIGS):
        if row.default is not None:
            assert row.parse(row.format(row.default)) == row.default, row.name


def test_every_broker_setting_that_a_topic_falls_back_to_exists_and_agrees_on_the_default():
    for row in TOPIC_CONFIGS:
        fallbacks = [s for s in row.synonyms if BROKER_CONFIGS[s.name].default is not None]
        if fallbacks:
            first = fallbacks[0]
            assert first.convert(BROKER_CONFIGS[first.name].default) == row.default, row.name


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("log.segment.bytes", 1073741824),
        ("log.retention.hours", 168),
        ("log.retention.ms", None),
        ("num.partitions", 1),
        ("message.max.bytes", 1048588),
        ("socket.request.max.bytes", 104857600),
        ("log.flush.interval.messages", LONG_MAX),
        ("log.message.timestamp.after.max.ms", 3600000),
        ("replica.lag.time.max.ms", 30000),
        ("offsets.topic.replication.factor", 3),
        ("listeners", "PLAINTEXT://:9092"),
        ("log.dir", "./kavka-data"),
        ("metrics.listener", ""),
    ],
)
def test_defaults_that_everybody_relies_on(name, default):
    assert BROKER_CONFIGS[name].default == default


def test_a_single_node_needs_no_second_one_for_its_internal_topics():
    replicas = {name: value for name, value in SINGLE_NODE_DEFAULTS.items() if "replication" in name or "isr" in name}
    assert len(replicas) == 3
    assert set(replicas.values()) == {1}


def test_settings_change_while_running_as_in_kafka():
    assert BROKER_CONFIGS["log.retention.ms"].dynamic is Dynamic.CLUSTER_WIDE
    assert BROKER_CONFIGS["log.retention.hours"].dynamic is Dynamic.READ_ONLY
    assert BROKER_CONFIGS["ssl.keystore.location"].dynamic is Dynamic.PER_BROKER
    assert BROKER_CONFIGS["broker.id"].dynamic is Dynamic.READ_ONLY


def test_security_names_are_known_and_say_that_they_do_nothing_yet():
    for name in ("ssl.keystore.location", "sasl.enabled.mechanisms", "authorizer.class.name"):
        assert BROKER_CONFIGS[name].warning == LATER
    warnings: list[str] = []
    BROKER_CONFIGS.parse({"ssl.keystore.location": "/x", "num.network.threads": "4"}, warnings=warnings)
    assert warnings[0] == "ssl.keystore.location has no effect yet"
    assert warnings[1].startswith("num.network.threads has no effect: ")


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("listener.name.internal.ssl.keystore.location", "ssl.keystore.location"),
        ("listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config", "sasl.jaas.config"),
        ("log.dirs", "log.dirs"),
    ],
)
def test_a_listener_may_have_a_setting_of_its_own(name, base):
    assert base_name(name) == base
    assert name in BROKER_CONFIGS
    assert BROKER_CONFIGS[name].name == name
    assert BROKER_CONFIGS[name].help == BROKER_CONFIGS[base].help


def test_an_error_about_a_listeners_own_setting_names_it_in_full():
    with pytest.raises(ConfigError, match=r"^listener\.name\.a\.max\.connections: "):
        BROKER_CONFIGS.parse({"listener.name.a.max.connections": "many"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("log.retention.ms", "-2"),
        ("log.retention.hours", "0"),
        ("log.roll.ms", "0"),
        ("replica.fetch.wait.max.ms", "30001"),
        ("log.cleaner.dedupe.buffer.size", "1048576"),
        ("offsets.commit.required.acks", "4"),
        ("offsets.topic.compression.codec", "5"),
        ("group.consumer.heartbeat.interval.ms", "60000"),
        ("compression.gzip.level", "0"),
        ("metrics.listener", "localhost:9405"),
    ],
)
def test_what_kafka_refuses_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"^{name.replace('.', '[.]')}: "):
        BROKER_CONFIGS.parse({name: value})


@pytest.mark.parametrize("value", ["http://localhost:9405", "http://:9405", "http://[::1]:9405/", ""])
def test_a_metrics_listener_is_an_http_address(value):
    assert BROKER_CONFIGS.parse({"metrics.listener": value})["metrics.listener"] == value


def test_topic_settings_have_kafkas_names_and_our_one_more():
    assert len(TOPIC_CONFIGS) == 32
    assert TOPIC_CONFIGS["flush.before.visible"].default is False
    assert TOPIC_CONFIGS["cleanup.policy"].type is LIST
    assert TOPIC_CONFIGS["segment.bytes"].type is INT


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("cleanup.policy", "compact,delete", "compress"),
        ("leader.replication.throttled.replicas", "0:1,1:2", "0-1"),
        ("follower.replication.throttled.replicas", "*", "all"),
        ("retention.ms", "-1", "-2"),
        ("segment.bytes", "14", "13"),
        ("min.cleanable.dirty.ratio", "0.01", "1.01"),
        ("message.timestamp.type", "LogAppendTime", "Logappendtime"),
    ],
)
def test_bounds_of_topic_settings(name, good, bad):
    TOPIC_CONFIGS.parse_one(name, good)
    with pytest.raises(ConfigError):
        TOPIC_CONFIGS.parse_one(name, bad)


def test_a_topic_cannot_wait_longer_for_compaction_than_it_must():
    with pytest.raises(ConfigError, match=r"at most 5 \(max\.compaction\.lag\.ms\)"):
        TOPIC_CONFIGS.parse({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})
