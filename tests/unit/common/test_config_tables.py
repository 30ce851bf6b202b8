from __future__ import annotations

import pytest

from kavka.common.broker_config import BROKER_CONFIGS, SINGLE_NODE_DEFAULTS, base_name
from kavka.common.config import INT, LIST, LONG_MAX, NOT_IMPLEMENTED, ConfigError, Dynamic
from kavka.common.topic_config import TOPIC_CONFIGS


def test_every_row_has_one_line_of_help():
    for row in (*BROKER_CONFIGS, *TOPIC_CONFIGS):
        assert row.help.endswith("."), row.name
        assert "\n" not in row.help


def test_every_default_round_trips():
    for row in (*BROKER_CONFIGS, *TOPIC_CONFIGS):
        if row.default is not None:
            assert row.parse(row.format(row.default)) == row.default, row.name


def test_topic_defaults_agree_with_broker_synonyms():
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
def test_well_known_defaults(name, default):
    assert BROKER_CONFIGS[name].default == default


def test_internal_topics_of_single_node_have_one_replica():
    replicas = {name: value for name, value in SINGLE_NODE_DEFAULTS.items() if "replication" in name or "isr" in name}
    assert len(replicas) == 3
    assert set(replicas.values()) == {1}


def test_dynamic_update_modes_match_kafka():
    assert BROKER_CONFIGS["log.retention.ms"].dynamic is Dynamic.CLUSTER_WIDE
    assert BROKER_CONFIGS["log.retention.hours"].dynamic is Dynamic.READ_ONLY
    assert BROKER_CONFIGS["ssl.keystore.location"].dynamic is Dynamic.PER_BROKER
    assert BROKER_CONFIGS["broker.id"].dynamic is Dynamic.READ_ONLY


def test_settings_without_effect_warn():
    warnings: list[str] = []
    values = {"ssl.keystore.location": "/x", "control.plane.listener.name": "x", "num.network.threads": "4"}
    BROKER_CONFIGS.parse(values, warnings=warnings)
    assert warnings[0] == f"control.plane.listener.name {NOT_IMPLEMENTED}"
    assert warnings[1].startswith("num.network.threads has no effect: ")


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("listener.name.internal.ssl.keystore.location", "ssl.keystore.location"),
        ("listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config", "sasl.jaas.config"),
        ("log.dirs", "log.dirs"),
    ],
)
def test_setting_may_have_listener_prefix(name, base):
    assert base_name(name) == base
    assert name in BROKER_CONFIGS
    assert BROKER_CONFIGS[name].name == name
    assert BROKER_CONFIGS[name].help == BROKER_CONFIGS[base].help


def test_error_of_listener_setting_contains_full_name():
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
def test_values_rejected_by_kafka_are_rejected(name, value):
    with pytest.raises(ConfigError, match=f"^{name.replace('.', '[.]')}: "):
        BROKER_CONFIGS.parse({name: value})


@pytest.mark.parametrize("value", ["http://localhost:9405", "http://:9405", "http://[::1]:9405/", ""])
def test_metrics_listener_accepts_http_addresses(value):
    assert BROKER_CONFIGS.parse({"metrics.listener": value})["metrics.listener"] == value


def test_topic_settings_are_kafkas_and_flush_before_visible():
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
def test_topic_settings_reject_invalid_values(name, good, bad):
    TOPIC_CONFIGS.parse_one(name, good)
    with pytest.raises(ConfigError):
        TOPIC_CONFIGS.parse_one(name, bad)


def test_min_compaction_lag_cannot_exceed_max_compaction_lag():
    with pytest.raises(ConfigError, match=r"at most 5 \(max\.compaction\.lag\.ms\)"):
        TOPIC_CONFIGS.parse({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})
