"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs with the error codes of Apache Kafka
3.9.1; groups and ListConfigResources as in 4.3.0."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from kavka.common.errors import ErrorCode
from kavka.controller.topics import NewTopic
from kavka.metadata import paths
from kavka.protocol.messages import alter_configs, describe_configs, incremental_alter_configs
from kavka.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.unit.api.support import Client, with_client

E = ErrorCode
TOPIC, BROKER, LOGGER, GROUP = 2, 4, 8, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


async def alter(client: Client, kind: int, name: str, *changes: tuple[str, int, str | None], **more: Any) -> ErrorCode:
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            incremental_alter_configs.AlterableConfig(name=n, config_operation=operation, value=value)
            for n, operation, value in changes
        ],
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource], **more)
    (result,) = (await client.send(request, 1)).responses
    assert (result.resource_type, result.resource_name) == (kind, name)
    assert (result.error_message is None) == (result.error_code == 0)
    return ErrorCode(result.error_code)


async def replace(client: Client, kind: int, name: str, values: dict[str, str | None], **more: Any) -> ErrorCode:
    configs = [alter_configs.AlterableConfig(name=n, value=value) for n, value in values.items()]
    resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = alter_configs.AlterConfigsRequest(resources=[resource], **more)
    return ErrorCode((await client.send(request, 2)).responses[0].error_code)


async def describe(client: Client, kind: int, name: str, *keys: str, version: int = 4, **more: Any) -> Any:
    resource = describe_configs.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = describe_configs.DescribeConfigsRequest(resources=[resource], **more)
    return (await client.send(request, version)).results[0]


async def value(client: Client, kind: int, name: str, key: str) -> tuple[str, int]:
    (entry,) = (await describe(client, kind, name, key)).configs
    return entry.value, entry.config_source


def with_topic(folder: Path, body: Any) -> Any:
    async def run(client: Client) -> Any:
        await client.broker.topics.create_topics([NewTopic("t", 1, 1)], timeout_ms=5000)
        return await body(client)

    return with_client(folder, run)


