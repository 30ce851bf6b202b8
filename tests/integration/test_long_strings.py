"""Clients send strings of the maximum length. Every response can still be encoded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kavka.protocol.headers import RequestHeader, decode_response_header
from kavka.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from kavka.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from kavka.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from kavka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kavka.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from kavka.protocol.primitives import MAX_ERROR_MESSAGE_LENGTH, MAX_STRING_LENGTH
from tests.support import wire
from tests.support.kavka_process import KavkaProcess
from tests.support.processes import wait_until
from tests.support.wire import Wire

LONGEST = "x" * MAX_STRING_LENGTH
TOPIC = "long"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KavkaProcess]:
    settings = {"group.initial.rebalance.delay.ms": 0}
    with KavkaProcess(tmp_path_factory.mktemp("long-strings"), overrides=settings) as broker:
        assert wire.create_topic(broker.address, TOPIC) == 0
        wait_until(lambda: is_coordinator(broker), timeout=60, what="a coordinator")
        yield broker
        assert broker.stop() == 0


def is_coordinator(broker: KavkaProcess) -> bool:
    with Wire(broker.address, 30.0) as connection:
        error_code: int = connection.call(10, 0, wire.string("group")).int16()
    return error_code == 0 and call(broker, join_request("group"), JoinGroupResponse, 2).error_code == 0


def call(broker: KavkaProcess, request: Any, response_class: Any, version: int, client_id: str = "test") -> Any:
    header = RequestHeader(api_key=request.API_KEY, api_version=version, correlation_id=1, client_id=client_id)
    chunks: list[bytes] = []
    header.encode(chunks)
    request.encode(chunks, version)
    with Wire(broker.address, 30.0) as connection:
        connection.expect_correlation(1)
        connection.send(wire.frame(b"".join(chunks)))
        data = connection.receive().data
    _, position = decode_response_header(data, 0, request.API_KEY, version)
    return response_class.decode(data, position, version)[0]


def join_request(group: str, instance_id: str | None = None, member_id: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )


@pytest.mark.parametrize("version", [2, 5, 9])
@pytest.mark.parametrize("client_id", [LONGEST, "\u20ac" * (MAX_STRING_LENGTH // 3)], ids=["ascii", "euro"])
def test_a_long_client_id_is_truncated_and_the_group_can_be_described(
    broker: KavkaProcess, client_id: str, version: int
) -> None:
    group = f"client-id-{version}-{client_id[0]}"
    response = call(broker, join_request(group), JoinGroupResponse, version, client_id)
    if version >= 4:
        response = call(
            broker, join_request(group, member_id=response.member_id), JoinGroupResponse, version, client_id
        )
    assert response.error_code == 0
    for describe_version in (0, 5):
        request = DescribeGroupsRequest(groups=[group])
        (description,) = call(broker, request, DescribeGroupsResponse, describe_version).groups
        (member,) = description.members
        assert member.member_id == response.member_id
        assert client_id.startswith(member.client_id)
        assert len(member.client_id) == 1024


@pytest.mark.parametrize("version", [5, 9])
def test_a_long_instance_id_is_stored_and_the_group_can_be_described(broker: KavkaProcess, version: int) -> None:
    group = f"instance-id-{version}"
    response = call(broker, join_request(group, LONGEST), JoinGroupResponse, version)
    assert response.error_code == 0
    (description,) = call(broker, DescribeGroupsRequest(groups=[group]), DescribeGroupsResponse, 5).groups
    assert description.members[0].group_instance_id == LONGEST
    assert description.members[0].member_id == response.member_id


def alter(broker: KavkaProcess, name: str, value: str, operation: int) -> Any:
    config = AlterableConfig(name=name, config_operation=operation, value=value)
    resource = AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=[config])
    request = IncrementalAlterConfigsRequest(resources=[resource])
    return call(broker, request, IncrementalAlterConfigsResponse, 1).responses[0]


def test_long_error_messages_are_truncated(broker: KavkaProcess) -> None:
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=LONGEST, num_partitions=1, replication_factor=1)], timeout_ms=1000
    )
    for version in (4, 7):
        (result,) = call(broker, request, CreateTopicsResponse, version).topics
        assert result.error_code == 17
        assert len(result.error_message) <= MAX_ERROR_MESSAGE_LENGTH
    for name, value in ((LONGEST, "1"), ("cleanup.policy", LONGEST), ("retention.ms", LONGEST)):
        response = alter(broker, name, value, 0)
        assert response.error_code != 0
        assert response.error_message.endswith("...") or len(response.error_message) < MAX_ERROR_MESSAGE_LENGTH


def test_a_list_setting_cannot_become_too_long_to_describe(broker: KavkaProcess) -> None:
    name = "leader.replication.throttled.replicas"
    pairs = [f"{partition}:{partition}" for partition in range(10_000, 12_500)]
    assert alter(broker, name, ",".join(pairs), 2).error_code == 0
    more_pairs = ",".join(f"{partition}:{partition}" for partition in range(20_000, 22_500))
    assert alter(broker, name, more_pairs, 2).error_code == 40
    request = DescribeConfigsRequest(resources=[DescribeConfigsResource(resource_type=2, resource_name=TOPIC)])
    (description,) = call(broker, request, DescribeConfigsResponse, 2).results
    assert description.error_code == 0
    (config,) = [config for config in description.configs if config.name == name]
    assert config.value == ",".join(pairs)
