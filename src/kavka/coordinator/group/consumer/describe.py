"""[pure] A group of the new protocol as ConsumerGroupDescribe shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from kavka.coordinator.group.consumer.state import ConsumerGroup, Member
from kavka.coordinator.group.consumer.topics import Topics
from kavka.protocol.messages.consumer_group_describe import Assignment, DescribedGroup, TopicPartitions
from kavka.protocol.messages.consumer_group_describe import Member as DescribedMember

SPEAKS_CLASSIC, SPEAKS_CONSUMER = 0, 1


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
    said = member.subscription
    return DescribedMember(
        member_id=member.member_id,
        instance_id=said.instance_id,
        rack_id=said.rack_id,
        member_epoch=member.epoch,
        client_id=said.client_id,
        client_host=said.client_host,
        subscribed_topic_names=sorted(said.topics),
        subscribed_topic_regex=said.pattern or None,
        assignment=_named(member.current.assigned, topics),
        target_assignment=_named(group.target.get(member.member_id, {}), topics),
        member_type=SPEAKS_CLASSIC if member.is_classic else SPEAKS_CONSUMER,
    )


def _named(partitions: Mapping[UUID, Iterable[int]], topics: Topics) -> Assignment:
    """Topics that are gone have no name, and are left out."""
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=name, partitions=sorted(indexes))
            for topic_id, indexes in partitions.items()
            if (name := topics.name_of(topic_id)) is not None
        ]
    )
