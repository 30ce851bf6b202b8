"""Consumer groups and their committed offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kavka.client.admin.base import AdminBase, AdminError, Outcome, as_list, by_key
from kavka.client.admin.types import (
    ConsumerGroupDescription,
    GroupListing,
    MemberDescription,
    MemberToRemove,
    operations,
)
from kavka.client.cluster import GROUP
from kavka.client.errors import error_of
from kavka.client.metadata import Node
from kavka.client.types import OffsetAndMetadata
from kavka.common.errors import ErrorCode, KafkaError
from kavka.common.types import TopicPartition, by_topic
from kavka.protocol.api_keys import ApiKey
from kavka.protocol.messages import consumer_group_describe, describe_groups
from kavka.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kavka.protocol.messages.delete_groups import DeleteGroupsRequest
from kavka.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from kavka.protocol.messages.list_groups import ListGroupsRequest
from kavka.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kavka.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kavka.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from kavka.protocol.primitives import ProtocolError

CONSUMER = "consumer"
CONSUMER_PROTOCOL_MEMBER = 1
# Later versions of OffsetFetch and OffsetCommit identify topics by id, but an admin client has only
# their names.
MAX_FETCH_BY_NAME_VERSION = MAX_COMMIT_BY_NAME_VERSION = 9
MIN_GROUP_LIST_VERSION = 8
REMOVED_BY_ADMIN = "removed by an admin client"


class Groups(AdminBase):
    async def list_groups(
        self,
        *,
        states: Iterable[str] = (),
        types: Iterable[str] = (),
        timeout: float | None = None,
    ) -> list[GroupListing]:
        """Return all groups of the cluster in these states and of these types. An empty filter
        accepts all groups. Sends a request to every broker. The client also applies the filters,
        because older brokers ignore them."""
        state_filter = [state.lower() for state in states]
        type_filter = [group_type.lower() for group_type in types]

        async def attempt(brokers: list[int]) -> Outcome[int, list[GroupListing]]:
            done: dict[int, list[GroupListing]] = {}
            errors: dict[int, KafkaError] = {}
            for broker in brokers:
                try:
                    done[broker] = await self._groups_of(broker, list(states), list(types))
                except KafkaError as error:
                    errors[broker] = error
            return done, errors

        listings = await self._each_broker(None, attempt, timeout)
        groups = {group.group_id: group for broker_groups in listings.values() for group in broker_groups}
        return [
            group
            for _, group in sorted(groups.items())
            if (not state_filter or (group.state or "").lower() in state_filter)
            and (not type_filter or (group.type or "classic").lower() in type_filter)
        ]

    async def _groups_of(self, broker: int, states: list[str], types: list[str]) -> list[GroupListing]:
        connection = await self.cluster.connection(broker, timeout=self._request_timeout)
        version = connection.version_of(ApiKey.LIST_GROUPS)
        request = ListGroupsRequest(
            states_filter=states if version >= 4 else [], types_filter=types if version >= 5 else []
        )
        response = await connection.send(request, version=version, timeout=self._request_timeout)
        if response.error_code:
            raise error_of(response.error_code)
        return [
            GroupListing(g.group_id, g.protocol_type, g.group_state or None, g.group_type or None)
            for g in response.groups
        ]

    async def list_consumer_groups(
        self,
        *,
        states: Iterable[str] = (),
        types: Iterable[str] = (),
        timeout: float | None = None,
    ) -> list[GroupListing]:
        """Return consumer groups, and groups that have committed offsets and never had a member."""
        groups = await self.list_groups(states=states, types=types, timeout=timeout)
        return [group for group in groups if group.protocol_type in (CONSUMER, "")]

    async def describe_consumer_groups(
        self,
        groups: Iterable[str] | str,
        *,
        include_authorized_operations: bool = False,
        timeout: float | None = None,
    ) -> dict[str, ConsumerGroupDescription]:
        """Return the state of each group, and its members with their assignments. If a group does
        not exist, its error is GROUP_ID_NOT_FOUND. An older broker returns the state Dead
        instead."""

        async def send(node: Node, names: list[str]) -> Outcome[str, ConsumerGroupDescription]:
            connection = await self.cluster.connection(node.id, timeout=self._request_timeout)
            done: dict[str, ConsumerGroupDescription] = {}
            errors: dict[str, KafkaError] = {}
            if connection.supports(ApiKey.CONSUMER_GROUP_DESCRIBE):
                request = consumer_group_describe.ConsumerGroupDescribeRequest(
                    group_ids=names, include_authorized_operations=include_authorized_operations
                )
                response = await connection.send(request, timeout=self._request_timeout)
                for group in response.groups:
                    if not group.error_code:
                        done[group.group_id] = _consumer_group(group, node)
                    elif group.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                        errors[group.group_id] = error_of(group.error_code, group.error_message)
            classic = [name for name in names if name not in done and name not in errors]
            if classic:
                descriptions, failed = await self._classic_groups(node, classic, include_authorized_operations)
                done.update(descriptions)
                errors |= failed
            return done, errors

        return await self._each_coordinator(as_list(groups, str), GROUP, send, timeout)

    async def describe_classic_groups(
        self,
        groups: Iterable[str] | str,
        *,
        include_authorized_operations: bool = False,
        timeout: float | None = None,
    ) -> dict[str, ConsumerGroupDescription]:
        """Like `describe_consumer_groups`, but only for groups of the classic protocol. Their
        members are consumers, or other clients such as Connect workers. A group of another type is
        treated like a group that does not exist."""

        async def send(node: Node, names: list[str]) -> Outcome[str, ConsumerGroupDescription]:
            return await self._classic_groups(node, names, include_authorized_operations)

        return await self._each_coordinator(as_list(groups, str), GROUP, send, timeout)

    async def _classic_groups(
        self, node: Node, names: list[str], authorized_operations: bool
    ) -> Outcome[str, ConsumerGroupDescription]:
        connection = await self.cluster.connection(node.id, timeout=self._request_timeout)
        version = connection.version_of(ApiKey.DESCRIBE_GROUPS)
        request = describe_groups.DescribeGroupsRequest(
            groups=names, include_authorized_operations=authorized_operations and version >= 3
        )
        response = await connection.send(request, version=version, timeout=self._request_timeout)
        return by_key(response.groups, lambda group: group.group_id, lambda group: _classic_group(group, node))

    async def delete_consumer_groups(self, groups: Iterable[str] | str, *, timeout: float | None = None) -> None:
        """Delete groups that have no members, and their offsets."""

        async def send(node: Node, names: list[str]) -> Outcome[str, None]:
            response = await self._request(node.id, DeleteGroupsRequest(groups_names=names))
            return by_key(response.results, lambda result: result.group_id, lambda result: None)

        await self._each_coordinator(as_list(groups, str), GROUP, send, timeout)

    async def remove_members_from_consumer_group(
        self, group: str, members: Iterable[MemberToRemove] | None = None, *, timeout: float | None = None
    ) -> None:
        """Remove these members, or all members if `members` is None, from a classic group."""
        if members is None:
            described = (await self.describe_consumer_groups(group, timeout=timeout))[group]
            removals = [
                MemberToRemove(m.group_instance_id, "" if m.group_instance_id else m.member_id)
                for m in described.members
            ]
        else:
            removals = list(members)
        if not removals:
            return

        async def send(node: Node, names: list[str]) -> Outcome[str, list[Any]]:
            request = LeaveGroupRequest(
                group_id=group,
                members=[
                    MemberIdentity(
                        member_id=m.member_id, group_instance_id=m.group_instance_id, reason=REMOVED_BY_ADMIN
                    )
                    for m in removals
                ],
            )
            response = await self._request(node.id, request)
            if response.error_code:
                return {}, {group: error_of(response.error_code)}
            return {group: response.members}, {}

        results = (await self._one_group(group, send, timeout)) or []
        errors = {
            MemberToRemove(m.group_instance_id, m.member_id): error_of(m.error_code) for m in results if m.error_code
        }
        if errors:
            raise AdminError(errors, {})

    # --- offsets

    async def list_consumer_group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets of the group. Without `partitions`, returns all committed
        offsets. With `partitions`, the value is None for a partition without a committed offset.

        If `require_stable` is set, waits for the end of transactions with pending offset commits.
        """
        requested = None if partitions is None else [TopicPartition(*tp) for tp in partitions]
        if requested is not None and not requested:
            return {}

        async def send(node: Node, names: list[str]) -> Outcome[str, dict[TopicPartition, OffsetAndMetadata | None]]:
            connection = await self.cluster.connection(node.id, timeout=self._request_timeout)
            version = connection.version_of(ApiKey.OFFSET_FETCH, MAX_FETCH_BY_NAME_VERSION)
            request = _offset_fetch(group, requested, version, require_stable)
            response = await connection.send(request, version=version, timeout=self._request_timeout)
            result = response.groups[0] if version >= MIN_GROUP_LIST_VERSION else response
            if result.error_code:
                return {}, {group: error_of(result.error_code)}
            offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
            for topic in result.topics:
                for partition in topic.partitions:
                    tp = TopicPartition(topic.name, partition.partition_index)
                    if partition.error_code:
                        return {}, {group: error_of(partition.error_code, str(tp))}
                    if partition.committed_offset >= 0:
                        epoch = partition.committed_leader_epoch
                        offsets[tp] = OffsetAndMetadata(
                            partition.committed_offset, partition.metadata or "", None if epoch < 0 else epoch
                        )
                    elif requested is not None:
                        offsets[tp] = None
            return {group: offsets}, {}

        retriable = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT})
        committed: dict[TopicPartition, OffsetAndMetadata | None] = await self._one_group(
            group, send, timeout, retriable
        )
        return committed

    async def alter_consumer_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        timeout: float | None = None,
    ) -> None:
        """Set the committed offsets of a group without active members."""

        async def send(node: Node, names: list[str]) -> Outcome[str, dict[TopicPartition, int]]:
            topics: dict[str, OffsetCommitRequestTopic] = {}
            for (name, partition), value in offsets.items():
                offset = OffsetAndMetadata(value) if isinstance(value, int) else value
                topic = topics.setdefault(name, OffsetCommitRequestTopic(name=name))
                topic.partitions.append(
                    OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset.offset,
                        committed_leader_epoch=-1 if offset.leader_epoch is None else offset.leader_epoch,
                        committed_metadata=offset.metadata,
                    )
                )
            request = OffsetCommitRequest(group_id=group, topics=list(topics.values()))
            response = await self._request(node.id, request, MAX_COMMIT_BY_NAME_VERSION)
            return _codes(group, response)

        _raise_for(await self._one_group(group, send, timeout))

    async def delete_consumer_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], *, timeout: float | None = None
    ) -> None:
        """Delete committed offsets of topics that the group is not subscribed to."""
        requested = by_topic(partitions)

        async def send(node: Node, names: list[str]) -> Outcome[str, dict[TopicPartition, int]]:
            request = OffsetDeleteRequest(
                group_id=group,
                topics=[
                    OffsetDeleteRequestTopic(
                        name=name, partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in ids]
                    )
                    for name, ids in requested.items()
                ],
            )
            response = await self._request(node.id, request)
            if response.error_code:
                return {}, {group: error_of(response.error_code)}
            return {group: _by_partition(response)}, {}

        _raise_for(await self._one_group(group, send, timeout))

    async def _one_group(
        self, group: str, send: Any, timeout: float | None, retriable: frozenset[ErrorCode] = frozenset()
    ) -> Any:
        """Like `_each_coordinator`, for one group. Returns the result, or raises the error itself
        instead of AdminError."""

        async def attempt(remaining: list[str]) -> Outcome[str, Any]:
            outcome: Outcome[str, Any] = await send(await self._coordinator(group), remaining)
            return outcome

        try:
            return (await self._each([group], attempt, timeout, retriable))[group]
        except AdminError as error:
            raise error.errors[group] from None


