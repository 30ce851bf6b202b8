from __future__ import annotations

from typing import Any

import pytest

from kavka.client import classes
from kavka.client.admin_config import ADMIN_CONFIGS, admin_config
from kavka.client.config import parse_servers
from kavka.client.consumer_config import CONSUMER_CONFIGS, consumer_config
from kavka.client.producer.core import ProducerCore
from kavka.client.producer_config import PRODUCER_CONFIGS, producer_config
from kavka.client.serializers import StringSerializer
from kavka.common.config import LONG_MAX, ConfigError

SERVERS = {"bootstrap.servers": "localhost:9092"}


def test_settings_are_a_mapping_or_keywords() -> None:
    config = producer_config({**SERVERS, "batch.size": "32768"}, {"linger_ms": 7, "acks": "all"})
    assert (config["batch.size"], config["linger.ms"], config["acks"]) == (32768, 7, "all")


def test_keyword_takes_precedence_over_the_mapping() -> None:
    assert producer_config({**SERVERS, "acks": "1"}, {"acks": "all"})["acks"] == "all"


def test_python_values_are_accepted() -> None:
    config = producer_config({}, {"bootstrap_servers": ["a:1", "b:2"], "enable_idempotence": False, "acks": 1})
    assert parse_servers(config["bootstrap.servers"]) == [("a", 1), ("b", 2)]
    assert (config["enable.idempotence"], config["acks"]) == (False, "1")


def test_none_means_the_default_value() -> None:
    assert producer_config(SERVERS, {"linger_ms": None})["linger.ms"] == 5


