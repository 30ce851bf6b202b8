"""Error codes and messages that clients depend on. Each test also passes on Apache Kafka (`--target
apache39`)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kavka.common.errors import ErrorCode
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kavka.protocol.messages.api_versions import ApiVersionsRequest
from kavka.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from kavka.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from kavka.protocol.messages.describe_acls import DescribeAclsRequest
from kavka.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest
from kavka.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kavka.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kavka.records.builder import BatchBuilder, legacy_message, plain_batch
from kavka.records.record import Record
from tests.support import wire
from tests.support.messages import Messages
from tests.support.processes import wait_until
from tests.support.targets import KAVKA, Target

pytestmark = pytest.mark.timeout(90)

NONE = ErrorCode.NONE
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
INTERNAL = ("__consumer_offsets", "__transaction_state")


class Broker:
    """Sends requests to the broker under test and returns error codes and values."""

    def __init__(self, target: Target, messages: Messages) -> None:
        self.target = target
        self.call = messages.call

    def versions(self, api_key: ApiKey) -> range:
        request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
        supported = {api.api_key: api for api in self.call(request, 3).api_keys}[api_key]
        return range(supported.min_version, supported.max_version + 1)

    def coordinator(self, key: str, key_type: int, version: int) -> Any:
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        if version >= 4:
            request = FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type)
        return self.call(request, version)

    def topic_id(self, topic: str) -> uuid.UUID:
        response = self.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]), 12)
        topic_id: uuid.UUID = response.topics[0].topic_id
        return topic_id

    def produce(
        self, topic: str, records: bytes, version: int, *, partition: int = 0, transactional_id: str | None = None
    ) -> ErrorCode:
        data = PartitionProduceData(index=partition, records=memoryview(records))
        topic_id = self.topic_id(topic) if version >= 13 else uuid.UUID(int=0)
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=topic, topic_id=topic_id, partition_data=[data])],
        )
        return ErrorCode(self.call(request, version).responses[0].partition_responses[0].error_code)

    def alter(self, resource_type: int, name: str, setting: str, operation: int, value: str | None) -> ErrorCode:
        config = AlterableConfig(name=setting, config_operation=operation, value=value)
        resource = AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=[config])
        response = self.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        return ErrorCode(response.responses[0].error_code)

    def value(self, resource_type: int, name: str, setting: str) -> tuple[str, int]:
        resource = DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=[setting]
        )
        [entry] = self.call(DescribeConfigsRequest(resources=[resource]), 4).results[0].configs
        return entry.value, entry.config_source


@pytest.fixture(scope="module")
def broker(target: Target) -> Iterator[Broker]:
    """A broker on which both internal topics exist and have leaders."""
    with Messages(target.address) as messages:
        broker = Broker(target, messages)
        for key_type in (0, 1):
            wait_until(
                lambda key_type=key_type: broker.coordinator("x", key_type, 4).coordinators[0].error_code == 0,
                timeout=60,
                what="a coordinator",
            )
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    assert wire.create_topic(broker.target.address, name, 1) == 0
    wait_until(lambda: broker.produce(name, _records(), 9) is NONE, timeout=30, what="a leader")
    return name


def _records(timestamp: int | None = None) -> bytes:
    return bytes(plain_batch([(b"key", b"value")], int(time.time() * 1000) if timestamp is None else timestamp))


def _records_of_version(version: int) -> bytes:
    if version >= 3:
        return _records()
    return bytes(legacy_message(1 if version == 2 else 0, 0, 0, int(time.time() * 1000), b"key", b"value"))


# ---- internal topics


@pytest.mark.parametrize("topic", INTERNAL)
def test_clients_cannot_produce_to_internal_topics(broker: Broker, topic: str) -> None:
    for version in broker.versions(ApiKey.PRODUCE):
        if broker.target.version == "4.3.0" and version < 3:
            continue  # Kafka 4.3 advertises these versions but does not serve them
        code = broker.produce(topic, _records_of_version(version), version)
        assert code is ErrorCode.INVALID_TOPIC_EXCEPTION, version
    assert broker.produce(topic, _records(), 9, partition=999) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_admin_client_of_kafka_can_produce_to_internal_topics(broker: Broker) -> None:
    with Messages(broker.target.address, client_id="__admin_client") as messages:
        admin = Broker(broker.target, messages)
        assert admin.produce("__consumer_offsets", _records(), 9) is NONE


@pytest.mark.parametrize("topic", INTERNAL)
def test_transactions_cannot_contain_internal_topics(broker: Broker, topic: str) -> None:
    name = f"id-{uuid.uuid4().hex[:8]}"
    responses: list[Any] = []

    def has_producer_id() -> bool:
        responses.append(broker.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000), 4))
        return responses[-1].error_code == 0

    wait_until(has_producer_id, timeout=60, what="a producer id")
    producer = responses[-1]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=[0]),
            AddPartitionsToTxnTopic(name=INTERNAL[1 - INTERNAL.index(topic)], partitions=[999]),
        ],
    )
    for version in range(4):
        results = broker.call(request, version).results_by_topic_v3_and_below
        codes = {result.name: result.results_by_partition[0].partition_error_code for result in results}
        assert set(codes.values()) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    for version in {11, broker.versions(ApiKey.PRODUCE)[-1]}:
        builder = BatchBuilder(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        builder.append(Record(timestamp=int(time.time() * 1000), key=b"key", value=b"value"))
        code = broker.produce(topic, bytes(builder.build()), version, transactional_id=name)
        # Below v12 Kafka first verifies with the coordinator that the partition is in the
        # transaction.
        verifies_first = broker.target.version != KAVKA and version < 12
        expected = ErrorCode.TRANSACTION_ABORTABLE if verifies_first else ErrorCode.INVALID_TOPIC_EXCEPTION
        assert code is expected, version


# ---- coordinators and ACLs


def test_a_coordinator_is_found_with_the_message_none_up_to_version_3(broker: Broker) -> None:
    for key_type in (0, 1):
        for version in (1, 2, 3):
            response = broker.coordinator("x", key_type, version)
            assert (response.error_code, response.error_message) == (0, "NONE")
        coordinator = broker.coordinator("x", key_type, 4).coordinators[0]
        assert (coordinator.error_code, coordinator.error_message) == (0, "")


def test_acl_requests_are_rejected_without_an_authorizer(broker: Broker) -> None:
    for api_key in (ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS):
        assert broker.versions(api_key)[-1] == 3
    for version in broker.versions(ApiKey.DESCRIBE_ACLS):
        pattern_type = 3 if version == 0 else 1
        acl_filter = {
            "pattern_type_filter": pattern_type,
            "operation": 1,
            "permission_type": 1,
            "resource_type_filter": 1,
        }
        describe_response = broker.call(DescribeAclsRequest(**acl_filter), version)
        create_response = broker.call(
            CreateAclsRequest(
                creations=[
                    AclCreation(
                        resource_type=2,
                        resource_name=name,
                        principal="User:a",
                        host="*",
                        operation=3,
                        permission_type=3,
                    )
                    for name in ("a", "b")
                ]
            ),
            version,
        )
        delete_response = broker.call(DeleteAclsRequest(filters=[DeleteAclsFilter(**acl_filter)] * 2), version)
        errors = [(describe_response.error_code, describe_response.error_message)]
        errors += [
            (result.error_code, result.error_message)
            for result in (*create_response.results, *delete_response.filter_results)
        ]
        assert errors == [
            (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker"),
            *[(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")] * 4,
        ]


# ---- cleanup.policy


def test_a_topic_can_have_no_cleanup_policy(broker: Broker, topic: str) -> None:
    assert broker.alter(TOPIC, topic, "cleanup.policy", SUBTRACT, "delete") is NONE
    wait_until(lambda: broker.value(TOPIC, topic, "cleanup.policy") == ("", 1), timeout=30, what="the empty list")
    assert broker.produce(topic, _records(), 9) is NONE
    assert broker.alter(TOPIC, topic, "cleanup.policy", SET, "") is NONE
    assert broker.alter(TOPIC, topic, "cleanup.policy", SET, "compact,,delete") is ErrorCode.INVALID_CONFIG
    assert broker.alter(TOPIC, topic, "cleanup.policy", APPEND, "compact") is NONE
    wait_until(lambda: broker.value(TOPIC, topic, "cleanup.policy") == ("compact", 1), timeout=30, what="the policy")


def test_brokers_can_have_no_cleanup_policy(broker: Broker, topic: str) -> None:
    try:
        assert broker.alter(BROKER, "", "log.cleanup.policy", SUBTRACT, "delete") is NONE
        wait_until(lambda: broker.value(TOPIC, topic, "cleanup.policy") == ("", 3), timeout=30, what="the empty list")
    finally:
        assert broker.alter(BROKER, "", "log.cleanup.policy", DELETE, None) is NONE
    wait_until(lambda: broker.value(TOPIC, topic, "cleanup.policy") == ("delete", 5), timeout=30, what="the default")


# ---- timestamps


@pytest.mark.parametrize("timestamp", [-2, -100, -(2**62)])
def test_a_batch_may_have_a_negative_timestamp(broker: Broker, topic: str, timestamp: int) -> None:
    assert broker.produce(topic, _records(timestamp), 9) is NONE


@pytest.mark.parametrize("timestamp", [-(2**63), -(2**63) + 1, 2**63 - 1])
def test_an_extreme_timestamp_is_rejected(broker: Broker, topic: str, timestamp: int) -> None:
    if broker.target.version == "3.9.1":
        # Kafka 3.9 does not limit future timestamps by default. The limit of 4.x and Kavka is an
        # hour.
        assert broker.alter(TOPIC, topic, "message.timestamp.after.max.ms", SET, "3600000") is NONE
    wait_until(
        lambda: broker.produce(topic, _records(timestamp), 9) is ErrorCode.INVALID_TIMESTAMP,
        timeout=30,
        what="INVALID_TIMESTAMP",
    )


def test_a_message_of_format_1_with_a_negative_timestamp_is_rejected(broker: Broker, topic: str) -> None:
    if broker.target.version == "4.3.0":
        return  # Kafka 4.3 accepts only record batches
    assert broker.produce(topic, bytes(legacy_message(1, 0, 0, -1, b"key", b"value")), 2) is NONE
    for timestamp in (-2, -(2**63)):
        code = broker.produce(topic, bytes(legacy_message(1, 0, 0, timestamp, b"key", b"value")), 2)
        expected = ErrorCode.INVALID_TIMESTAMP if broker.target.version == KAVKA else ErrorCode.UNKNOWN_SERVER_ERROR
        assert code is expected