def _offset_fetch(
    group: str, partitions: list[TopicPartition] | None, version: int, require_stable: bool
) -> OffsetFetchRequest:
    topics = None if partitions is None else by_topic(partitions)
    request = OffsetFetchRequest(require_stable=require_stable and version >= 7)
    if version >= MIN_GROUP_LIST_VERSION:
        names = None
        if topics is not None:
            names = [OffsetFetchRequestTopics(name=name, partition_indexes=ids) for name, ids in topics.items()]
        request.groups = [OffsetFetchRequestGroup(group_id=group, topics=names)]
    else:
        request.group_id = group
        request.topics = None
        if topics is not None:
            request.topics = [OffsetFetchRequestTopic(name=name, partition_indexes=ids) for name, ids in topics.items()]
    return request


def _codes(group: str, response: Any) -> Outcome[str, dict[TopicPartition, int]]:
    """Return the error codes by partition. If all partitions have the same error, return it as the
    error of the group."""
    codes = _by_partition(response)
    distinct_codes = set(codes.values())
    if len(distinct_codes) == 1 and (code := distinct_codes.pop()):
        return {}, {group: error_of(code)}
    return {group: codes}, {}


def _by_partition(response: Any) -> dict[TopicPartition, int]:
    return {TopicPartition(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}


def _raise_for(codes: Mapping[TopicPartition, int]) -> None:
    errors = {tp: error_of(code) for tp, code in codes.items() if code}
    if errors:
        raise AdminError(errors, {tp: None for tp, code in codes.items() if not code})


def _consumer_group(group: Any, node: Node) -> ConsumerGroupDescription:
    def partitions(assignment: Any) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(t.topic_name, p) for t in assignment.topic_partitions for p in t.partitions)

    return ConsumerGroupDescription(
        group.group_id,
        group.group_state,
        "consumer",
        CONSUMER,
        group.assignor_name,
        node,
        tuple(
            MemberDescription(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                partitions(m.assignment),
                partitions(m.target_assignment),
                m.member_epoch,
                m.rack_id,
                tuple(m.subscribed_topic_names),
                m.subscribed_topic_regex,
                upgraded=None if m.member_type < 0 else m.member_type == CONSUMER_PROTOCOL_MEMBER,
            )
            for m in group.members
        ),
        group.group_epoch,
        group.assignment_epoch,
        operations(group.authorized_operations),
    )


