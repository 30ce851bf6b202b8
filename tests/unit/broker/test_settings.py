from __future__ import annotations

from pathlib import Path

import pytest

from kavka.broker.settings import Listener, Settings, SettingsError
from kavka.common.config import ConfigError
from kavka.common.config_view import ConfigSource, describe_broker

LOCAL = Listener("PLAINTEXT", "PLAINTEXT", "localhost", 9092)


def settings(**values: str) -> Settings:
    renamed = {name.replace("_", "."): value for name, value in values.items()}
    return Settings({"listeners": "PLAINTEXT://localhost:9092", **renamed})


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_without_file_broker_is_single_node_on_localhost():
    loaded = Settings.load()
    assert loaded.listeners == loaded.advertised_listeners == (LOCAL,)
    assert loaded.broker_id == loaded.node_id == 0
    assert loaded.log_dirs == (Path("kavka-data").absolute(),)
    assert loaded.metadata_dir == loaded.log_dirs[0]
    assert loaded.metrics_listener is None
    assert loaded.offsets_topic_replication_factor == 1
    assert loaded.transaction_state_log_replication_factor == 1
    assert loaded.transaction_state_log_min_isr == 1
    assert loaded.warnings == ()


def test_file_without_listeners_listens_on_every_interface(tmp_path):
    loaded = Settings.load(write(tmp_path / "f.properties", "broker.id=3\n"))
    assert loaded.listeners == (Listener("PLAINTEXT", "PLAINTEXT", "", 9092),)
    assert loaded.advertised_listeners[0].host
    assert loaded.broker_id == 3


def test_values_by_attribute_and_by_name():
    loaded = settings(log_retention_hours="5", log_cleanup_policy="compact,delete")
    assert loaded.log_retention_hours == loaded["log.retention.hours"] == 5
    assert loaded.log_cleanup_policy == ("compact", "delete")
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = loaded.no_such_thing
    with pytest.raises(KeyError):
        _ = loaded["no.such.thing"]


def test_overrides_take_precedence_over_file(tmp_path):
    path = write(tmp_path / "f.properties", "num.partitions=2\nlog.dirs=a,b\n")
    loaded = Settings.load(path, ["num.partitions=7", "listeners=PLAINTEXT://localhost:0", "broker.rack=a=b"])
    assert loaded.num_partitions == 7
    assert loaded.broker_rack == "a=b"
    assert [path.name for path in loaded.log_dirs] == ["a", "b"]


@pytest.mark.parametrize("text", ["num.partitions", "=5", ""])
def test_override_without_name_and_value_is_rejected(text):
    with pytest.raises(SettingsError, match="name=value"):
        Settings.load(None, [text])


def test_error_of_unreadable_file_contains_its_name(tmp_path):
    with pytest.raises(SettingsError, match=r"nowhere\.properties: there is no such file$"):
        Settings.load(tmp_path / "nowhere.properties")
    with pytest.raises(SettingsError, match="cannot be read"):
        Settings.load(tmp_path)
    with pytest.raises(SettingsError, match="line 1"):
        Settings.load(write(tmp_path / "bad.properties", "a=\\uxyzw"))


def test_latin_1_file_is_read(tmp_path):
    path = tmp_path / "f.properties"
    path.write_bytes(b"# caf\xe9\nbroker.rack=caf\xe9\n")
    assert Settings.load(path).broker_rack == "café"


def test_unknown_name_is_a_warning():
    loaded = settings(log_retenton_ms="5", num_network_threads="3")
    assert len(loaded.warnings) == 2
    assert "did you mean log.retention.ms?" in loaded.warnings[0]
    assert loaded.warnings[1].startswith("num.network.threads has no effect")


def test_internal_topics_in_cluster_have_kafkas_replication_factors():
    in_cluster = settings(zookeeper_connect="localhost:2181", broker_id="3")
    assert in_cluster.in_cluster
    assert in_cluster.offsets_topic_replication_factor == 3
    alone = settings(zookeeper_connect="")
    assert not alone.in_cluster
    assert alone.offsets_topic_replication_factor == 1
    assert alone.listeners == (LOCAL,)


def test_broker_of_cluster_may_have_generated_id():
    loaded = settings(zookeeper_connect="localhost:2181")
    assert loaded.broker_id == -1
    loaded.set_generated_id(1001)
    assert (loaded.broker_id, loaded.node_id) == (1001, 1001)
    with pytest.raises(ConfigError, match=r"^broker\.id"):
        settings(zookeeper_connect="localhost:2181", broker_id_generation_enable="false")


