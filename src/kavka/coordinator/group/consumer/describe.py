"""[pure] ConsumerGroupDescribe for a consumer group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from kavka.coordinator.group.consumer.state import ConsumerGroup, Member
from kavka.coordinator.group.consumer.topics import Topics
from kavka.protocol.messages.consumer_group_describe import Assignment, DescribedGroup, TopicPartitions
from kavka.protocol.messages.consumer_group_describe import Member as DescribedMember

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def describe_group(group: ConsumerGroup, topics: Topics, default_assignor: str) -> DescribedGroup:
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state_name,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(default_assignor),
        members=[_describe_member(group, member, topics) for member in group.members.values()],
    )


def _describe_member(group: ConsumerGroup, member: Member, topics: Topics) -> DescribedMember:
    subscription = member.subscription
    return DescribedMember(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=member.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=sorted(subscription.topics),
        subscribed_topic_regex=subscription.pattern or None,
        assignment=_assignment(member.current.assigned, topics),
        target_assignment=_assignment(group.target.get(member.member_id, {}), topics),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(partitions: Mapping[UUID, Iterable[int]], topics: Topics) -> Assignment:
    """Return the partitions with topic names. Deleted topics are omitted, because their names are
    unknown."""
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(indexes))
            for topic_id, indexes in partitions.items()
            if (name := topics.name_of(topic_id)) is not None
        ]
    )