@pytest.mark.parametrize(
    ("settings", "name", "allowed"),
    [
        ({"acks": "2"}, "acks", "all, -1, 0, 1"),
        ({"compression.type": "rar"}, "compression.type", "zstd"),
        ({"batch.size": "many"}, "batch.size", "integer"),
        ({"linger.ms": -1}, "linger.ms", "at least 0"),
        ({"buffer.full.policy": "explode"}, "buffer.full.policy", "block, fail, clear"),
        ({"delivery.timeout.ms": 10}, "delivery.timeout.ms", "linger.ms + request.timeout.ms"),
        ({"security.protocol": "TLS"}, "security.protocol", "PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"transactional.id": ""}, "transactional.id", "not empty"),
        ({"transactional.id": "t", "enable.idempotence": False}, "enable.idempotence", "true"),
        ({"enable.idempotence": True, "acks": "1"}, "acks", "all or -1 with enable.idempotence"),
        ({"transactional.id": "t", "acks": "0"}, "acks", "all or -1 with enable.idempotence"),
        ({"client.id": b"\xff"}, "client.id", "UTF-8"),
        ({"enable.idempotence": True, "retries": 0}, "retries", "at least 1"),
        (
            {"enable.idempotence": True, "max.in.flight.requests.per.connection": 6},
            "max.in.flight.requests.per.connection",
            "at most 5",
        ),
        ({"acks": object()}, "acks", "not allowed"),
    ],
)
def test_error_for_an_invalid_value_names_the_key_and_the_allowed_values(
    settings: dict[str, Any], name: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        producer_config({**SERVERS, **settings}, {})
    assert caught.value.name == name
    assert str(caught.value).startswith(f"{name}: ")
    assert allowed in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("settings", ["localhost:9092", ["localhost:9092"], 9092])
def test_error_for_settings_of_another_type_says_how_to_pass_them(settings: Any) -> None:
    for make in (producer_config, consumer_config, admin_config):
        with pytest.raises(ConfigError, match=r"bootstrap.servers: settings must be a mapping .*bootstrap_servers="):
            make(settings, {})


def test_error_for_an_unknown_class_omits_an_empty_list_of_names() -> None:
    with pytest.raises(ConfigError) as caught:
        classes.make("line-reader", "nosuch", {}, "a reader", {})
    assert str(caught.value) == (
        "line-reader: 'nosuch' is not a supported name of a reader; package.module.Class loads a Python class"
    )


def test_unknown_name_is_logged_with_a_suggestion(caplog: pytest.LogCaptureFixture) -> None:
    producer_config({**SERVERS, "batch.sizes": 1, "sasl.kerberos.service.name": "x"}, {})
    assert "batch.sizes is not a known producer config and is ignored; did you mean batch.size?" in caplog.text
    assert "Kerberos is not supported" in caplog.text


@pytest.mark.parametrize("settings", [{"acks": "1"}, {"retries": 0}, {"max.in.flight.requests.per.connection": 6}])
def test_conflicting_setting_disables_implicit_idempotence(settings: dict[str, Any]) -> None:
    assert producer_config({**SERVERS, **settings}, {})["enable.idempotence"] is False


def test_defaults_are_those_of_kafka() -> None:
    config = producer_config(SERVERS, {})
    assert (config["enable.idempotence"], config["acks"], config["linger.ms"]) == (True, "all", 5)
    assert (config["delivery.timeout.ms"], config["max.block.ms"]) == (120_000, 60_000)


@pytest.mark.parametrize(
    ("alias", "value", "name", "expected"),
    [
        ("request.required.acks", "-1", "acks", "-1"),
        ("batch.num.messages", "10", "batch.num.messages", 10),
        ("queue.buffering.max.ms", "20", "linger.ms", 20),
        ("queue.buffering.max.messages", "100", "queue.buffering.max.messages", 100),
        ("queue.buffering.max.message", "100", "queue.buffering.max.messages", 100),
        ("message.send.max.retries", "7", "retries", 7),
        ("topic.metadata.refresh.interval.ms", "1000", "metadata.max.age.ms", 1000),
        ("queue.enqueue.timeout.ms", "50", "max.block.ms", 50),
        ("queue.enqueue.timeout.ms", "-1", "max.block.ms", LONG_MAX),
        ("producer.type", "sync", "producer.type", "sync"),
        ("compressed.topics", "a,b", "compressed.topics", ("a", "b")),
        ("compression.topic", "a", "compressed.topics", ("a",)),
        ("compression.topic", "gzip", "compression.type", "gzip"),
        ("compression.codec", "2", "compression.type", "snappy"),
        ("metadata.broker.list", "x:1", "bootstrap.servers", ("x:1",)),
    ],
)
def test_aliases_are_accepted(alias: str, value: str, name: str, expected: Any) -> None:
    settings = {alias: value} if name == "bootstrap.servers" else {**SERVERS, alias: value}
    assert producer_config(settings, {})[name] == expected


def test_current_name_takes_precedence_over_its_alias() -> None:
    assert producer_config({**SERVERS, "queue.buffering.max.ms": 1, "linger.ms": 2}, {})["linger.ms"] == 2


@pytest.mark.parametrize("server", ["localhost", "localhost:", ":9092", "localhost:x", "localhost:70000", ""])
def test_invalid_bootstrap_server_is_rejected(server: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers: .*host:port"):
        parse_servers((server,))


def test_bootstrap_servers_are_parsed_and_deduplicated() -> None:
    servers = ("a:1", "[::1]:9092", "PLAINTEXT://b:2", "a:1")
    assert parse_servers(servers) == [("a", 1), ("::1", 9092), ("b", 2)]


def test_missing_bootstrap_servers_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        parse_servers(producer_config({}, {})["bootstrap.servers"])


def core(**settings: Any) -> ProducerCore:
    return ProducerCore(producer_config(SERVERS, settings))


@pytest.mark.parametrize(
    "name",
    ["org.apache.kafka.common.serialization.StringSerializer", "StringSerializer", "kafka.serializer.StringEncoder"],
)
def test_java_class_names_are_accepted(name: str) -> None:
    producer = core(value_serializer=name)
    assert producer._serialize("value", producer._serialize_value, "t", "ä", None) == "ä".encode()


def test_error_for_an_unknown_java_class_lists_the_supported_names() -> None:
    with pytest.raises(ConfigError, match=r"key\.serializer: .*StringSerializer"):
        core(key_serializer="org.apache.kafka.common.serialization.NoSuchSerializer")


@pytest.mark.parametrize(
    "value", ["no.such.module.Class", "kavka.client.serializers.Nothing", "nodots.", "json:nothing"]
)
def test_python_class_that_cannot_be_loaded_is_an_error(value: str) -> None:
    with pytest.raises(ConfigError, match=r"value\.serializer"):
        core(value_serializer=value)


def test_classes_objects_functions_and_dotted_names_are_accepted() -> None:
    for serializer in (
        StringSerializer,
        StringSerializer(),
        str.encode,
        "kavka.client.serializers.StringSerializer",
        "kavka.client.serializers:StringSerializer",
    ):
        producer = core(value_serializer=serializer)
        assert producer._serialize("value", producer._serialize_value, "t", "text", None) == b"text"


class Configured:
    def configure(self, configs: dict[str, Any], is_key: bool) -> None:
        self.configured = configs["my.setting"], is_key

    def serialize(self, topic: str, value: Any, headers: Any) -> bytes:
        return f"{topic} {value} {headers} {self.configured}".encode()


def test_user_class_gets_all_settings_and_the_headers(caplog: pytest.LogCaptureFixture) -> None:
    producer = core(key_serializer=Configured, my_setting=17)
    assert producer._serialize("key", producer._serialize_key, "t", 1, [("a", b"")]) == b"t 1 [('a', b'')] (17, True)"


def test_every_setting_has_a_help_text() -> None:
    for table in (PRODUCER_CONFIGS, CONSUMER_CONFIGS, ADMIN_CONFIGS):
        for key in table:
            assert key.help.endswith("."), key.name


def test_consumer_and_admin_settings_are_parsed() -> None:
    config = consumer_config({**SERVERS, "auto.offset.reset": "by_duration:P1DT2H"}, {"group_id": "g"})
    assert (config["group.id"], config["auto.offset.reset"]) == ("g", "by_duration:P1DT2H")
    assert admin_config(SERVERS, {})["default.api.timeout.ms"] == 60_000
    with pytest.raises(ConfigError, match=r"heartbeat\.interval\.ms"):
        consumer_config(SERVERS, {"heartbeat_interval_ms": 50_000})