def test_listeners_are_mapped_to_protocols():
    loaded = Settings(
        {
            "listeners": "INTERNAL://127.0.0.1:9093, external://:9092,V6://[::1]:9092",
            "advertised.listeners": "INTERNAL://broker:9093,EXTERNAL://[2001:db8::1]:19092",
            "listener.security.protocol.map": "internal:plaintext,EXTERNAL:PLAINTEXT,V6:PLAINTEXT",
            "inter.broker.listener.name": "internal",
        }
    )
    assert [str(listener) for listener in loaded.listeners] == [
        "INTERNAL://127.0.0.1:9093",
        "EXTERNAL://:9092",
        "V6://[::1]:9092",
    ]
    assert loaded.advertised_listeners[1] == Listener("EXTERNAL", "PLAINTEXT", "2001:db8::1", 19092)
    assert loaded.inter_broker_listener == "INTERNAL"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"listeners": ""}, r"^listeners: at least one"),
        ({"listeners": "localhost:9092"}, r"^listeners: 'localhost:9092' is not allowed; it must be name://host:port"),
        ({"listeners": "PLAINTEXT://localhost:99999"}, r"^listeners: "),
        ({"listeners": "PLAINTEXT://localhost"}, r"^listeners: "),
        ({"listeners": "MINE://localhost:1"}, r"^listeners: there is no security protocol for MINE"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"}, r"^listeners: PLAINTEXT is listed twice"),
        (
            {
                "listeners": "PLAINTEXT://a:1,B://b:1",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
            },
            r"^listeners: .* same port",
        ),
        ({"listeners": "PLAINTEXT://0.0.0.0:1"}, r"^advertised\.listeners: clients cannot connect to 0\.0\.0\.0"),
        ({"advertised.listeners": "SSL://a:1"}, r"^advertised\.listeners: SSL"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, r"^listener\.security\.protocol\.map: .* listener:protocol"),
        ({"listener.security.protocol.map": "PLAINTEXT:TLS"}, r"^listener\.security\.protocol\.map: 'TLS'"),
        ({"inter.broker.listener.name": "OTHER"}, r"^inter\.broker\.listener\.name: 'OTHER'"),
        (
            {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
            r"^inter\.broker\.listener\.name: cannot be set together",
        ),
        ({"broker.id": "-2"}, r"^broker\.id: -2 is not allowed; it must be at least 0"),
        ({"broker.id": "1001"}, r"^broker\.id: 1001 is not allowed; it must be at most 1000"),
        ({"broker.id": "1", "node.id": "2"}, r"^node\.id: "),
        ({"log.dirs": " , "}, r"^log\.dirs: at least one directory"),
        ({"log.dirs": "a,./a"}, r"^log\.dirs: .* twice"),
        ({"log.segment.bytes": "small"}, r"^log\.segment\.bytes: 'small' is not allowed"),
        ({"max.connections.per.ip": "0"}, r"^max\.connections\.per\.ip: 0 is allowed only together"),
        ({"max.connections.per.ip.overrides": "10.0.0.1"}, r"^max\.connections\.per\.ip\.overrides: .* host:number"),
        ({"max.connections.per.ip.overrides": "10.0.0.1:x"}, r"^max\.connections\.per\.ip\.overrides: 'x'"),
    ],
)
def test_invalid_value_is_reported_in_one_line_with_name(values, words):
    with pytest.raises(ConfigError, match=words) as caught:
        Settings({"listeners": "PLAINTEXT://localhost:9092", **values})
    assert "\n" not in str(caught.value)


def test_several_listeners_may_use_port_0():
    loaded = Settings(
        {
            "listeners": "PLAINTEXT://localhost:0,B://localhost:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,B:PLAINTEXT",
        }
    )
    assert [listener.port for listener in loaded.listeners] == [0, 0]


def test_listener_on_every_interface_needs_advertised_listener():
    loaded = settings(listeners="PLAINTEXT://0.0.0.0:9092", advertised_listeners="PLAINTEXT://example.org:9092")
    assert loaded.advertised_listeners[0].host == "example.org"


def test_node_id_and_broker_id_are_synonyms():
    assert settings(node_id="4").broker_id == 4
    assert settings(broker_id="4").node_id == 4
    assert settings(broker_id="-1").broker_id == 0
    assert settings(broker_id="2000", broker_id_generation_enable="false").broker_id == 2000


def test_log_dir_is_used_when_log_dirs_is_not_set():
    assert [path.name for path in settings(log_dir="old").log_dirs] == ["old"]
    assert [path.name for path in settings(log_dir="old", log_dirs="new").log_dirs] == ["new"]


def test_metadata_dir_and_metrics_listener():
    loaded = settings(metadata_dir="meta", metrics_listener="http://[::1]:9405/")
    assert loaded.metadata_dir == Path("meta").absolute()
    assert loaded.metrics_listener == ("::1", 9405)


def test_per_ip_overrides_resolve_host_names():
    loaded = settings(max_connections_per_ip_overrides="10.0.0.1:5, localhost:7")
    assert loaded.max_connections_per_ip_overrides["10.0.0.1"] == 5
    assert loaded.max_connections_per_ip_overrides["127.0.0.1"] == 7


def test_set_dynamic_applies_changes_and_returns_names():
    loaded = settings(max_connections="5")
    assert loaded.set_dynamic(default={"max.connections": "6"}) == {"max.connections"}
    assert loaded.max_connections == loaded["max.connections"] == 6
    assert loaded.set_dynamic(broker={"max.connections": "7", "log.retention.ms": "1000"}) == {
        "max.connections",
        "log.retention.ms",
    }
    assert loaded.configs.topic_values({})["retention.ms"] == 1000
    assert loaded.set_dynamic(default={}, broker={}) == {"max.connections", "log.retention.ms"}
    assert loaded.max_connections == 5


def test_invalid_dynamic_change_changes_nothing():
    loaded = settings()
    with pytest.raises(ConfigError):
        loaded.set_dynamic(default={"max.connections": "6", "max.connections.per.ip": "0"})
    assert loaded.max_connections == 2147483647
    assert loaded.configs.dynamic_default == {}


def test_static_values_are_described():
    loaded = settings(num_partitions=" 3 ")
    [entry] = describe_broker(loaded.configs, ["num.partitions"])
    assert (entry.value, entry.source) == ("3", ConfigSource.STATIC_BROKER)
    assert loaded.is_set("num.partitions")
    assert not loaded.is_set("broker.id")
