"""Runs the cases of `access_cases` on two brokers and compares the outcomes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from kavka.protocol.messages import add_partitions_to_txn, create_topics, metadata, offset_commit, produce
from kavka.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from kavka.protocol.messages.find_coordinator import FindCoordinatorRequest
from kavka.protocol.messages.init_producer_id import InitProducerIdRequest
from kavka.security.acls import AclBinding, Permission
from tests.support import wire
from tests.support.access_brokers import CLIENT_HOST, SecuredBroker
from tests.support.access_cases import Case, Right
from tests.support.access_requests import GROUPS, HIDDEN, IDS, READABLE, World
from tests.support.acls import acl
from tests.support.apache import NEWEST

NO_ID = UUID(int=0)
# The fields that rights determine.
_COMPARED = ("name", "topic", "topic_name", "group_id", "transactional_id", "key", "resource_name", "resource_type")
_runs = itertools.count()


def outcome(message: Any, case: Case) -> Any:
    """Return the error codes, the names and the authorized operations in a response. Lists are in a
    fixed order."""
    ignored = case.ignored
    if isinstance(message, list):
        return sorted((outcome(item, case) for item in message), key=repr)
    if not hasattr(message, "__slots__"):
        return None
    fields = {}
    for name in message.__slots__:
        value = getattr(message, name)
        if name in ignored or name in ("brokers", "node_endpoints", "current_leader", "diverging_epoch"):
            continue
        if name.endswith("error_code"):
            fields[name] = case.same_codes.get(value, value)
        elif name.endswith("authorized_operations") or name in _COMPARED:
            fields[name] = value
        elif name == "topic_id":
            fields[name] = value != NO_ID
        elif isinstance(value, list) or hasattr(value, "__slots__"):
            nested = outcome(value, case)
            if nested:
                fields[name] = nested
    return fields


def _retry(call: Any, is_done: Any) -> Any:
    deadline = time.monotonic() + 30
    while True:
        result = call()
        if is_done(result):
            return result
        assert time.monotonic() < deadline, result
        time.sleep(0.05)


def _topic_id(broker: SecuredBroker, name: str) -> UUID:
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=name)])
    response = _retry(lambda: broker.admin.call(request, 12), lambda r: not r.topics[0].error_code)
    topic_id: UUID = response.topics[0].topic_id
    return topic_id


def _create_topic(broker: SecuredBroker, name: str, partitions: int = 1) -> UUID:
    request = create_topics.CreateTopicsRequest(
        timeout_ms=20_000,
        topics=[create_topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)],
    )
    assert broker.admin.call(request, 7).topics[0].error_code == 0
    return _topic_id(broker, name)


def prepare(broker: SecuredBroker, reference: str) -> dict[str, UUID]:
    """Create the topics, groups and transactions of the cases. Return the topic ids. Kafka 3.9 has
    no consumer groups of the new protocol."""
    ids = {name: _create_topic(broker, name, 2) for name in (READABLE, HIDDEN)}
    for name in ids:
        records = memoryview(bytearray(wire.batch([b"a", b"b"])))
        data = produce.PartitionProduceData(index=0, records=records)
        request = produce.ProduceRequest(
            acks=-1, timeout_ms=5000, topic_data=[produce.TopicProduceData(name=name, partition_data=[data])]
        )
        _retry(
            lambda request=request: broker.admin.call(request, 9),
            lambda r: not r.responses[0].partition_responses[0].error_code,
        )
    for key_type, keys in ((0, GROUPS), (1, IDS)):
        for key in keys:
            coordinator = FindCoordinatorRequest(key=key, key_type=key_type)
            _retry(lambda c=coordinator: broker.admin.call(c, 3), lambda r: not r.error_code)
    for group in GROUPS:
        _commit(broker, group)
    for transactional_id in IDS:
        init = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
        producer = _retry(lambda i=init: broker.admin.call(i, 4), lambda r: not r.error_code)
        add = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.producer_epoch,
            v3_and_below_topics=[
                add_partitions_to_txn.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in (READABLE, HIDDEN)
            ],
        )
        broker.admin.call(add, 3)
    if reference == NEWEST:
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id="m-consumers",
            member_id="AAAAAAAAAAAAAAAAAAAAAA",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[READABLE],
            topic_partitions=[],
        )
        _retry(lambda: broker.admin.call(heartbeat, 0), lambda r: not r.error_code)
    return ids


def _commit(broker: SecuredBroker, group: str) -> None:
    request = offset_commit.OffsetCommitRequest(
        group_id=group,
        topics=[
            offset_commit.OffsetCommitRequestTopic(
                name=name,
                partitions=[offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
            )
            for name in (READABLE, HIDDEN)
        ],
    )
    _retry(lambda: broker.admin.call(request, 8), lambda r: not r.topics[0].partitions[0].error_code)


def _binding(right: Right, permission: Permission = Permission.ALLOW) -> AclBinding:
    operation, resource_type, name, pattern_type = right
    return acl(operation, resource_type, name, pattern_type, host=CLIENT_HOST, permission=permission)


def right_sets(case: Case) -> Iterator[tuple[str, list[AclBinding]]]:
    """Yield the ACLs of each run, with a description."""
    granted = [_binding(right) for right in case.rights]
    yield "no right", []
    yield "the rights", granted
    for right in case.rights:
        name = f"{right[0].name} on {right[1].name} {right[2]}"
        yield f"{name} denied", [*granted, _binding(right, Permission.DENY)]
        if len(case.rights) > 1:
            yield f"without {name}", [binding for binding in granted if binding != _binding(right)]
    for alternative in case.alternatives:
        names = ", ".join(f"{right[0].name} on {right[1].name} {right[2]}" for right in alternative)
        yield f"only {names}", [_binding(right) for right in alternative]


def common_versions(case: Case, brokers: list[SecuredBroker]) -> range:
    ranges = [broker.versions.get(int(case.key)) for broker in brokers]
    if None in ranges:
        return range(0)
    lowest = max(case.versions[0], *(versions[0] for versions in ranges if versions))
    return range(lowest, min(case.versions[1], *(versions[1] for versions in ranges if versions)) + 1)


def differences(
    case: Case, version: int, brokers: list[SecuredBroker], topic_ids: list[dict[str, UUID]]
) -> Iterator[str]:
    """Run the case in one version on both brokers. Yield each difference of the outcomes."""
    for description, bindings in right_sets(case):
        run = next(_runs)
        outcomes = []
        for broker, ids in zip(brokers, topic_ids, strict=True):
            world = World(version, run, dict(ids))
            if case.creates_topic:
                world.topic_ids[world.new_name] = _create_topic(broker, world.new_name)
            broker.grant(bindings)
            try:
                response = broker.send(case.make(world), version)
            finally:
                broker.revoke_all()
            outcomes.append(response if isinstance(response, str) else outcome(response, case))
        if outcomes[0] != outcomes[1]:
            yield f"{case.name} v{version}, {description}:\n  kavka  {outcomes[0]}\n  apache {outcomes[1]}"


def differences_of(
    case: Case, versions: Iterable[int], brokers: list[SecuredBroker], topic_ids: list[dict[str, UUID]]
) -> list[str]:
    return [text for version in versions for text in differences(case, version, brokers, topic_ids)]