def test_a_topic_setting_takes_effect_at_once_and_is_reset_when_deleted(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        configs = client.broker.configs
        assert await alter(client, TOPIC, "t", ("retention.ms", SET, "5000")) is E.NONE
        assert configs.log_config("t").retention_ms == 5000
        assert await value(client, TOPIC, "t", "retention.ms") == ("5000", 1)
        assert await alter(client, TOPIC, "t", ("retention.ms", SET, "1"), validate_only=True) is E.NONE
        assert configs.log_config("t").retention_ms == 5000
        assert await alter(client, TOPIC, "t", ("retention.ms", DELETE, None)) is E.NONE
        assert await value(client, TOPIC, "t", "retention.ms") == ("604800000", 5)

    with_topic(tmp_path, body)


def test_lists_can_be_appended_to_and_subtracted_from(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        assert await alter(client, TOPIC, "t", ("cleanup.policy", APPEND, "compact")) is E.NONE
        assert await value(client, TOPIC, "t", "cleanup.policy") == ("delete,compact", 1)
        assert await alter(client, TOPIC, "t", ("cleanup.policy", APPEND, "compact")) is E.NONE
        assert await alter(client, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")) is E.NONE
        assert await value(client, TOPIC, "t", "cleanup.policy") == ("compact", 1)
        assert await alter(client, TOPIC, "t", ("cleanup.policy", SUBTRACT, "compact")) is E.NONE
        assert await value(client, TOPIC, "t", "cleanup.policy") == ("", 1)

    with_topic(tmp_path, body)


@pytest.mark.parametrize(
    ("kind", "name", "changes", "code"),
    [
        (TOPIC, "t", [("retention.ms", SET, "soon")], E.INVALID_CONFIG),
        (TOPIC, "t", [("no.such", SET, "1")], E.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", APPEND, "1")], E.INVALID_CONFIG),
        (TOPIC, "t", [("cleanup.policy", SET, "compact,,delete")], E.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, None)], E.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", 9, "1")], E.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], E.INVALID_REQUEST),
        (TOPIC, "missing", [("retention.ms", SET, "1")], E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", [("retention.ms", SET, "1")], E.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "0", [("broker.id", SET, "3")], E.INVALID_REQUEST),
        (BROKER, "0", [("num.partitions", SET, "3")], E.INVALID_REQUEST),
        (BROKER, "0", [("log.retention.ms", SET, "x")], E.INVALID_REQUEST),
        (BROKER, "", [("advertised.listeners", SET, "PLAINTEXT://x:1")], E.INVALID_REQUEST),
        (BROKER, "7", [("log.retention.ms", SET, "1")], E.INVALID_REQUEST),
        (BROKER, "abc", [("log.retention.ms", SET, "1")], E.INVALID_REQUEST),
        (LOGGER, "0", [("no.such", SET, "INFO")], E.INVALID_CONFIG),
        (LOGGER, "0", [("root", SET, "LOUD")], E.INVALID_CONFIG),
        (LOGGER, "0", [("root", APPEND, "INFO")], E.INVALID_REQUEST),
        (LOGGER, "", [("root", SET, "INFO")], E.INVALID_REQUEST),
        (3, "0", [("x", SET, "1")], E.INVALID_REQUEST),
    ],
)
def test_an_invalid_alteration_changes_nothing(
    tmp_path: Path, kind: int, name: str, changes: Any, code: ErrorCode
) -> None:
    async def body(client: Client) -> None:
        assert await alter(client, kind, name, *changes) is code
        assert client.broker.configs.topic_overrides("t") == {}
        assert await client.broker.store.children("/config/changes") == []
        assert await client.broker.store.children("/config/brokers") == []

    with_topic(tmp_path, body)


def test_a_resource_that_is_in_a_request_twice_is_not_changed(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        resource = incremental_alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[])
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource, resource])
        codes = [result.error_code for result in (await client.send(request, 0)).responses]
        assert codes == [E.INVALID_REQUEST, E.INVALID_REQUEST]

    with_topic(tmp_path, body)


def test_alter_configs_replaces_all_overrides(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        await alter(client, TOPIC, "t", ("retention.ms", SET, "5000"))
        assert await replace(client, TOPIC, "t", {"segment.bytes": "20000"}) is E.NONE
        assert client.broker.configs.topic_overrides("t") == {"segment.bytes": "20000"}
        assert await replace(client, TOPIC, "t", {"segment.bytes": None}) is E.INVALID_REQUEST
        assert await replace(client, TOPIC, "t", {"segment.bytes": "-4"}) is E.INVALID_CONFIG
        assert await replace(client, TOPIC, "missing", {}) is E.UNKNOWN_TOPIC_OR_PARTITION
        assert await replace(client, BROKER, "0", {"broker.id": "4"}) is E.INVALID_REQUEST
        assert await replace(client, LOGGER, "0", {"root": "INFO"}) is E.INVALID_REQUEST
        assert await replace(client, TOPIC, "t", {"retention.ms": "7"}, validate_only=True) is E.NONE
        assert client.broker.configs.topic_overrides("t") == {"segment.bytes": "20000"}
        assert await replace(client, TOPIC, "t", {}) is E.NONE
        assert client.broker.configs.topic_overrides("t") == {}

    with_topic(tmp_path, body)


def test_a_broker_setting_overrides_the_cluster_default(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        assert await alter(client, BROKER, "", ("log.retention.ms", SET, "888")) is E.NONE
        assert await value(client, BROKER, "0", "log.retention.ms") == ("888", 3)
        assert await alter(client, BROKER, "0", ("log.retention.ms", SET, "999")) is E.NONE
        (entry,) = (await describe(client, BROKER, "0", "log.retention.ms", include_synonyms=True)).configs
        assert [(s.name, s.value, s.source) for s in entry.synonyms] == [
            ("log.retention.ms", "999", 2),
            ("log.retention.ms", "888", 3),
            ("log.retention.hours", "168", 5),
        ]
        assert client.broker.configs.log_config("t").retention_ms == 999
        defaults = await describe(client, BROKER, "")
        assert [(entry.name, entry.value, entry.config_source) for entry in defaults.configs] == [
            ("log.retention.ms", "888", 3)
        ]
        assert await alter(client, BROKER, "0", ("log.retention.ms", DELETE, None)) is E.NONE
        assert client.broker.configs.log_config("t").retention_ms == 888

    with_topic(tmp_path, body)


@pytest.mark.parametrize("version", range(5))
def test_each_version_describes_its_fields(tmp_path: Path, version: int) -> None:
    async def body(client: Client) -> None:
        await alter(client, TOPIC, "t", ("retention.ms", SET, "5000"))
        more = {"include_synonyms": True} if version >= 1 else {}
        more |= {"include_documentation": True} if version >= 3 else {}
        result = await describe(client, TOPIC, "t", "retention.ms", "segment.bytes", version=version, **more)
        entries = {entry.name: entry for entry in result.configs}
        assert list(entries) == ["retention.ms", "segment.bytes"]
        if version == 0:
            assert [entries[name].is_default for name in entries] == [False, True]
        else:
            assert [entries[name].config_source for name in entries] == [1, 5]
            assert entries["segment.bytes"].synonyms[0].name == "log.segment.bytes"
        if version >= 3:
            assert [entries[name].config_type for name in entries] == [5, 3]
            assert entries["retention.ms"].documentation

    with_topic(tmp_path, body)


def test_resources_that_cannot_be_described_have_errors(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        for kind, name, code in (
            (TOPIC, "missing", E.UNKNOWN_TOPIC_OR_PARTITION),
            (TOPIC, "a/b", E.INVALID_TOPIC_EXCEPTION),
            (BROKER, "9", E.INVALID_REQUEST),
            (BROKER, "x", E.INVALID_REQUEST),
            (LOGGER, "", E.INVALID_REQUEST),
            (3, "0", E.INVALID_REQUEST),
        ):
            result = await describe(client, kind, name)
            assert (result.error_code, result.configs) == (code, []) and result.error_message
        everything = await describe(client, TOPIC, "t")
        assert everything.error_code == 0 and len(everything.configs) > 25
        assert (await describe(client, TOPIC, "t", "no.such")).configs == []

    with_topic(tmp_path, body)


def test_loggers_are_described_and_set_while_the_broker_runs(tmp_path: Path) -> None:
    logger = logging.getLogger("kavka.controller")

    async def body(client: Client) -> None:
        assert await alter(client, LOGGER, "0", ("kavka.controller", SET, "ERROR")) is E.NONE
        assert logger.level == logging.ERROR
        assert await value(client, LOGGER, "0", "kavka.controller") == ("ERROR", 6)
        assert await alter(client, LOGGER, "0", ("kavka.controller", DELETE, None)) is E.NONE
        assert logger.level == logging.NOTSET

    try:
        with_topic(tmp_path, body)
    finally:
        logger.setLevel(logging.NOTSET)


def test_config_resources_are_listed_by_type(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        await client.broker.topics.create_topics([NewTopic("b", 1, 1), NewTopic("a", 1, 1)], timeout_ms=5000)

        async def listed(*types: int, version: int = 1) -> list[tuple[int, str]]:
            response = await client.send(ListConfigResourcesRequest(resource_types=list(types)), version)
            assert response.error_code == 0
            return [(resources.resource_type, resources.resource_name) for resources in response.config_resources]

        topics, brokers, loggers = [(2, "a"), (2, "b")], [(4, "0"), (4, "1")], [(8, "0"), (8, "1")]
        assert await listed() == loggers + brokers + topics
        assert await listed(2, 4) == brokers + topics
        assert await listed(8, 8) == loggers
        assert await listed(16, 32) == []
        for group in ("h", "g"):
            assert await alter(client, GROUP, group, ("consumer.session.timeout.ms", SET, "50000")) is E.NONE
        assert await listed(16, 32) == [(32, "g"), (32, "h")]
        assert await alter(client, GROUP, "h", ("consumer.session.timeout.ms", DELETE, None)) is E.NONE
        assert await listed() == [(32, "g"), *loggers, *brokers, *topics]
        assert await listed(version=0) == []
        response = await client.send(ListConfigResourcesRequest(resource_types=[2, 99]), 1)
        assert (response.error_code, response.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])

    with_client(tmp_path, body, brokers=(0, 1))


def test_settings_of_a_group_can_be_altered_before_it_exists(tmp_path: Path) -> None:
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"

    async def body(client: Client) -> None:
        assert await value(client, GROUP, "g", session) == ("45000", 5)
        assert await alter(client, GROUP, "g", (session, SET, "50000"), (heartbeat, SET, "7000")) is E.NONE
        assert await value(client, GROUP, "g", session) == ("50000", 8)
        assert await value(client, GROUP, "other", session) == ("45000", 5)
        assert client.broker.configs.group_values("g")[heartbeat] == 7000
        assert await alter(client, GROUP, "g", (session, SET, "59000"), validate_only=True) is E.NONE
        assert await alter(client, GROUP, "g", (session, SET, "59000"), (heartbeat, SET, "1")) is E.INVALID_CONFIG
        assert await value(client, GROUP, "g", session) == ("50000", 8)
        assert await alter(client, GROUP, "g", ("nonsense", SET, "1")) is E.INVALID_CONFIG
        assert await alter(client, GROUP, "g", (session, APPEND, "50000")) is E.INVALID_CONFIG
        assert await alter(client, GROUP, "g", (session, DELETE, None), ("nonsense", DELETE, None)) is E.NONE
        assert await value(client, GROUP, "g", session) == ("45000", 5)
        assert await replace(client, GROUP, "g", {session: "51000"}) is E.NONE
        assert client.broker.configs.group_overrides("g") == {session: "51000"}
        assert await alter(client, GROUP, "", (session, SET, "50000")) is E.INVALID_REQUEST
        assert (await describe(client, GROUP, "")).error_code == E.INVALID_REQUEST
        assert client.broker.configs.groups == ["g"]

    with_client(tmp_path, body)


# ---- concurrent changes


def test_concurrent_changes_are_all_applied(tmp_path: Path) -> None:
    async def body(client: Client) -> None:
        changes = {"retention.ms": "5000", "segment.bytes": "1048576", "max.message.bytes": "2000"}
        codes = await asyncio.gather(*(alter(client, TOPIC, "t", (n, SET, text)) for n, text in changes.items()))
        assert set(codes) == {E.NONE}
        assert client.broker.configs.topic_overrides("t") == changes

    with_topic(tmp_path, body)


@pytest.mark.parametrize(
    ("kind", "name", "node", "concurrent", "requested"),
    [
        (TOPIC, "t", paths.topic_config("t"), ("retention.ms", "5000"), ("segment.bytes", "1048576")),
        (BROKER, "", paths.broker_config(None), ("log.retention.ms", "5000"), ("log.segment.bytes", "1048576")),
        (
            GROUP,
            "g",
            paths.group_config("g"),
            ("consumer.session.timeout.ms", "50000"),
            ("consumer.heartbeat.interval.ms", "6000"),
        ),
    ],
)
def test_a_concurrent_change_of_another_broker_is_not_lost(
    tmp_path: Path, kind: int, name: str, node: str, concurrent: tuple[str, str], requested: tuple[str, str]
) -> None:
    async def body(client: Client) -> None:
        store = client.broker.store
        # Another broker has written the node, and this broker has not read it yet.
        await store.ensure(node)
        await store.set(node, paths.encode_config(dict([concurrent])))
        assert await alter(client, kind, name, (requested[0], SET, requested[1])) is E.NONE
        assert paths.decode_config((await store.get(node))[0]) == dict([concurrent, requested])

    with_topic(tmp_path, body)