def _classic_group(group: Any, node: Node) -> ConsumerGroupDescription:
    return ConsumerGroupDescription(
        group.group_id,
        group.group_state,
        "classic",
        group.protocol_type,
        group.protocol_data,
        node,
        tuple(_classic_member(m, group.protocol_type) for m in group.members),
        authorized_operations=operations(group.authorized_operations),
    )


def _classic_member(member: Any, protocol_type: str) -> MemberDescription:
    assignment: frozenset[TopicPartition] = frozenset()
    topics: tuple[str, ...] = ()
    rack = user_data = None
    if protocol_type in (CONSUMER, ""):
        decoded = _decode_versioned(ConsumerProtocolAssignment, member.member_assignment)
        if decoded is not None:
            assignment = frozenset(
                TopicPartition(t.topic, p) for t in decoded.assigned_partitions for p in t.partitions
            )
        subscription = _decode_versioned(ConsumerProtocolSubscription, member.member_metadata)
        if subscription is not None:
            topics, rack, user_data = tuple(subscription.topics), subscription.rack_id, subscription.user_data
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        assignment,
        rack_id=rack,
        subscribed_topics=topics,
        user_data=user_data,
    )


def _decode_versioned(message_class: Any, data: bytes) -> Any:
    """Decode data of the embedded consumer protocol, which starts with its version. Returns None if
    the data is empty or invalid."""
    if len(data) < 2:
        return None
    version = int.from_bytes(data[:2], "big", signed=True)
    try:
        return message_class.decode(data, 2, min(max(version, message_class.MIN_VERSION), message_class.MAX_VERSION))[0]
    except ProtocolError:
        return None
